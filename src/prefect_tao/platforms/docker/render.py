"""A job as a container: its name, labels and everything that the engine is asked for. Pure."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.platform import Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.base import GRACE_SECONDS, job_variables
from prefect_tao.platforms.container_jobs import wanted_gpus
from prefect_tao.platforms.docker import container_starter
from prefect_tao.platforms.docker.settings import DockerSettings
from prefect_tao.runner.entrypoint import PLAN_FILE, entrypoint_for, input_locations
from prefect_tao.runner.inside.configs import config_text
from prefect_tao.runner.inside.pointers import get_pointer
from prefect_tao.runner.inside.schemes import LOCAL_SCHEMES, bucket_results

HOME = "/prefect-tao"
NETWORK = "tao_default"
LOCKS = "/prefect-tao-gpus"
RESULTS_VOLUME = "tao-results"
VOLUME_RESULTS = "/results"
VOLUME_SCHEME = "volume://"
SHM = "/dev/shm"  # noqa: S108 - inside the container
BODY, REQUEST, PROGRAM = "container.json", "request.json", "runner.zip"

LABEL = "prefect-tao."
JOB, KEY, ATTEMPT, DIGEST, RESULTS, GPUS, LOCKED = (
    f"{LABEL}{name}" for name in ("job", "key", "attempt", "digest", "results", "gpus", "locked")
)
OWN = f"{LABEL}label."
PROBE = "tao-probe"

# The image's own entrypoint stays: those of NVIDIA prepare the libraries. bash runs the command where there is one.
BOOT = (
    f"if [ -e {HOME}/{container_starter.STOP} ]; then "
    f"rm -rf {HOME}/{container_starter.SECRETS}; exit {container_starter.STOPPED}; fi; "
    "command -v python3 >/dev/null || "
    "{ echo '[prefect-tao] the image has no python3, which the job needs'; exit 127; }; "
    f'exec python3 -S -c \'import sys; sys.path.insert(0, "{HOME}/{PROGRAM}"); '
    "import container_starter; container_starter.main()'"
)
_WILD = re.compile(r"[*?\[]")


def network(settings: DockerSettings) -> str:
    """The network that jobs join."""
    return settings.network or NETWORK


def root_inside(settings: DockerSettings) -> str | None:
    """Where results are kept in the container; None when they go to S3."""
    return settings.results_root or (None if settings.s3_bucket_name else VOLUME_RESULTS)


def results_of(key: str, settings: DockerSettings) -> str:
    """Where the results of a key are, for people and handles."""
    if settings.results_root:
        return f"{settings.results_root}/{key}"
    if settings.s3_bucket_name:
        return bucket_results(settings.s3_bucket_name, key)
    return f"{VOLUME_SCHEME}{RESULTS_VOLUME}/{key}"


def name_of(key: str, attempt: int) -> str:
    """The container's name."""
    return f"tao-job-{key}-{attempt}"


# -- rendering ---------------------------------------------------------------------------------------------------------


def render(request: JobRequest, key: str, attempt: int, settings: DockerSettings, target: str) -> Rendered:
    """The body of the create request, and the files that are put into the container. Raises InvalidInput."""
    if request.resources.nodes > 1:
        raise InvalidInput(
            f"Docker runs a job on one machine, and {request.resources.nodes} nodes were asked for",
            "use --nodes 1, or a target with several nodes such as slurm or kubernetes",
        )
    if not request.image:
        raise InvalidInput("no image was named, and Docker runs containers", "name one with --image (image=...)")
    body = create_body(request, key, attempt, settings)
    files = {
        PLAN_FILE: plan(request),
        BODY: json.dumps(body, sort_keys=True).encode(),
        REQUEST: request.model_dump_json(exclude_unset=True).encode(),
    }
    return Rendered(request, key, attempt, _text(request, key, attempt, body, settings, target), files)


def plan(request: JobRequest) -> bytes:
    """What the runner is told to do."""
    return json.dumps(entrypoint_for(request, grace=GRACE_SECONDS).plan).encode()


