"""The texts of a job: the batch script that SLURM runs once, and the task script that runs on every node. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Sequence

from prefect_tao.jobs import control
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.request import ALL_GPUS, JobRequest, Resources
from prefect_tao.platforms.base import job_variables
from prefect_tao.platforms.slurm import enroot, layout
from prefect_tao.platforms.slurm.layout import Layout
from prefect_tao.platforms.slurm.questions import Value, program
from prefect_tao.platforms.slurm.settings import SlurmSettings
from prefect_tao.runner.entrypoint import PACKAGE, PLAN_FILE

# Where the nodes of a job meet.
FIRST_PORT, PORTS = 20000, 10000
CONTROLLER_PORT = 8082
# Time between the warning and the wall, in which the runner ends its command. Only the batch script is warned: a
# training that does not know the signal would die of it.
WARNING_SECONDS = 60
# Up to this limit there is no warning: SLURM looks at its clock every half minute and warns up to a minute early, which
# would end a short command before its time. The runner keeps such a limit alone, and SLURM's wall is a minute further.
SHORT_SECONDS = 600
# Options that we set ourselves; a second one of them would win over ours, or lose to it, without a word.
_MANAGED = """
    job-name J output o error e open-mode nodes N ntasks n ntasks-per-node gpus G gpus-per-node gres gpus-per-task
    tasks-per-node ntasks-per-gpu ntasks-per-socket gpus-per-socket cpus-per-gpu tres-per-task
    cpus-per-task c mem-per-cpu mem-per-gpu mem wait-all-nodes wait W clusters M
    time t time-min partition p account A qos q reservation constraint C requeue no-requeue signal array a
    dependency d wrap parsable test-only hold H container-image container-mounts exclude x exclusive export export-file
    help h usage version V quiet Q uid gid
