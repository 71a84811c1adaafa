"""What an engine offers to a launch, found out without leaving anything behind."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from prefect_tao.catalog.loading import load_catalog
from prefect_tao.jobs.finding import COMPUTE, NO_GATE, Finding, GateName, Level
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms import gpu_locks, gpus
from prefect_tao.platforms.container_jobs import wanted_gpus
from prefect_tao.platforms.docker import devices, pulling, render
from prefect_tao.platforms.docker.client import NOT_FOUND
from prefect_tao.platforms.docker.submit import BUILT_IN_NETWORKS, Launcher, without
from prefect_tao.platforms.doubt import Refused, is_in_doubt

_GIB = 1024**3
TOOLKIT_REMEDY = (
    "on the engine's host, on Debian or Ubuntu: sudo apt-get install -y nvidia-container-toolkit && "
    "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker"
)


class Findings(list[Finding]):
    """Findings that are all from one place, and for one gate."""

    def __init__(self, where: str, gate: GateName = NO_GATE) -> None:
        super().__init__()
        self.where, self.gate = where, gate

    def say(self, level: Level, subject: str, message: str, remedy: str = "") -> None:
        """Add one."""
        text, where = f"{subject}: {message}", self.where
        found = Finding(level=level, subject=subject, message=text, checked_from=where, remedy=remedy, gate=self.gate)
        self.append(found)


def findings(launcher: Launcher, target: str, request: JobRequest | None) -> list[Finding]:
    """All of them. Raises Unreachable when the engine does not answer."""
    found, shape, info = Findings(target), Findings(target, COMPUTE), launcher.info()
    found.say(Level.OK, "reachable", f"Docker {info.get('ServerVersion')} at {launcher.engine.shown}")
    _place(found, launcher, target)
    _results(found, launcher, request)
    _network(found, launcher)
    for text in launcher.settings.mounts:
        source = render.parse_mount(text)["Source"]
        if not launcher.host.exists(source):
            found.say(Level.FAIL, "mounts", f"{source} does not exist on the engine's host", "create it or correct it")
    if request and request.image:
        supplied = pulling.supplied(launcher.credentials)
        found += pulling.findings(launcher.engine, request.image, launcher.settings.pull_policy, supplied, info, target)
    if request:
        _own_paths(found, launcher, request)
        _shape(shape, request, info)
        if wanted_gpus(request, launcher.settings):
            _gpus(shape, launcher, request)
    return [*found, *shape]


def _place(found: Findings, launcher: Launcher, target: str) -> None:
    platform, is_local = target.partition("/")[0], launcher.engine.endpoint.is_local
    if (platform == "local-docker") == is_local:
        return
    other = "remote-docker" if platform == "local-docker" else "local-docker"
    where = "on this machine" if is_local else "elsewhere"
    found.say(
        Level.FAIL,
        "target",
        f"the engine at {launcher.engine.shown} is {where}",
        f"use --target {target.replace(platform, other, 1)}",
    )


def _results(found: Findings, launcher: Launcher, request: JobRequest | None) -> None:
    root = launcher.settings.results_root
    if root is None and not launcher.settings.s3_bucket_name:
        found.say(
            Level.WARN,
            "results",
            f"there is no results folder: results go to the engine's volume {render.RESULTS_VOLUME}",
            "set the results folder of the block (TAO_RESULTS_ROOT), or an S3 bucket",
        )
    folders = render.written_folders(request, launcher.settings) if request else [root] if root else []
    for folder in folders:
        _writable(found, launcher, folder)


def _writable(found: Findings, launcher: Launcher, root: str) -> None:
    can_write = launcher.host.writable(root)
    if can_write is False:
        owner = launcher.settings.user or launcher.host.user()
        who = getattr(owner, "user", owner)
        found.say(
            Level.FAIL,
            "results",
            f"{root} cannot be written by the user {who}, the user of the jobs",
            f"on the engine's host: sudo mkdir -p {root} && sudo chown {who} {root}; or choose another folder",
        )
    elif can_write is None and not launcher.host.exists(root):
        found.say(Level.FAIL, "results", f"{root} does not exist on the engine's host", "create it there")
    elif can_write is None and not launcher.settings.user:
        found.say(
            Level.WARN,
            "results",
            f"{root} is there; its files will belong to the image's user, because your user there is not known here",
            "set the user of the block to your uid:gid on the engine's host",
        )
    else:
        found.say(Level.OK, "results", f"{root} can be written")


def _own_paths(found: Findings, launcher: Launcher, request: JobRequest) -> None:
    """Relative paths lie in the folder that the image begins in, which belongs to root as a rule."""
    if request.workdir or request.specs is not None or request.args is not None:
        return
    relative = [path for path in (*request.inputs, *request.outputs) if not path.startswith("/")]
    owner = launcher.runs_as(request) if relative else None
    if owner is None or owner.user.partition(":")[0] in ("0", "root"):
        return
    found.say(
        Level.FAIL,
        "paths",
        f"{', '.join(relative)}: relative to the folder that the image begins in, which the user {owner.user}, whom "
        "the job runs as, can hardly write",
        f"write whole paths, for example /tmp/{relative[0]}, or name a folder of yours with --workdir (workdir=...)",
    )


def _network(found: Findings, launcher: Launcher) -> None:
    name = render.network(launcher.settings)
    if name in BUILT_IN_NETWORKS or name.startswith("container:"):
        return
    try:
        launcher.engine.ask("GET", f"/networks/{name}")
    except Refused as error:
        if error.status != NOT_FOUND:
            raise
        found.say(Level.OK, "network", f"{name} is not there yet; the launch makes it")
        return
    found.say(Level.OK, "network", name)


def _shape(found: Findings, request: JobRequest, info: Mapping[str, Any]) -> None:
    wanted, memory, cpus = request.resources, int(info.get("MemTotal") or 0), int(info.get("NCPU") or 0)
    if wanted.cpus and cpus and wanted.cpus > cpus:
        found.say(
            Level.FAIL, "cpus", f"{wanted.cpus} were asked for, and the engine's host has {cpus}", "ask for fewer"
        )
    if wanted.memory and memory and wanted.memory > memory:
        amounts = f"{wanted.memory / _GIB:.1f} GiB were asked for, and the engine's host has {memory / _GIB:.1f} GiB"
        found.say(Level.FAIL, "memory", amounts, "ask for less")
    if wanted.shm and memory and wanted.shm > memory / 2:
        message = (
            f"{wanted.shm / _GIB:.1f} GiB of shared memory is more than half of the host's {memory / _GIB:.1f} GiB"
        )
        found.say(Level.WARN, "shm", message, "ask for less unless the job really fills it")


# -- GPUs --------------------------------------------------------------------------------------------------------------


def _gpus(found: Findings, launcher: Launcher, request: JobRequest) -> None:
    wanted, info = wanted_gpus(request, launcher.settings), launcher.info()
    if not devices.has_runtime(info):
        found.say(Level.FAIL, "gpus", "the engine does not know NVIDIA's runtime", TOOLKIT_REMEDY)
        return
    try:
        seen = launcher.look_at_gpus(request.image)
    except Refused as error:
        if is_in_doubt(error):
            raise
        found.say(Level.FAIL, "gpus", f"a container cannot be given GPUs: {error.said}", TOOLKIT_REMEDY)
        return
    if seen is None:
        message = "not looked at: no image that is there can run nvidia-smi"
        found.say(Level.WARN, "gpus", message, "pull the job's image, or check nvidia-smi on the engine's host")
        return
    chosen = _count(found, launcher, wanted, seen)
    _architecture(found, request, [gpu for gpu in seen.gpus if gpu.number in chosen])


def _count(found: Findings, launcher: Launcher, wanted: int, seen: gpus.Seen) -> list[str]:
    """The GPUs that a launch would choose now; none when there are too few."""
    ids = gpus.candidates(seen, launcher.settings.gpu_ids)
    if not ids or wanted > len(ids):
        found.say(
            Level.FAIL,
            "gpus",
            f"{'all' if wanted < 0 else wanted} were asked for, and the engine's host has {len(ids)}",
            "ask for fewer, or choose another target",
        )
        return []
    reserved = launcher.reserved_gpus(ids, seen)
    in_use = launcher.gpus_in_use(ids, reserved, seen)
    if why := gpus.shortage(wanted, ids, in_use):
        found.say(Level.FAIL, "gpus", why, gpus.BUSY_REMEDY)
        return []
    chosen = gpus.choose(wanted, without(ids, in_use), reserved)
    by_number = {gpu.number: gpu for gpu in seen.gpus}
    unknown = [name for name in chosen if name not in by_number]
    if unknown:
        found.say(Level.FAIL, "gpus", f"there is no GPU {', '.join(unknown)}", f"there are {', '.join(by_number)}")
        return []
    names = ", ".join(f"{name} ({by_number[name].name})" for name in chosen)
    taken = chosen if gpu_locks.EVERY in reserved else sorted(set(chosen) & set(reserved))
    if taken:
        message = f"{names} chosen; {', '.join(taken)} is in use by another job, for which this one will wait"
        found.say(Level.WARN, "gpus", message, "continue to wait in line, or choose another target")
    else:
        found.say(Level.OK, "gpus", f"{names} chosen, driver {by_number[chosen[0]].driver}")
    return chosen


def _architecture(found: Findings, request: JobRequest, chosen: Sequence[gpus.Gpu]) -> None:
    """Kernels that were not built for a GPU do not run on it; some images say what they were built for."""
    model = load_catalog().models.get(request.model or "")
    built_for = {_plain(name) for name in (model.gpu_architectures if model else ())}
    for gpu in chosen if built_for else ():
        own = f"sm_{gpu.capability.replace('.', '')}"
        if _plain(own) not in built_for:
            known = ", ".join(sorted(built_for, key=lambda name: int(name.partition("_")[2])))
            message = f"GPU {gpu.number} ({gpu.name}) is {own}, and {request.model} is built for {known}"
            found.say(Level.FAIL, "gpus", message, "use another image, or a platform with such GPUs")


def _plain(name: str) -> str:
    """sm_90a and sm_103f are sm_90 and sm_103 to us."""
    match = re.match(r"(?:sm_)?(\d+)", name)
    return f"sm_{match[1]}" if match else name


# -- the host ----------------------------------------------------------------------------------------------------------


def versions(launcher: Launcher) -> dict[str, str]:
    """Driver, CUDA and container toolkit; what cannot be told is empty."""
    seen = launcher.looked or launcher.seen_gpus(None)
    toolkit = re.search(r"version:?\s+v?([\d.]+)", launcher.host.toolkit())
    driver = seen.gpus[0].driver if seen and seen.gpus else ""
    return {"driver": driver, "cuda": seen.cuda if seen else "", "container_toolkit": toolkit[1] if toolkit else ""}


def disk_free(launcher: Launcher) -> dict[str, int]:
    """Free bytes where the job writes: the results folder, else the engine's own disk, which has its volumes too."""
    place = launcher.settings.results_root or str(launcher.info().get("DockerRootDir") or "")
    free = launcher.host.free(place) if place else None
    return {} if free is None else {place: free}
