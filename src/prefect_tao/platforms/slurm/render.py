"""The texts of a job: the batch script that SLURM runs once, and the task script that runs on every node. Pure."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prefect_tao.jobs import control
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.request import ALL_GPUS, JobRequest, Resources
from prefect_tao.platforms.slurm import enroot, layout
from prefect_tao.platforms.slurm.layout import Layout
from prefect_tao.runner.entrypoint import PACKAGE, PLAN_FILE

# Where the nodes of a job meet; each job has a port of its own, because two may share their first node.
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


@dataclass(frozen=True)
class Site:
    """What a cluster wants of every job."""

    partition: str
    account: str | None = None
    qos: str | None = None
    reservation: str | None = None
    constraint: str | None = None
    extra_flags: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    max_gpus_per_node: int = 8
    cpus: int = 16
    time_seconds: float = 4 * 3600.0
    timeout_seconds: float = 3.8 * 3600.0
    max_seconds: float = 4 * 3600.0
    requeue: bool = True
    use_sqsh: bool = True
    env: Mapping[str, str] = field(default_factory=dict)


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


def check_words(site: Site) -> None:
    """Raises InvalidInput for a value that no line of a batch script can hold."""
    for name in ("partition", "account", "qos", "reservation", "constraint"):
        if any(ord(character) < 32 for character in getattr(site, name) or ""):
            raise InvalidInput(f"{name} holds a line break or another control character", "write it in one line")


def check_shape(resources: Resources, site: Site) -> None:
    """Raises InvalidInput for a shape that no node of the partition has."""
    if resources.gpus == ALL_GPUS and not site.max_gpus_per_node:
        raise InvalidInput(
            "gpus: all of a node were asked for, and a node has none",
            "ask for --gpus 0, or correct max_gpus_per_node in the block",
        )
    if resources.gpus > site.max_gpus_per_node:
        nodes = math.ceil(resources.gpus / site.max_gpus_per_node) * resources.nodes
        raise InvalidInput(
            f"gpus: {resources.gpus} per node were asked for, and a node has {site.max_gpus_per_node}",
            f"ask for --nodes {nodes} --gpus {site.max_gpus_per_node}, or correct max_gpus_per_node in the block",
        )


def gpus_per_node(resources: Resources, site: Site) -> int:
    """How many GPUs the job gets on each node."""
    return site.max_gpus_per_node if resources.gpus == ALL_GPUS else resources.gpus


def wall_seconds(resources: Resources, site: Site) -> int:
    """The time limit that SLURM enforces, in whole minutes."""
    seconds = resources.time_limit or site.time_seconds
    wall = math.ceil((seconds + 60 if is_short(resources) else seconds) / 60) * 60
    # No further than the partition allows, unless the job itself asks for more.
    return min(wall, max(int(site.max_seconds) // 60 * 60, math.ceil(seconds / 60) * 60))


def is_short(resources: Resources) -> bool:
    """Whether the runner alone keeps the time limit."""
    return resources.time_limit is not None and resources.time_limit <= SHORT_SECONDS


def command_seconds(resources: Resources, site: Site) -> float:
    """When the command is asked to end by itself: early enough for its last checkpoint."""
    if resources.time_limit is None:
        return site.timeout_seconds
    wall = wall_seconds(resources, site)
    if is_short(resources):
        return resources.time_limit if wall >= resources.time_limit + 60 else min(resources.time_limit, wall * 0.9)
    # What the block keeps back of its own time; of a shorter one the same share.
    kept = min(site.time_seconds - site.timeout_seconds, wall * (1 - site.timeout_seconds / site.time_seconds))
    return min(resources.time_limit, wall - kept)


def batch_script(request: JobRequest, key: str, attempt: int, place: Layout, site: Site) -> str:
    """The batch script of one attempt."""
    folder = place.job(key, attempt)
    # Several nodes and containers take a step of their own; for anything else it would be one more thing to wait for.
    in_step = request.resources.nodes > 1 or request.image is not None
    lines = ["#!/bin/bash", *directive_lines(directives(request, key, attempt, place, site)), ""]
    return "\n".join(lines) + _BODY.format(
        folder=shlex.quote(folder),
        claim=layout.CLAIM,
        stop=layout.STOP,
        exit=layout.EXIT,
        secrets=layout.SECRETS,
        record=shlex.quote(f"{place.results_of(key)}/attempts/{attempt}.json"),
        logs=layout.LOGS,
        control=" ".join(sorted(control.NAMES)),
        rendezvous=_rendezvous(gpus_per_node(request.resources, site)) if request.resources.nodes > 1 else "",
        image=_image(request, place, site),
        start=_srun(request, place, site) if in_step else _DIRECT,
        warn='scancel --signal=TERM "$SLURM_JOB_ID.0"' if in_step else 'kill -TERM "$pid"',
    )


def directives(request: JobRequest, key: str, attempt: int, place: Layout, site: Site) -> list[str]:
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
        "--requeue" if site.requeue else "--no-requeue",
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


# $SLURM_RESTART_COUNT tells the runs of one id apart: a requeued job keeps its id. The secrets stay where a signal or
# its node ended the job, because SLURM may start it again; then whoever sees the end removes them. A step hears of a
# signal before the batch script does, so that its own record counts as well. A marker that is cut short counts as none.
_BODY = """
folder={folder}
cd "$folder" || exit 125
logs={logs}/$SLURM_JOB_NAME-$SLURM_JOB_ID
mkdir -p "$logs" && exec >>"$logs/main.out" 2>>"$logs/main.err"