def create_body(request: JobRequest, key: str, attempt: int, settings: DockerSettings) -> dict[str, Any]:
    """What the engine is asked to create. GPUs and the user are added when the engine's host is known."""
    wanted = request.resources
    host: dict[str, Any] = {
        "Mounts": _mounts(request, settings),
        "NetworkMode": network(settings),
        "AutoRemove": settings.auto_remove,
        "Tmpfs": {path: "" for path in settings.tmpfs if path != SHM or not wanted.shm},
    }
    if wanted.shm:
        host["ShmSize"] = wanted.shm
    if wanted.memory:
        host |= {"Memory": wanted.memory, "MemorySwap": wanted.memory}
    if wanted.cpus:
        host["NanoCpus"] = wanted.cpus * 1_000_000_000
    return {
        "Image": request.image,
        "Cmd": ["/bin/sh", "-c", BOOT],
        "Env": [f"{name}={value}" for name, value in sorted(_env(request, key, attempt, settings).items())],
        "Labels": _labels(request, key, attempt, settings),
        "HostConfig": host,
    }


def _env(request: JobRequest, key: str, attempt: int, settings: DockerSettings) -> dict[str, str]:
    own: dict[str, str] = {}
    root = root_inside(settings)
    if not root:
        storage = {
            "S3_BUCKET_NAME": settings.s3_bucket_name,
            "S3_ENDPOINT_URL": settings.s3_endpoint_url,
            "CLOUD_REGION": settings.cloud_region,
        }
        own = {name: value for name, value in storage.items() if value}
    if not wanted_gpus(request, settings):
        own["NVIDIA_VISIBLE_DEVICES"] = "void"  # else an engine whose default is NVIDIA's runtime gives it all GPUs
    return job_variables(key, attempt, {**settings.env, **request.env}, root, **own)


def _labels(request: JobRequest, key: str, attempt: int, settings: DockerSettings) -> dict[str, str]:
    return {
        **{f"{OWN}{name}": value for name, value in request.labels.items()},
        JOB: str(JobName(key, attempt)),
        KEY: key,
        ATTEMPT: str(attempt),
        DIGEST: request.digest,
        RESULTS: results_of(key, settings),
    }


def _mounts(request: JobRequest, settings: DockerSettings) -> list[dict[str, Any]]:
    """Results read-write, what the block mounts, and inputs read-only at their own paths."""
    mounts: dict[str, dict[str, Any]] = {}
    if settings.results_root:
        mounts[settings.results_root] = bind(settings.results_root, settings.results_root)
    elif not settings.s3_bucket_name:
        mounts[VOLUME_RESULTS] = volume(RESULTS_VOLUME, VOLUME_RESULTS)
    for text in settings.mounts:
        one = parse_mount(text)
        mounts[one["Target"]] = one
    for folder in _output_folders(request, settings):
        mounts[folder] = bind(folder, folder)
    inputs = sorted({path for uri, rule in input_locations(request).values() if (path := host_path(uri))})
    for path in inputs:
        if not any(_is_below(path, target) for target in mounts):
            mounts[path] = bind(path, path, read_only=True)
    return list(mounts.values())


def written_folders(request: JobRequest, settings: DockerSettings) -> list[str]:
    """The folders of the engine's host that the job writes to, beside what the block mounts."""
    return [*([settings.results_root] if settings.results_root else []), *_output_folders(request, settings)]


def _output_folders(request: JobRequest, settings: DockerSettings) -> list[str]:
    """Where the spec itself says that outputs go: a path that nothing mounts would end with the container."""
    root = root_inside(settings)
    if not root or not isinstance(request.outputs, dict):
        return []  # carried to S3, or copied to the results
    mounted = [root, *(parse_mount(text)["Target"] for text in settings.mounts)]
    tree, found = request.specs if request.specs is not None else request.args or {}, set()
    for key, rule in request.outputs.items():
        value = get_pointer(tree, key)
        if path := host_path(value) if isinstance(value, str) else None:
            found.add(posixpath.dirname(path) if rule.type == "file" else path)
    return sorted(path for path in found if not any(_is_below(path, target) for target in mounted))


def bind(source: str, target: str, read_only: bool = False) -> dict[str, Any]:
    """A path of the engine's host; never made by the engine, because it would belong to root."""
    return {"Type": "bind", "Source": source, "Target": target, "ReadOnly": read_only}


def volume(name: str, target: str, read_only: bool = False) -> dict[str, Any]:
    """A volume of the engine, made when it is first used."""
    return {"Type": "volume", "Source": name, "Target": target, "ReadOnly": read_only}


def parse_mount(text: str) -> dict[str, Any]:
    """The mount that /path, /path:/inside or /path:/inside:ro means. Raises InvalidInput."""
    source, *rest = text.split(":")
    target = rest[0] if rest else source
    mode = rest[1] if len(rest) > 1 else "rw"
    if len(rest) > 2 or mode not in ("ro", "rw") or not source.startswith("/") or not target.startswith("/"):
        raise InvalidInput(f"{text!r} is no mount", "write /path, /path:/inside or /path:/inside:ro")
    return bind(posixpath.normpath(source), posixpath.normpath(target), mode == "ro")


