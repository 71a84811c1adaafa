"""A job as a batch job of a workspace: its name, labels and everything that Lepton is asked for. Pure.

What only the workspace knows is filled in when the job is sent: the node group's id, the shape for a number of GPUs,
mounts that are found, and the pull secret.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from prefect_tao.jobs.describing import command_text, spec_lines
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName, is_our_name
from prefect_tao.jobs.platform import Rendered
from prefect_tao.jobs.request import ALL_GPUS, JobRequest
from prefect_tao.platforms.base import GRACE_SECONDS, job_variables
from prefect_tao.platforms.container_jobs import wanted_gpus
from prefect_tao.platforms.lepton.settings import LeptonSettings
from prefect_tao.platforms.markers import read_object
from prefect_tao.runner.entrypoint import PLAN_FILE, Entrypoint, entrypoint_for, input_locations
from prefect_tao.runner.inside.schemes import bucket_results, is_local, local_path

BODY = "job.json"
MASTER_PORT = 29400
# One argument of a program may have 128 KiB, and the whole job has to fit into what the service keeps of it.
MOST_SCRIPT = 100_000
_MIB = 1024**2

OURS, KEY, DIGEST = "prefect-tao", "prefect-tao-key", "prefect-tao-digest"
# A label holds few characters; what handles need beside it travels as a variable of the job.
FACTS = "TAO_HANDLE"
# Lepton gives each worker its place; the runner and TAO's launchers know it by other names.
_WHO = """export TAO_NATIVE_ID="${LEPTON_JOB_SERVICE_PREFIX:-$LEPTON_JOB_NAME}"
export TAO_RESTARTS="${LEPTON_JOB_FAILURE_COUNT:-0}"
"""
_MEET = f"""export NODE_RANK="${{LEPTON_JOB_WORKER_INDEX:-0}}" MASTER_PORT="${{MASTER_PORT:-{MASTER_PORT}}}"
export MASTER_ADDR="$LEPTON_JOB_SERVICE_PREFIX-0.$LEPTON_SUBDOMAIN"
export WORLD_SIZE="$LEPTON_JOB_TOTAL_WORKERS" NNODES="$LEPTON_JOB_TOTAL_WORKERS"
"""


def site(settings: LeptonSettings) -> str:
    """The workspace, whose id is its own for good."""
    return f"Lepton workspace {settings.workspace_id}"


def results_of(key: str, settings: LeptonSettings) -> str:
    """Where the results of a key are, for people and handles; empty where they end with their job."""
    if settings.results_root:
        return f"{local_path(settings.results_root).rstrip('/')}/{key}"
    if settings.s3_bucket_name:
        return bucket_results(settings.s3_bucket_name, key)
    return ""


def wanted_nodes(request: JobRequest, settings: LeptonSettings) -> int:
    """How many workers the job has."""
    return request.resources.nodes if "nodes" in request.resources.model_fields_set else settings.nodes


def paths_of(request: JobRequest, settings: LeptonSettings) -> list[str]:
    """The paths inside the container that only a mount can hold: the results folder, and inputs that are paths."""
    inputs = [local_path(uri) for uri, _ in input_locations(request).values() if is_local(uri)]
    root = [local_path(settings.results_root).rstrip("/")] if settings.results_root else []
    return [*root, *sorted({path for path in inputs if path.startswith("/")})]


# -- rendering ---------------------------------------------------------------------------------------------------------


def render(request: JobRequest, key: str, attempt: int, settings: LeptonSettings, target: str) -> Rendered:
    """The body of the create request, and the plan where that is too large for it. Raises InvalidInput."""
    if not request.image:
        raise InvalidInput("no image was named, and Lepton runs containers", "name one with --image (image=...)")
    entrypoint = entrypoint_for(request, grace=GRACE_SECONDS)
    script, files = _script(entrypoint, key, attempt, wanted_nodes(request, settings) > 1, settings)
    body = create_body(request, key, attempt, settings, script)
    body["spec"]["envs"].append({"name": "TAO_TARGET", "value": target})
    files[BODY] = json.dumps(body, sort_keys=True).encode()
    return Rendered(request, key, attempt, _text(request, key, attempt, body, settings, target), files)


def _script(
    entrypoint: Entrypoint, key: str, attempt: int, several: bool, settings: LeptonSettings
) -> tuple[str, dict[str, bytes]]:
    """What each worker runs; a plan that does not fit is a file that is put beside the results before the launch."""
    start = _WHO + (_MEET if several else "")
    script = start + entrypoint.script()
    if len(script.encode()) <= MOST_SCRIPT:
        return script, {}
    if settings.results_root or not settings.s3_bucket_name:
        raise InvalidInput(
            f"the spec and the command need {len(script.encode()) // 1000} KB, and Lepton takes "
            f"{MOST_SCRIPT // 1000} KB with a job",
            "give the block an S3 bucket for results (S3_BUCKET_NAME), through which a large spec can travel",
        )
    elsewhere = Entrypoint(entrypoint.mode, {"at": plan_uri(key, attempt, settings)})
    return start + elsewhere.script(), {PLAN_FILE: json.dumps(entrypoint.plan).encode()}


def plan_uri(key: str, attempt: int, settings: LeptonSettings) -> str:
    """Where a plan lies that is too large for a command."""
    return f"{results_of(key, settings)}/attempts/{attempt}.plan.json"


def create_body(request: JobRequest, key: str, attempt: int, settings: LeptonSettings, script: str) -> dict[str, Any]:
    """What Lepton is asked to create, without what only the workspace knows. Raises InvalidInput."""
    nodes, name = wanted_nodes(request, settings), str(JobName(key, attempt))
    spec: dict[str, Any] = {
        "container": {"image": request.image, "command": ["/bin/sh", "-c", script]},
        "completions": nodes,
        "parallelism": nodes,
        "envs": _envs(request, key, attempt, settings),
        "mounts": [parse_mount(text) for text in settings.mounts],
        "ttl_seconds_after_finished": settings.ttl_seconds_after_finished,
        "log": {"enable_collection": True, "save_termination_logs": True},
        "image_pull_secrets": [settings.image_pull_secret] if settings.image_pull_secret else [],
    }
    if nodes > 1:
        spec["intra_job_communication"] = True
    if settings.resource_shape:
        spec["resource_shape"] = settings.resource_shape
    if request.resources.shm:
        spec["shared_memory_size"] = -(-request.resources.shm // _MIB)
    if settings.reservation:
        spec["reservation_config"] = {"reservation_id": settings.reservation}
    queue: dict[str, Any] = {"priority_class": settings.queue_priority} if settings.queue_priority else {}
    queue |= {"can_be_preempted": True} if settings.can_be_preempted else {}
    if queue:
        spec["queue_config"] = queue
    labels = {OURS: "true", KEY: key, DIGEST: request.digest}
    return {"metadata": {"id": name, "labels": labels, "visibility": "private"}, "spec": spec}


def _envs(request: JobRequest, key: str, attempt: int, settings: LeptonSettings) -> list[dict[str, Any]]:
    facts = {"results": results_of(key, settings), "digest": request.digest, "labels": request.labels}
    own = {FACTS: json.dumps(facts, sort_keys=True), "TAO_SITE": site(settings)}
    root = local_path(settings.results_root).rstrip("/") if settings.results_root else None
    own |= {"TAO_CLAIM": "1"} if facts["results"] else {}
    if root or not settings.s3_bucket_name:
        own["TAO_END_FILE"] = "/dev/stdout"  # a mount cannot be looked into from here, but the log can
    else:
        storage = {
            "S3_BUCKET_NAME": settings.s3_bucket_name,
            "S3_ENDPOINT_URL": settings.s3_endpoint_url,
            "CLOUD_REGION": settings.cloud_region,
        }
        own |= {name: value for name, value in storage.items() if value}
    if gpus := max(wanted_gpus(request, settings), 0):
        own |= {"NUM_GPU_PER_NODE": str(gpus), "NPROC_PER_NODE": str(gpus)}
    plain = job_variables(key, attempt, {**settings.env, **request.env}, root, **own)
    for name in plain:
        if name in RESERVED:
            raise InvalidInput(f"Lepton sets the variable {name} itself", "leave it out of the job's environment")
    return [
        *({"name": name, "value": value} for name, value in sorted(plain.items()) if name not in request.secrets),
        *(
            {"name": name, "value_from": {"secret_name_ref": secret_name(key, attempt, name)}}
            for name in dict.fromkeys(request.secrets)
        ),
    ]


RESERVED = {
    "LEPTON_WORKSPACE_ID",
    "LEPTON_DEPLOYMENT_NAME",
    "LEPTON_JOB_NAME",
    "LEPTON_RESOURCE_ACCELERATOR_TYPE",
    "LEPTON_WORKSPACE_ORIGIN_URL",
}


def secret_name(key: str, attempt: int, name: str) -> str:
    """What a secret of one attempt is called in the workspace, where it stays until the attempt is over."""
    return f"{JobName(key, attempt)}.{name}"


def name_of_secret(name: str) -> str:
    """The variable that a workspace secret of ours becomes in its job."""
    return name.partition(".")[2]


def owner_of_secret(name: str) -> str | None:
    """The job that a workspace secret of ours belongs to; None for one that is not ours."""
    job, dot, _ = name.partition(".")
    return job if dot and is_our_name(job) else None


def parse_mount(text: str) -> dict[str, str]:
    """The mount that volume:/path:/inside means; the kind of the volume is added when it is known."""
    volume, *rest = text.split(":")
    source, inside = (rest + rest)[:2] if rest else ("", "")
    if not volume or len(rest) > 2 or not source.startswith("/") or not inside.startswith("/"):
        raise InvalidInput(f"{text!r} is no mount", "write volume:/path or volume:/path:/inside")
    return mount(volume, posixpath.normpath(source), posixpath.normpath(inside))


def mount(volume: str, path: str, inside: str) -> dict[str, str]:
    """A folder of a volume of the node group, at a path of the container."""
    return {"from": volume, "path": path, "mount_path": inside}


# -- showing -----------------------------------------------------------------------------------------------------------


def _text(
    request: JobRequest, key: str, attempt: int, body: Mapping[str, Any], settings: LeptonSettings, target: str
) -> str:
    shown = json.loads(json.dumps(body))
    shown["spec"]["container"]["command"] = ["/bin/sh", "-c", "(the runner, which runs the command below)"]
    lines = [f"# {JobName(key, attempt)}: a job in the workspace {settings.workspace_id} on {target}"]
    lines += _chosen_later(request, body, settings)
    lines += [f"# secrets by name: {', '.join(request.secrets)}"] if request.secrets else []
    lines += [*spec_lines(request), "# the command:", *(f"#   {line}" for line in command_text(request).splitlines())]
    return "\n".join([*lines, json.dumps(shown, indent=2, sort_keys=True, ensure_ascii=False), ""])


def _chosen_later(request: JobRequest, body: Mapping[str, Any], settings: LeptonSettings) -> list[str]:
    """What is not in the text yet, and by which rule it is chosen when the job is sent."""
    gpus = wanted_gpus(request, settings)
    amount = "all GPUs of a node" if gpus == ALL_GPUS else f"{gpus} GPUs" if gpus else "no GPU"
    later = [f"node group: {settings.node_group or 'the only one there is'}"]
    later += [] if settings.resource_shape else [f"shape: the smallest with {amount}"]
    if not settings.mounts and paths_of(request, settings):
        later.append("mount: the node group's storage that holds " + ", ".join(paths_of(request, settings)))
    later += [] if settings.image_pull_secret else ["pull secret: made from NGC_KEY where the image is on nvcr.io"]
    return ["# chosen when it is sent:", *(f"#   {line}" for line in later)]


# -- reading -----------------------------------------------------------------------------------------------------------


def handle_of(target: str, raw: Mapping[str, Any]) -> JobHandle | None:
    """The handle of a job as Lepton lists it; None for one that is not ours."""
    metadata = raw.get("metadata") or {}
    labels, name = metadata.get("labels") or {}, str(metadata.get("name") or "")
    if OURS not in labels or not is_our_name(name):
        return None
    key, attempt = JobName.parse(name)
    envs = (raw.get("spec") or {}).get("envs") or []
    text = next((one.get("value") for one in envs if one.get("name") == FACTS), None)
    told = {field: value for field, value in (read_object(text) or {}).items() if field in _TOLD}
    facts = {"target": target, "key": key, "attempt": attempt, "native_id": str(metadata.get("id") or "")}
    try:
        return JobHandle.model_validate({**facts, **told})
    except ValidationError:  # written by another version
        return JobHandle.model_validate(facts)


_TOLD = ("results", "digest", "labels")