# The first job under this name has it; any other that a lost reply has left leaves at once.
if ! ln -sT "$SLURM_JOB_ID" {claim} 2>/dev/null; then
    holder=$(readlink {claim})
    if [ -z "$holder" ] && ! ln -sT "$SLURM_JOB_ID" {claim}; then
        echo "[prefect-tao] the job cannot claim its name, so it runs nothing" >&2
        exit 125
    fi
    if [ "${{holder:-$SLURM_JOB_ID}}" != "$SLURM_JOB_ID" ]; then
        echo "[prefect-tao] job $holder has this name; nothing to do" >&2
        exit 0
    fi
fi

# As little as possible is started here besides the task.
moment() {{ now=${{EPOCHREALTIME:-$(date +%s.%3N)}}; now=${{now/,/.}}; }}
moment
started=$now signaled=0 over=1 by_itself=1 restarts=${{SLURM_RESTART_COUNT:-0}}
[ ! -e {exit} ] || rm -f {exit}
finish() {{
    moment
    printf '{{"native_id": "%s", "restarts": %d, "exit_code": %d, "ended_by": "%s", "started": %s, "ended": %s}}' \\
        "$SLURM_JOB_ID" "$restarts" "$1" "$2" "$started" "$now" >{exit}
    if [ "$signaled$over$by_itself" = 011 ] && [ "$1" -le 128 ]; then
        line=
        [ ! -r {secrets} ] || read -r line <{secrets}
        [ "$line" = '{{}}' ] || rm -f {secrets}
    fi
    exit "$1"
}}
if [ -e {stop} ]; then
    case $(cat {stop}) in cancel) finish 0 cancel ;; *) rm -f {stop} ;; esac
fi
trap 'signaled=1' TERM INT
# The wall is near: the runner ends its command in good order, and says that it was for the time limit.
trap 'echo time_limit >{stop}; {warn} 2>/dev/null' USR1

unset {control}
export TAO_NATIVE_ID=$SLURM_JOB_ID TAO_RESTARTS=$restarts
{rendezvous}{image}
{start} &
pid=$!
# A signal ends a wait, but not the one that is waited for.
wait "$pid"
code=$?
while kill -0 "$pid" 2>/dev/null; do
    wait "$pid"
    code=$?
done
wait "$pid" 2>/dev/null
last=$?
[ "$last" = 127 ] || code=$last
# An srun that gives up, because it was told to or because its node is gone, says 0 whatever became of its tasks; the
# runner's own record tells whether they came to an end. If not, SLURM may start the job again.
line=
[ ! -r {record} ] || read -r line <{record}
[[ $line == *'"ended"'* ]] || over=0
[[ $line == *'"ended_by": "none"'* ]] || by_itself=0
[ "$code" != 0 ] || [ "$signaled$over" = 01 ] || code=143
# The signal reaches the command as well as its runner, which then may not know why the command has ended.
ended_by=none
[ "$code" = 0 ] || [ ! -s {stop} ] || read -r ended_by <{stop}
finish "$code" "$ended_by"
"""


def _rendezvous(gpus: int) -> str:
    """The variables by which the nodes find each other; WORLD_SIZE counts nodes, as TAO's launchers expect."""
    return f"""
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
# Some sites give their nodes names that only SLURM knows.
getent hosts "$first" >/dev/null || first=$(scontrol show node "$first" | sed -n 's/.*NodeAddr=\\([^ ]*\\).*/\\1/p')
export MASTER_ADDR=$first MASTER_PORT=${{MASTER_PORT:-$(({FIRST_PORT} + SLURM_JOB_ID % {PORTS}))}}
export WORLD_SIZE=$SLURM_NNODES NNODES=$SLURM_NNODES
export NUM_GPU_PER_NODE={gpus} NPROC_PER_NODE={max(gpus, 1)}
"""


def _image(request: JobRequest, place: Layout, site: Site) -> str:
    """Which image srun gets: the converted one where there is one."""
    if request.image is None:
        return ""
    direct = shlex.quote(enroot.pyxis(request.image))
    if enroot.is_file(request.image) or not site.use_sqsh:
        return f"\nimage={direct}"
    converted = shlex.quote(f"{place.images}/{enroot.cached_name(request.image)}")
    log = shlex.quote(f"{place.images}/{enroot.conversion_name(request.image)}.log")
    return f"""
image={converted}
if [ ! -s "$image" ]; then
    echo "[prefect-tao] the image was not converted; it is pulled now instead" >&2
    tail -n 20 {log} >&2
    image={direct}
fi"""