"""
MANAGED = frozenset(_MANAGED.split())
_FLAG = re.compile(r"--?([A-Za-z][A-Za-z-]*)(?:=.*)?", re.DOTALL)


def check_flags(flags: Sequence[str]) -> None:
    """Raises InvalidInput for an extra flag that is none, or that collides with one of ours."""
    for flag in flags:
        found = _FLAG.fullmatch(flag)
        if found is None or any(ord(character) < 32 for character in flag):
            raise InvalidInput(f"{flag!r} is not an option of sbatch", "write extra flags as --name or --name=value")
        # -Jname is -J, and --part is --partition.
        name = found[1] if flag.startswith("--") else found[1][0]
        if name in MANAGED or (len(name) > 1 and any(one.startswith(name) for one in MANAGED)):
            raise InvalidInput(
                f"the extra flag {flag} collides with what prefect-tao sets itself",
                f"use the block's or the job's own setting for {name}",
            )


def check_words(site: SlurmSettings) -> None:
    """Raises InvalidInput for a value that no line of a batch script can hold."""
    for name in ("partition", "account", "qos", "reservation", "constraint"):
        if any(ord(character) < 32 for character in getattr(site, name) or ""):
            raise InvalidInput(f"{name} holds a line break or another control character", "write it in one line")


def check_shape(resources: Resources, site: SlurmSettings) -> None:
    """Raises InvalidInput for a shape that no node of the partition has."""
    if resources.gpus == ALL_GPUS and not site.max_gpus_per_node:
        raise InvalidInput(
            "gpus: all GPUs of a node were asked for, and a node has none",
            "ask for --gpus 0, or correct max_gpus_per_node in the block",
        )
    if resources.gpus > site.max_gpus_per_node:
        nodes = math.ceil(resources.gpus / site.max_gpus_per_node) * resources.nodes
        raise InvalidInput(
            f"gpus: {resources.gpus} per node were asked for, and a node has {site.max_gpus_per_node}",
            f"ask for --nodes {nodes} --gpus {site.max_gpus_per_node}, or correct max_gpus_per_node in the block",
        )


def gpus_per_node(resources: Resources, site: SlurmSettings) -> int:
    """How many GPUs the job gets on each node."""
    return site.max_gpus_per_node if resources.gpus == ALL_GPUS else resources.gpus


def wall_seconds(resources: Resources, site: SlurmSettings) -> int:
    """The time limit that SLURM enforces, in whole minutes."""
    seconds = resources.time_limit or site.time_hours * 3600
    wall = math.ceil((seconds + 60 if is_short(resources) else seconds) / 60) * 60
    # No further than the partition allows, unless the job itself asks for more.
    return min(wall, max(int(site.max_time_hours * 3600) // 60 * 60, math.ceil(seconds / 60) * 60))


def is_short(resources: Resources) -> bool:
    """Whether the runner alone keeps the time limit."""
    return resources.time_limit is not None and resources.time_limit <= SHORT_SECONDS


def command_seconds(resources: Resources, site: SlurmSettings) -> float:
    """When the command is asked to end by itself: early enough for its last checkpoint."""
    if resources.time_limit is None:
        return site.timeout_hours * 3600
    wall = wall_seconds(resources, site)
    if is_short(resources):
        return resources.time_limit if wall >= resources.time_limit + 60 else min(resources.time_limit, wall * 0.9)
    # What the block keeps back of its own time; of a shorter one the same share.
    kept = min((site.time_hours - site.timeout_hours) * 3600, wall * (1 - site.timeout_hours / site.time_hours))
    return min(resources.time_limit, wall - kept)


def batch_script(request: JobRequest, key: str, attempt: int, place: Layout, site: SlurmSettings) -> str:
    """The batch script of one attempt."""
    given: dict[str, Value] = {
        "folder": place.job(key, attempt),
        "record": f"{place.results_of(key)}/attempts/{attempt}.json",
        "requeue": int(site.use_requeue),
        "control": sorted(control.NAMES),
    }
    # Several nodes and containers take a step of their own; for anything else it would be one more thing to wait for.
    if request.resources.nodes > 1 or request.image is not None:
        start, given = "job_step", given | _step(request, place, site)
    else:
        start = "job_direct"
    lines = ["#!/bin/bash", *directive_lines(directives(request, key, attempt, place, site)), ""]
    return "\n".join(lines) + "\n" + program(start, "job", **given)


def _step(request: JobRequest, place: Layout, site: SlurmSettings) -> dict[str, Value]:
    """What srun is asked for, and the image: the converted one where there is one."""
    image, resources = request.image, request.resources
    options = [
        f"--nodes={resources.nodes}",
        f"--ntasks={resources.nodes}",
        "--ntasks-per-node=1",
        # srun does not take it from the batch script any more.
        f"--cpus-per-task={resources.cpus or site.cpus}",
        "--kill-on-bad-exit=1",
        "--unbuffered",
    ]
    if image is not None:
        options += [f"--container-mounts={','.join(container_mounts(place, site))}", "--no-container-mount-home"]
    convert = image is not None and site.use_sqsh and not enroot.is_file(image)
    return {
        "nodes": resources.nodes,
        "gpus": gpus_per_node(resources, site),
        "first_port": FIRST_PORT,
        "ports": PORTS,
        "image": enroot.pyxis(image) if image else "",
        "converted": place.converted(image) if image and convert else "",
        "conversion_log": place.conversion_log(image) if image and convert else "",
        "step": options,
    }


def directives(request: JobRequest, key: str, attempt: int, place: Layout, site: SlurmSettings) -> list[str]:
    """The options of sbatch, one by one."""
    resources, logs = request.resources, f"{place.job(key, attempt)}/{layout.LOGS}"
    many, gpus = resources.nodes > 1, gpus_per_node(resources, site)
    full = gpus > 0 and gpus >= site.max_gpus_per_node
    found = [
        f"--job-name={JobName(key, attempt)}",
        f"--partition={site.partition}",
        f"--account={site.account}" if site.account else "",
        f"--qos={site.qos}" if site.qos else "",
        f"--reservation={site.reservation}" if site.reservation else "",
        f"--constraint={site.constraint}" if site.constraint else "",
        f"--nodes={resources.nodes}",
        "--ntasks-per-node=1",
        "--wait-all-nodes=1" if many else "",
        f"--gpus-per-node={gpus}" if gpus else "",
        f"--cpus-per-task={resources.cpus or site.cpus}",
        f"--mem={math.ceil(resources.memory / 2**20)}M" if resources.memory else "",
        "--exclusive" if full else "",
        f"--time={_clock(wall_seconds(resources, site))}",
        "" if is_short(resources) else f"--signal=B:USR1@{WARNING_SECONDS}",
        "--requeue" if site.use_requeue else "--no-requeue",
        "--open-mode=append",
        # SLURM takes %j and its like for words of its own.
        f"--output={logs.replace('%', '%%')}/batch-%j.out",
        *site.extra_flags,
    ]
    return [option for option in found if option]


def directive_lines(options: Sequence[str]) -> list[str]:
    """The options as lines of a script."""
    return [f"#SBATCH {_quoted(option)}" for option in options]


def _quoted(option: str) -> str:
    """An option whose value is one word: sbatch reads quotes and backslashes as a shell does."""
    name, equals, value = option.partition("=")
    if not equals or not re.search(r"[\s\"'\\#]", value):
        return option
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'{name}="{escaped}"'


def _clock(seconds: int) -> str:
    days, rest = divmod(seconds, 86400)
    text = f"{rest // 3600:02}:{rest % 3600 // 60:02}:{rest % 60:02}"
    return f"{days}-{text}" if days else text


def container_mounts(place: Layout, site: SlurmSettings) -> list[str]:
    """What a container sees of the cluster: always the base folder, where the job and its results are."""
    given = [mount if ":" in mount else f"{mount}:{mount}" for mount in site.container_mounts]
    above = [number for number, mount in enumerate(given) if _is_above(mount.split(":")[1], place.base)]
    if above and _shows(given[above[-1]]):
        return given
    # What is mounted later lies on top.
    where = above[-1] + 1 if above else 0
    return [*given[:where], f"{place.base}:{place.base}", *given[where:]]


def _is_above(target: str, base: str) -> bool:
    return base == target or base.startswith(target.rstrip("/") + "/")


def _shows(mount: str) -> bool:
    """Whether the mount shows what it holds under its own path, and lets it be written."""
    source, target, *flags = mount.split(":")
    return source == target and "ro" not in "+".join(flags).split("+")


def variables(request: JobRequest, key: str, attempt: int, place: Layout, site: SlurmSettings) -> dict[str, str]:
    """The variables of the job, set by its runner inside the container, where they win over those of the image."""
    folder = place.job(key, attempt)
    return job_variables(
        key,
        attempt,
        {**site.env, **request.env},
        place.results,
        TAO_API_RESULTS_DIR=place.results,
        TAO_WORK_DIR=folder,
        TAO_STOP_FILE=f"{folder}/{layout.STOP}",
        TAO_TENURE_FILE=f"{folder}/{layout.TENURE}",
        TAO_SECRETS_FILE=f"{folder}/{layout.SECRETS}",
        # SLURM may start the job again, which then needs them once more.
        TAO_SECRETS_KEEP="1",
    )


# What a task's own lines read of the job's variables.
_READ_HERE = ("PATH", "COSMOS_CONTROLLER_PORT", "NUM_ROLLOUT_NODES", "NUM_POLICY_NODES")


def task_script(request: JobRequest, key: str, attempt: int, place: Layout, site: SlurmSettings, digest: str) -> str:
    """What runs on every node, in the container where there is one; `digest` is the runner's version."""
    given = variables(request, key, attempt, place, site)
    # Not the others: a shell takes some for its own, UID for one, and ends when it is to set them.
    exports = "".join(f"export {name}={shlex.quote(given[name])}\n" for name in _READ_HERE if name in given)
    cosmos = request.resources.nodes > 1 and is_cosmos_rl(request)
    return exports + program(
        *(("task_cosmos",) if cosmos else ()),
        "task",
        module=f"{PACKAGE}.main",
        program=place.program(digest),
        plan=f"{place.job(key, attempt)}/{PLAN_FILE}",
        **({"controller_port": CONTROLLER_PORT} if cosmos else {}),
    )


def is_cosmos_rl(request: JobRequest) -> bool:
    """Whether the job is one of Cosmos-RL, told by its command."""
    return re.search(r"\bcosmos-rl\b", request.command) is not None
