"""A job as Kubernetes objects: the Job, the Secrets that carry its program and spec, the Service of its nodes. Pure."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.platform import Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.base import GRACE_SECONDS, job_variables
from prefect_tao.platforms.container_jobs import NGC, NGC_USER, wanted_gpus
from prefect_tao.platforms.kubernetes.pod_volumes import HOME, SHM, WORK, mounts_of, results_mount, volumes
from prefect_tao.platforms.kubernetes.settings import KubernetesSettings
from prefect_tao.runner.entrypoint import entrypoint_for
from prefect_tao.runner.inside.configs import config_text
from prefect_tao.runner.inside.schemes import bucket_results

Manifest = dict[str, Any]
LABEL = "prefect-tao/"
KEY, ATTEMPT, DIGEST = (f"{LABEL}{name}" for name in ("key", "attempt", "digest"))
# Annotations: what is too long or too free for a label, and how far a launcher came.
RESULTS, GIVEN, CREATED, RESUMED, BAD_NODES = (
    f"{LABEL}{name}" for name in ("results", "labels", "created", "resumed", "bad-nodes")
)
MANAGED = {"app.kubernetes.io/managed-by": "prefect-tao"}
QUEUE = "kueue.x-k8s.io/queue-name"
INDEX = "batch.kubernetes.io/job-completion-index"
OWNER_UID = "batch.kubernetes.io/controller-uid"
SITE, TARGET = "prefect-tao/site", "prefect-tao/target"
MAIN = "main"
JOB_FILE, SERVICE_FILE, REQUEST_FILE, SCRIPT_FILE = "job.json", "service.json", "request.json", "start.sh"
SECRETS = "secrets.json"
# A Secret holds one MiB; the first one carries secrets and request too.
PIECE = 900_000
FIRST_PIECE = 600_000
MOST_REQUEST = 200_000
ENDED_FILE = "/dev/termination-log"
# No `$` in it: the kubelet has its own ideas of that. What is in the files it leaves alone.
# The first process of a container ignores every signal that it does not handle.
BOOT = f"trap 'exit 143' TERM; cat {HOME}/{SCRIPT_FILE}.* > {WORK}/{SCRIPT_FILE} && . {WORK}/{SCRIPT_FILE}"


def results_of(key: str, settings: KubernetesSettings) -> str:
    """Where the results of a key are, for people and handles; empty where they end with the Pod."""
    if root := results_mount(settings):
        return f"{root}/{key}"
    if settings.s3_bucket_name:
        return bucket_results(settings.s3_bucket_name, key)
    return ""


def render(request: JobRequest, key: str, attempt: int, settings: KubernetesSettings, target: str) -> Rendered:
    """The objects without secrets, and the text that becomes the Pod's program. Raises InvalidInput."""
    _check(request, settings)
    entrypoint = entrypoint_for(request, grace=GRACE_SECONDS)
    script = entrypoint.script().encode()
    job = job_manifest(request, key, attempt, settings, len(script))
    files = {
        JOB_FILE: json.dumps(job, sort_keys=True).encode(),
        SCRIPT_FILE: script,
        REQUEST_FILE: request.model_dump_json(exclude_unset=True).encode(),
    }
    if request.resources.nodes > 1:
        files[SERVICE_FILE] = json.dumps(service_manifest(key, attempt, settings), sort_keys=True).encode()
    return Rendered(request, key, attempt, _text(request, key, attempt, job, files, target), files)


def _check(request: JobRequest, settings: KubernetesSettings) -> None:
    if not request.image:
        raise InvalidInput("no image was named, and Kubernetes runs containers", "name one with --image (image=...)")
    if wanted_gpus(request, settings) < 0:
        raise InvalidInput("how many GPUs a node has is not known here", "say how many: --gpus 8")
    if root := results_mount(settings):
        if not root.startswith("/"):
            raise InvalidInput(
                f"the results folder {root!r} is not an absolute path", "give it as the Pod sees it: /results"
            )
        if not any(mount.is_above(root) for mount in mounts_of(settings)) and not settings.pod_template:
            raise InvalidInput(
                f"no volume is mounted at the results folder {root}, so results would end with the Pod",
                "name a volume claim (results_claim), or a mount such as nfs://SERVER/path:/results",
            )