# A shell has its background commands ignore these two signals, which a training may want to hear.
_DIRECT = f'(trap - INT QUIT; . "$folder/{layout.TASK}")'


def _srun(request: JobRequest, place: Layout, site: Site) -> str:
    resources = request.resources
    words = [
        "srun",
        f"--nodes={resources.nodes}",
        f"--ntasks={resources.nodes}",
        "--ntasks-per-node=1",
        # srun does not take it from the batch script any more.
        f"--cpus-per-task={resources.cpus or site.cpus}",
        "--kill-on-bad-exit=1",
        "--unbuffered",
    ]
    if request.image is not None:
        mounts = ",".join(container_mounts(place, site))
        words += [
            '--container-image="$image"',
            f"--container-mounts={shlex.quote(mounts)}",
            "--no-container-mount-home",
        ]
    return " ".join([*words, "/bin/sh", f'"$folder/{layout.TASK}"'])


def container_mounts(place: Layout, site: Site) -> list[str]:
    """What a container sees of the cluster: always the base folder, where the job and its results are."""
    given = [mount if ":" in mount else f"{mount}:{mount}" for mount in site.mounts]
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


def variables(request: JobRequest, key: str, attempt: int, place: Layout, site: Site) -> dict[str, str]:
    """The variables of the job, set by its runner inside the container, where they win over those of the image."""
    folder = place.job(key, attempt)
    ours = {
        "TAO_JOB_ID": key,
        "TAO_JOB_NAME": str(JobName(key, attempt)),
        "TAO_ATTEMPT": str(attempt),
        "TAO_RESULTS_ROOT": place.results,
        "TAO_API_RESULTS_DIR": place.results,
        "TAO_WORK_DIR": folder,
        "TAO_STOP_FILE": f"{folder}/{layout.STOP}",
        "TAO_SECRETS_FILE": f"{folder}/{layout.SECRETS}",
        # SLURM may start the job again, which then needs them once more.
        "TAO_SECRETS_KEEP": "1",
    }
    return {**control.without_control({**site.env, **request.env}), **ours}


# What a task's own lines read of the job's variables.
_READ_HERE = ("PATH", "COSMOS_CONTROLLER_PORT", "NUM_ROLLOUT_NODES", "NUM_POLICY_NODES")


def task_script(request: JobRequest, key: str, attempt: int, place: Layout, site: Site, program: str) -> str:
    """What runs on every node, in the container where there is one; `program` is the runner's version."""
    main, plan = f"{PACKAGE}.main", f"{place.job(key, attempt)}/{PLAN_FILE}"
    given = variables(request, key, attempt, place, site)
    # Not the others: a shell takes some for its own, UID for one, and ends when it is to set them.
    exports = "".join(f"export {name}={shlex.quote(given[name])}\n" for name in _READ_HERE if name in given)
    return f"""{exports}export NODE_RANK=${{SLURM_NODEID:-0}}
{_roles(request)}command -v python3 >/dev/null || {{
    echo "[prefect-tao] the image has no python3, which the job needs" >&2
    exit 127
}}
# Imported, and not run as a file: so only the first job has to compile it.
exec python3 -S -c 'import sys; sys.path.insert(0, sys.argv.pop(1)); import {main}; {main}.main()' \\
    {shlex.quote(place.program(program))} {shlex.quote(plan)}
"""


def _roles(request: JobRequest) -> str:
    """Cosmos-RL divides its nodes: the first one also hosts the controller, the last ones make rollouts."""
    if request.resources.nodes == 1 or not is_cosmos_rl(request):
        return ""
    return f"""export COSMOS_CONTROLLER_PORT=${{COSMOS_CONTROLLER_PORT:-{CONTROLLER_PORT}}}
export COSMOS_CONTROLLER_HOST=$MASTER_ADDR:$COSMOS_CONTROLLER_PORT
export NUM_ROLLOUT_NODES=${{NUM_ROLLOUT_NODES:-0}}
export NUM_POLICY_NODES=${{NUM_POLICY_NODES:-$((NNODES - NUM_ROLLOUT_NODES))}}
if [ "$NODE_RANK" -lt "$NUM_POLICY_NODES" ]; then COSMOS_ROLE=policy; else COSMOS_ROLE=rollout; fi
if [ "$NODE_RANK" = 0 ]; then COSMOS_CONTROLLER=1; else COSMOS_CONTROLLER=0; fi
export COSMOS_ROLE COSMOS_CONTROLLER
"""


def is_cosmos_rl(request: JobRequest) -> bool:
    """Whether the job is one of Cosmos-RL, told by its command."""
    return re.search(r"\bcosmos-rl\b", request.command) is not None