def host_path(uri: str) -> str | None:
    """The path on the engine's host that an input needs; None for what is fetched from elsewhere."""
    scheme, marker, rest = uri.partition("://")
    if marker and scheme not in LOCAL_SCHEMES:
        return None
    path = "/" + rest.lstrip("/") if marker else uri
    if not path.startswith("/"):
        return None
    if wild := _WILD.search(path):
        path = posixpath.dirname(path[: wild.start()] + "x")
    return posixpath.normpath(path)


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


# -- showing -----------------------------------------------------------------------------------------------------------


def _text(
    request: JobRequest, key: str, attempt: int, body: Mapping[str, Any], settings: DockerSettings, target: str
) -> str:
    host, gpus = body["HostConfig"], wanted_gpus(request, settings)
    words = [f"--name {name_of(key, attempt)}", f"--network {host['NetworkMode']}"]
    words += ["--rm"] if host["AutoRemove"] else []
    words += [f"--gpus {'all' if gpus < 0 else gpus}"] if gpus else []
    words += [f"--memory {host['Memory']}"] if "Memory" in host else []
    words += [f"--cpus {request.resources.cpus}"] if request.resources.cpus else []
    words += [f"--shm-size {host['ShmSize']}"] if "ShmSize" in host else []
    words += [f"--tmpfs {path}" for path in host["Tmpfs"]]
    words += [f"--mount {_mount_text(mount)}" for mount in host["Mounts"]]
    words += [f"--env {shlex.quote(pair)}" for pair in body["Env"]]
    words += [f"--label {shlex.quote(f'{name}={value}')}" for name, value in body["Labels"].items()]
    lines = [f"# {JobName(key, attempt)}: a container on {target}"]
    lines += ["# the ids of free GPUs are chosen when it is launched"] if gpus else []
    lines += [f"# secrets by name: {', '.join(request.secrets)}"] if request.secrets else []
    if request.specs is not None:
        spec = config_text(request.specs, request.config_format)
        lines += [f"# {{config_path}} is spec.{request.config_format}:", *(f"#   {line}" for line in spec.split("\n"))]
    arguments = "" if request.args is None else " " + json.dumps({**request.args, "flags": request.flags})
    run = " \\\n  ".join(
        ["docker run --detach", *words, str(request.image), f"/bin/bash -c {shlex.quote(request.command)}"]
    )
    return "\n".join([*lines, run + arguments, ""])


def _mount_text(mount: Mapping[str, Any]) -> str:
    read_only = ",readonly" if mount["ReadOnly"] else ""
    return shlex.quote(f"type={mount['Type']},source={mount['Source']},target={mount['Target']}{read_only}")


# -- reading -----------------------------------------------------------------------------------------------------------


def handle_of(target: str, native_id: str, labels: Mapping[str, str], site: str = "") -> JobHandle | None:
    """The handle of a container by its labels; None when they are not ours."""
    try:
        name = JobName.parse(labels[JOB])
    except (KeyError, InvalidInput):
        return None
    return JobHandle(
        target=target,
        key=name.key,
        attempt=name.attempt,
        native_id=native_id,
        site=site,
        results=labels.get(RESULTS, ""),
        digest=labels.get(DIGEST, ""),
        labels={name.removeprefix(OWN): value for name, value in labels.items() if name.startswith(OWN)},
    )


def gpu_ids(labels: Mapping[str, str]) -> list[str]:
    """The GPUs that a container of ours has or waits for."""
    return [part for part in labels.get(GPUS, "").split(",") if part]


def locks(labels: Mapping[str, str]) -> list[str]:
    """All names by which these are locked."""
    return gpu_ids(labels) + [part for part in labels.get(LOCKED, "").split(",") if part]


def with_user(body: dict[str, Any], user: str, groups: Sequence[str]) -> None:
    """Run as `user`, so that results belong to the one who launched; such a user needs a name and a home."""
    body["User"] = user
    body["HostConfig"]["GroupAdd"] = list(groups)
    given = {pair.partition("=")[0] for pair in body["Env"]}
    own = {"HOME": f"{HOME}/home", "USER": "tao", "LOGNAME": "tao"}
    body["Env"] += [f"{name}={value}" for name, value in own.items() if name not in given]