# -- the Job -----------------------------------------------------------------------------------------------------------


def job_manifest(
    request: JobRequest, key: str, attempt: int, settings: KubernetesSettings, script_size: int
) -> Manifest:
    """The Job as it is created: suspended, until its Secrets are there."""
    name, nodes = str(JobName(key, attempt)), request.resources.nodes
    results = results_of(key, settings)
    labels = {**MANAGED, KEY: key, ATTEMPT: str(attempt), DIGEST: request.digest}
    spec: Manifest = {
        "suspend": True,
        "backoffLimit": 0,
        "parallelism": nodes,
        "completions": nodes,
        # A Pod that is taken away fails the Job, and the verdict decides on the next attempt. To ignore it would
        # start a second Pod in the same attempt.
        "podFailurePolicy": {
            "rules": [{"action": "FailJob", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
        },
        "podReplacementPolicy": "Failed",
        "template": _template(request, key, attempt, settings, labels, script_size),
    }
    if nodes > 1:
        spec["completionMode"] = "Indexed"
    if survives(results):
        spec["ttlSecondsAfterFinished"] = settings.ttl_seconds_after_finished
    annotations = {RESULTS: results, GIVEN: json.dumps(request.labels, sort_keys=True)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": settings.namespace, "labels": labels, "annotations": annotations},
        "spec": spec,
    }


# What makes a Job safer where the cluster has it, and can be left out of one where it has not.
_NEWER = ("podFailurePolicy", "podReplacementPolicy")


def without_unknown(job: Mapping[str, Any], said: str) -> Manifest | None:
    """The Job without what an older cluster refuses by these words; None where they are about something else."""
    unknown = [name for name in _NEWER if f'unknown field "spec.{name}"' in said and name in job["spec"]]
    kept = {name: value for name, value in job["spec"].items() if name not in unknown}
    return {**job, "spec": kept} if unknown else None


def survives(results: str) -> bool:
    """Whether launchers can read results from outside, also when the cluster has forgotten the job."""
    return "://" in results


def _template(
    request: JobRequest,
    key: str,
    attempt: int,
    settings: KubernetesSettings,
    labels: Mapping[str, str],
    script_size: int,
) -> Manifest:
    name = str(JobName(key, attempt))
    own_volumes, own_places = _volumes(request, name, settings, script_size)
    container: Manifest = {
        "name": MAIN,
        "image": request.image,
        "command": ["/bin/sh", "-c", BOOT],
        "env": _env(request, key, attempt, settings),
        "resources": _resources(request, settings),
        "volumeMounts": own_places,
        "terminationMessagePath": ENDED_FILE,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    if settings.image_pull_policy:
        container["imagePullPolicy"] = settings.image_pull_policy
    pod: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": int(GRACE_SECONDS) + 10,
        "containers": [container],
        "volumes": own_volumes,
        **placement(settings),
    }
    if request.resources.nodes > 1:
        pod["subdomain"] = name
    if settings.active_deadline_seconds:
        # On the Pod and not on the Job: then its time begins on a node, and its log is kept.
        pod["activeDeadlineSeconds"] = settings.active_deadline_seconds
    if settings.ngc_pull_secret:
        pod["imagePullSecrets"] = [*pod.get("imagePullSecrets", ()), {"name": pull_secret_name(name)}]
    ours = {"metadata": {"labels": dict(labels), "annotations": dict(settings.annotations)}, "spec": pod}
    merged: Manifest = merged_template(settings.pod_template, ours)
    return merged


def placement(settings: KubernetesSettings) -> Manifest:
    """Where the Pod may run, and as whom."""
    context = {"runAsUser": settings.run_as_user, "fsGroup": settings.fs_group}
    pull = [{"name": settings.image_pull_secret}] if settings.image_pull_secret else None
    given = {
        "nodeSelector": settings.node_selector,
        "tolerations": [_toleration(text) for text in settings.tolerations],
        "priorityClassName": settings.priority_class,
        "serviceAccountName": settings.service_account,
        # A training has no business with the cluster's API, unless an account was chosen for it.
        "automountServiceAccountToken": None if settings.service_account else False,
        "imagePullSecrets": pull,
        "securityContext": {name: value for name, value in context.items() if value is not None},
    }
    return {name: value for name, value in given.items() if value not in (None, {}, [])}


def _toleration(text: str) -> Manifest:
    """Of a taint as kubectl writes it."""
    taint, _, effect = text.partition(":")
    key, has_value, value = taint.partition("=")
    found = {"key": key, "operator": "Equal", "value": value} if has_value else {"key": key, "operator": "Exists"}
    return {**found, **({"effect": effect} if effect else {})}


def _resources(request: JobRequest, settings: KubernetesSettings) -> Manifest:
    wanted, amounts = request.resources, {}
    if wanted.cpus:
        amounts["cpu"] = str(wanted.cpus)
    if wanted.memory:
        amounts["memory"] = str(wanted.memory)
    gpus = wanted_gpus(request, settings)
    limits = {**amounts, **({settings.gpu_resource: str(gpus)} if gpus else {})}
    return {name: value for name, value in {"requests": amounts, "limits": limits}.items() if value}


def _volumes(
    request: JobRequest, name: str, settings: KubernetesSettings, script_size: int
) -> tuple[list[Manifest], list[Manifest]]:
    # With a group the kubelet lets that group read; without one only the Pod's own user does, whoever that is.
    mode = 0o440 if settings.fs_group is not None else 0o444
    parts = [{"secret": {"name": one}} for one in secret_names(name, script_size)]
    found: list[Manifest] = [
        {"name": "job", "projected": {"sources": parts, "defaultMode": mode}},
        {"name": "work", "emptyDir": {}},
    ]
    places: list[Manifest] = [
        {"name": "job", "mountPath": HOME, "readOnly": True},
        {"name": "work", "mountPath": WORK},
    ]
    if request.resources.shm:
        found.append({"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": str(request.resources.shm)}})
        places.append({"name": "shm", "mountPath": SHM})
    sources, mounted = volumes(mounts_of(settings))
    return found + sources, places + mounted


def _env(request: JobRequest, key: str, attempt: int, settings: KubernetesSettings) -> list[Manifest]:
    own = {"TAO_END_FILE": ENDED_FILE}
    root = results_mount(settings)
    if not survives(results_of(key, settings)):
        own["TAO_STATUS_IN_LOG"] = "1"  # files in the Pod and on volumes are not seen from outside
    if not root:
        storage = {
            "S3_BUCKET_NAME": settings.s3_bucket_name,
            "S3_ENDPOINT_URL": settings.s3_endpoint_url,
            "CLOUD_REGION": settings.cloud_region,
        }
        own |= {name: value for name, value in storage.items() if value}
        own["TAO_WORK_DIR"] = WORK
    if request.secrets:
        own |= {"TAO_SECRETS_FILE": f"{HOME}/{SECRETS}", "TAO_SECRETS_KEEP": "1"}
    if settings.run_as_user:
        own |= {"HOME": WORK, "USER": "tao", "LOGNAME": "tao"}
    if not wanted_gpus(request, settings):
        own["NVIDIA_VISIBLE_DEVICES"] = "void"  # a node whose default runtime is NVIDIA's would show it all GPUs
    if request.resources.nodes > 1:
        own |= _rendezvous(str(JobName(key, attempt)), request, settings)
    values = job_variables(key, attempt, {**settings.env, **request.env}, root, **own)
    # The kubelet takes `$$` for `$` and replaces `$(NAME)`; users mean what they write.
    plain = [{"name": name, "value": value.replace("$", "$$")} for name, value in sorted(values.items())]
    told = {"TAO_NATIVE_ID": f"metadata.labels['{OWNER_UID}']"}
    told |= {"TAO_SITE": f"metadata.annotations['{SITE}']", "TAO_TARGET": f"metadata.annotations['{TARGET}']"}
    if request.resources.nodes > 1:
        told["NODE_RANK"] = f"metadata.annotations['{INDEX}']"
    return plain + [{"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in told.items()]


def _rendezvous(name: str, request: JobRequest, settings: KubernetesSettings) -> dict[str, str]:
    """What TAO's entrypoints and torchrun read; the rank is the Pod's own."""
    nodes, gpus = str(request.resources.nodes), str(wanted_gpus(request, settings))
    given = {
        "WORLD_SIZE": nodes,
        "NNODES": nodes,
        "NUM_GPU_PER_NODE": gpus,
        "NPROC_PER_NODE": gpus,
        "MASTER_ADDR": f"{name}-0.{name}",
        "MASTER_PORT": str(settings.master_port),
    }
    port = request.env.get("MASTER_PORT") or settings.env.get("MASTER_PORT")
    return {**given, "MASTER_PORT": port} if port else given


def avoiding(job: Manifest, nodes: Sequence[str]) -> Manifest:
    """The Job, kept off nodes that have just failed one; what the block says of nodes goes on to hold."""
    if not nodes:
        return job
    away = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    given = job["spec"]["template"]["spec"].get("affinity") or {}
    asked = given.get("nodeAffinity") or {}
    required = asked.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    # One of the terms must hold, so each of them gets it.
    terms = [
        {**term, "matchFields": [*term.get("matchFields", ()), *away]}
        for term in required.get("nodeSelectorTerms", [{}])
    ]
    nodes_ok = {**asked, "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    pod = {**job["spec"]["template"]["spec"], "affinity": {**given, "nodeAffinity": nodes_ok}}
    return {**job, "spec": {**job["spec"], "template": {**job["spec"]["template"], "spec": pod}}}


def merged_template(given: Mapping[str, Any], ours: Mapping[str, Any]) -> Any:
    """The given template and ours in one. Where both say something, ours counts; named parts of lists are matched."""
    merged = dict(given)
    for name, value in ours.items():
        there = merged.get(name)
        if isinstance(there, Mapping) and isinstance(value, Mapping):
            merged[name] = merged_template(there, value)
        elif isinstance(there, list) and isinstance(value, list):
            merged[name] = _merged_list(there, value)
        else:
            merged[name] = value
    return merged


def _merged_list(given: list[Any], ours: list[Any]) -> list[Any]:
    named = {one["name"]: one for one in given if isinstance(one, Mapping) and "name" in one}
    own = [
        merged_template(named[one["name"]], one) if isinstance(one, Mapping) and one.get("name") in named else one
        for one in ours
    ]
    known = {one["name"] for one in ours if isinstance(one, Mapping) and "name" in one}
    return own + [one for one in given if not (isinstance(one, Mapping) and one.get("name") in known)]


# -- what comes with it ------------------------------------------------------------------------------------------------


def secret_names(name: str, script_size: int) -> list[str]:
    """The Secrets of a job: one, and further ones where its program and spec do not fit into that."""
    if script_size <= FIRST_PIECE:
        return [name]
    return [name, *(f"{name}-{number}" for number in range(1, -(-script_size // PIECE) + 1))]


def secret_manifests(
    name: str, namespace: str, owner: Mapping[str, Any], files: Mapping[str, bytes], secrets: Mapping[str, str]
) -> list[Manifest]:
    """The Secrets, owned by the Job `owner`, so that they go with it."""
    script, request = files[SCRIPT_FILE], files[REQUEST_FILE]
    names = secret_names(name, len(script))
    size = FIRST_PIECE if len(names) == 1 else PIECE
    pieces = [script[start : start + size] for start in range(0, len(script), size)]
    first = {SECRETS: json.dumps(dict(secrets)).encode()}
    if len(request) <= MOST_REQUEST:
        first[REQUEST_FILE] = request
    numbered = [{f"{SCRIPT_FILE}.{number:03}": piece} for number, piece in enumerate(pieces)]
    held = [{**first, **numbered[0]}] if len(names) == 1 else [first, *numbered]
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": _owned(one, namespace, owner),
            "data": {key: base64.b64encode(data).decode() for key, data in parts.items()},
        }
        for one, parts in zip(names, held, strict=True)
    ]


def pull_secret_name(name: str) -> str:
    """The Secret that a job pulls its image with."""
    return f"{name}-pull"


def pull_secret_manifest(name: str, namespace: str, owner: Mapping[str, Any], ngc_key: str) -> Manifest:
    """A login at NVIDIA's registry, as the kubelet reads it."""
    login = {NGC: {"auth": base64.b64encode(f"{NGC_USER}:{ngc_key}".encode()).decode()}}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/dockerconfigjson",
        "metadata": _owned(pull_secret_name(name), namespace, owner),
        "data": _logins(login),
    }


def no_logins() -> Manifest:
    """What such a Secret holds when its job is over; it may not be without."""
    return _logins({})


def _logins(auths: Manifest) -> Manifest:
    return {".dockerconfigjson": base64.b64encode(json.dumps({"auths": auths}).encode()).decode()}


def service_manifest(key: str, attempt: int, settings: KubernetesSettings) -> Manifest:
    """The headless Service by which the nodes of a job find each other, before all of them are ready too."""
    name = str(JobName(key, attempt))
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": settings.namespace, "labels": {**MANAGED, KEY: key}},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {"job-name": name},
            "ports": [{"name": "rendezvous", "port": settings.master_port}],
        },
    }


def owned_service(service: Manifest, owner: Mapping[str, Any]) -> Manifest:
    """The Service as it is created once the Job's uid is known."""
    meta = service["metadata"]
    return {**service, "metadata": {**_owned(meta["name"], meta["namespace"], owner), "labels": meta["labels"]}}


def _owned(name: str, namespace: str, owner: Mapping[str, Any]) -> Manifest:
    labels = {label: owner["metadata"]["labels"][label] for label in (*MANAGED, KEY, ATTEMPT)}
    return {"name": name, "namespace": namespace, "labels": labels, "ownerReferences": [owned_by(owner)]}


def owned_by(owner: Mapping[str, Any]) -> Manifest:
    """What an object says that goes with its owner."""
    meta = owner["metadata"]
    return {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": meta["name"], "uid": meta["uid"]}


# -- reading -----------------------------------------------------------------------------------------------------------


def handle_of(target: str, thing: Mapping[str, Any]) -> JobHandle | None:
    """The handle of a Job, or of what is left of one; None for what is not ours."""
    meta = thing["metadata"]
    labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
    try:
        name, given = JobName.parse(meta["name"]), json.loads(notes.get(GIVEN) or "{}")
    except (InvalidInput, ValueError):
        return None
    if (labels.get(KEY), labels.get(ATTEMPT)) != (name.key, str(name.attempt)):
        return None
    return JobHandle(
        target=target,
        key=name.key,
        attempt=name.attempt,
        native_id=str(notes.get(OWNER_UID) or meta.get("uid") or ""),
        results=notes.get(RESULTS, ""),
        digest=labels.get(DIGEST, ""),
        labels=given,
    )


def job_uid(pod: Mapping[str, Any]) -> str:
    """The uid of the Job that made a Pod, also of one that an orphaning delete took away."""
    labels = pod["metadata"].get("labels") or {}
    return str(labels.get(OWNER_UID) or labels.get("controller-uid") or "")  # below 1.27 there is only the short one


def handle_of_pod(target: str, pod: Mapping[str, Any], settings: KubernetesSettings) -> JobHandle | None:
    """The handle of a job of which only a Pod is left; None for what is not ours."""
    labels = pod["metadata"].get("labels") or {}
    try:
        name = JobName.parse(labels.get("job-name", ""))
    except InvalidInput:
        return None
    return JobHandle(
        target=target,
        key=name.key,
        attempt=name.attempt,
        native_id=job_uid(pod),
        results=results_of(name.key, settings),
        digest=labels.get(DIGEST, ""),
    )


# -- showing -----------------------------------------------------------------------------------------------------------


def _text(request: JobRequest, key: str, attempt: int, job: Manifest, files: Mapping[str, bytes], target: str) -> str:
    lines = [f"# {JobName(key, attempt)}: a Job on {target}"]
    lines += [f"# secrets by name: {', '.join(request.secrets)}"] if request.secrets else []
    lines += [f"# the command, run by bash: {line}" for line in request.command.split("\n")]
    if request.args is not None:
        lines.append(f"# its arguments: {json.dumps({**request.args, 'flags': request.flags})}")
    if request.specs is not None:
        spec = config_text(request.specs, request.config_format)
        lines += [f"# {{config_path}} is spec.{request.config_format}:", *(f"#   {line}" for line in spec.split("\n"))]
    objects = [job, *([json.loads(files[SERVICE_FILE])] if SERVICE_FILE in files else [])]
    return "\n".join(lines) + "\n" + yaml.safe_dump_all(objects, sort_keys=False, allow_unicode=True)
