"""A stand-in of a DGX Cloud Lepton workspace: what it keeps, what it refuses, and how its jobs live.

Written from what the real client sends and needs, and from what is known of the service: names are not unique, ids are
minted from them, a list that is paged ends with an empty page, jobs that are over are archived and lose their logs.
"""

from __future__ import annotations

import random
import re
import string
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lepton_pods import Worker

ALNUM = string.ascii_lowercase + string.digits
OVER = {"Completed", "Failed", "Stopped", "Deleted", "Archived"}
NODE_GROUP, NODE_GROUP_NAME = "ng-h100-abcd1234", "h100-pool"
H100 = "NVIDIA-H100-80GB-HBM3"
LABEL = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?")
RESERVED = {"LEPTON_WORKSPACE_ID", "LEPTON_DEPLOYMENT_NAME", "LEPTON_JOB_NAME", "LEPTON_RESOURCE_ACCELERATOR_TYPE"}
MOST_BYTES = 1_000_000


class Rejected(Exception):
    """The service says no."""

    def __init__(self, status: int, message: str, code: str = "InvalidRequest") -> None:
        super().__init__(message)
        self.status, self.body = status, {"code": code, "message": message}


def shape(name: str, gpus: int) -> dict[str, Any]:
    spec: dict[str, Any] = {"name": name, "cpu": 4, "memory_in_mb": 8192, "listable_in": ["deployment", "job", "pod"]}
    if gpus:
        spec |= {"accelerator_type": H100, "accelerator_num": gpus, "node_group_id": NODE_GROUP}
    return {"metadata": {"id": name, "name": name}, "spec": spec}


@dataclass
class CloudJob:
    """One job: what was asked for, and the workers that do it."""

    raw: dict[str, Any]
    state: str = "Queueing"
    workers: list[Worker] = field(default_factory=list)
    archived: bool = False
    issue: tuple[str, str] | None = None  # what keeps its workers from running
    said: str | None = None  # a state that is shown instead of the real one
    history: list[dict[str, Any]] = field(default_factory=list)
    ended: int = 0

    @property
    def id(self) -> str:
        return str(self.raw["metadata"]["id"])

    @property
    def name(self) -> str:
        return str(self.raw["metadata"]["name"])

    @property
    def gpus(self) -> int:
        return int(self.raw["__gpus__"])


class LeptonCloud:
    """The workspace. `gpus` are those that are free; a job that needs more of them waits in the queue."""

    def __init__(self, folder: Path, gpus: int = 0, grace: float = 1.0) -> None:
        self.folder, self.gpus, self.grace = folder, gpus, grace
        self.id, self.token, self.email = "ws1", f"tok-{_random(20)}", "dev@example.com"
        self.lock = threading.RLock()
        self.jobs: dict[str, CloudJob] = {}
        self.secrets: dict[str, dict[str, Any]] = {}
        self.pull_secrets: dict[str, dict[str, Any]] = {}
        self.ignores_pages = False
        self.most_rows = 500
        self.worker_seconds = 0.0  # how much later than the first one other workers are ready
        self.analyses: dict[str, dict[str, Any]] = {}
        self.permissions: list[dict[str, Any]] = []
        self.volumes: list[dict[str, Any]] = [self.volume("lustre")]
        self.has_quota = True
        self.nodes = ["node-1", "node-2"]
        self.groups = {NODE_GROUP: NODE_GROUP_NAME}  # names by id; all of them have the same storage and shapes
        self.full: set[str] = set()  # node groups without room
        self.bad_nodes: set[str] = set()  # where the storage is not mounted
        self.shapes = [shape(f"cpu.{size}", 0) for size in ("small", "medium", "large")] + [
            shape(f"gpu.{number if number > 1 else ''}{'x' if number > 1 else ''}h100-sxm", number)
            for number in (1, 2, 4, 8)
        ]
        self._last = 0

    def volume(self, name: str, kind: str = "nfs") -> dict[str, Any]:
        place = str(self.folder / "volumes" / name)
        return {"from": kind, "name": name, "size_in_gb": 1024, "from_path": place, "default_mount_path": place}

    def close(self) -> None:
        for job in list(self.jobs.values()):
            for worker in job.workers:
                worker.was_ended = True
                worker.kill()

    # -- what is asked for ---------------------------------------------------------------------------------------------

    def create(self, body: Mapping[str, Any], size: int) -> dict[str, Any]:
        """A new job, whatever names there are. Raises Rejected."""
        metadata, spec = body.get("metadata") or {}, body.get("spec") or {}
        name = str(metadata.get("id") or metadata.get("name") or "")
        if size > MOST_BYTES:
            raise Rejected(413, "request entity too large")
        self._check_words(name, metadata, spec)
        offered = {one["metadata"]["id"]: int(one["spec"].get("accelerator_num") or 0) for one in self.shapes}
        if spec.get("resource_shape") not in offered:
            raise Rejected(400, f"resource shape {spec.get('resource_shape')!r} is not supported")
        self._check_places(spec)
        now = self._now()
        raw = {
            "metadata": {
                "id": f"{name}-{_random(4)}",
                "name": name,
                "created_at": now,
                "version": 1,
                "owner": self.email,
                "created_by": self.email,
                "labels": metadata.get("labels"),
                "visibility": metadata.get("visibility"),
            },
            "spec": dict(spec),
            "__gpus__": offered[spec["resource_shape"]] * int(spec.get("parallelism") or 1),
        }
        with self.lock:
            job = CloudJob(raw)
            self.jobs[job.id] = job
            self.start_what_fits()
            return self.shown(job)

    def _check_words(self, name: str, metadata: Mapping[str, Any], spec: Mapping[str, Any]) -> None:
        if len(name) > 36 or not re.fullmatch(r"[a-z][a-z0-9-]*[a-z0-9]", name):
            raise Rejected(400, f"invalid job name {name!r}")
        for key, value in (metadata.get("labels") or {}).items():
            if len(key) > 63 or len(value) > 63 or not LABEL.fullmatch(value):
                raise Rejected(400, f"invalid label {key}={value!r}")
        container = spec.get("container") or {}
        if not container.get("image") or not container.get("command"):
            raise Rejected(400, "container image and command are required")
        for one in spec.get("envs") or ():
            if one["name"] in RESERVED:
                raise Rejected(400, f"environment variable {one['name']} is reserved")
            ref = (one.get("value_from") or {}).get("secret_name_ref")
            if ref and ref not in self.secrets:
                raise Rejected(400, f"secret {ref} does not exist")
        for one in spec.get("image_pull_secrets") or ():
            if one not in self.pull_secrets:
                raise Rejected(400, f"image pull secret {one} does not exist")
        if spec.get("queue_config") and not self.has_quota:
            raise Rejected(400, "the node group has no queue")

    def _check_places(self, spec: Mapping[str, Any]) -> None:
        for group in (spec.get("affinity") or {}).get("allowed_dedicated_node_groups") or ():
            if group not in self.groups:
                raise Rejected(400, f"node group {group!r} not found")
        volumes = {_source(one): one for one in self.volumes}
        for one in spec.get("mounts") or ():
            volume = volumes.get(one["from"])
            if volume is None:
                raise Rejected(400, f"volume {one['from']!r} is not in the node group")
            allowed = [rule["path_prefix"] for rule in self.permissions if self.email in rule["allowed_users"]]
            if self.permissions and not any(f"{one['path']}/".startswith(f"{prefix}/") for prefix in allowed):
                raise Rejected(403, f"no permission for {one['path']} of {volume['name']}", "Forbidden")
            self._mount(Path(volume["from_path"]) / one["path"].lstrip("/"), Path(one["mount_path"]))

    def _mount(self, source: Path, inside: Path) -> None:
        """Workers are processes of this machine: what they mount has to be at its path here too."""
        source.mkdir(parents=True, exist_ok=True)
        if inside != source and not inside.exists():
            assert self.folder in inside.parents, f"the stand-in cannot mount at {inside}"
            inside.parent.mkdir(parents=True, exist_ok=True)
            inside.symlink_to(source)

    # -- how jobs live -------------------------------------------------------------------------------------------------

    def _now(self) -> int:
        with self.lock:
            self._last = max(int(time.time() * 1000), self._last + 1)
            return self._last

    def start_what_fits(self) -> None:
        for job in self.jobs.values():
            in_use = sum(one.gpus for one in self.jobs.values() if one.state in ("Starting", "Running", "Stopping"))
            has_room = job.gpus <= self.gpus - in_use and self._group(job) not in self.full
            if job.state == "Queueing" and not job.raw["spec"].get("stopped") and has_room:
                image = job.raw["spec"]["container"]["image"]
                if image.startswith("missing/"):
                    job.state, job.issue = "Starting", ("Failed", "ImagePullBackOff")
                elif self._node(job) in self.bad_nodes:
                    job.state, job.issue = "Starting", ("ConfigError", "Mount point not found")
                else:
                    self._start(job)

    def _group(self, job: CloudJob) -> str:
        return str(((job.raw["spec"].get("affinity") or {}).get("allowed_dedicated_node_groups") or [NODE_GROUP])[0])

    def _node(self, job: CloudJob) -> str:
        allowed = (job.raw["spec"].get("affinity") or {}).get("allowed_nodes_in_node_group") or self.nodes
        return next(node for node in self.nodes if node in allowed)

    def _start(self, job: CloudJob) -> None:
        spec, job.state, job.issue = job.raw["spec"], "Running", None
        count = int(spec.get("parallelism") or 1)
        job.workers = [self._worker(job, index, count) for index in range(count)]
        for worker in job.workers:
            worker.start(lambda: self._ended(job))

    def _worker(self, job: CloudJob, index: int, count: int) -> Worker:
        name = f"{job.id}-{index}-{_random(5)}"
        env = {one["name"]: one.get("value") or "" for one in job.raw["spec"].get("envs") or ()}
        for one in job.raw["spec"].get("envs") or ():
            if ref := (one.get("value_from") or {}).get("secret_name_ref"):
                env[one["name"]] = self.secrets[ref]["value"]
        env |= {
            "LEPTON_JOB_NAME": job.id,
            "LEPTON_JOB_SERVICE_PREFIX": job.id,
            "LEPTON_SUBDOMAIN": f"{job.id}-job-svc",
            "LEPTON_JOB_WORKER_INDEX": str(index),
            "LEPTON_JOB_TOTAL_WORKERS": str(count),
            "LEPTON_JOB_WORKER_PREFIX": f"{job.id}-",
            "LEPTON_JOB_FAILURE_COUNT": str(len(job.history)),
            "LEPTON_RESOURCE_ACCELERATOR_NUM": str(job.gpus // count),
            "LEPTON_WORKSPACE_ID": self.id,
        }
        return Worker(name, job.raw["spec"]["container"]["command"], env, self.folder / "disks" / name)

    def _ended(self, job: CloudJob) -> None:
        with self.lock:
            if job.state == "Running" and all(worker.code is not None for worker in job.workers):
                job.state = "Completed" if all(worker.code == 0 for worker in job.workers) else "Failed"
                job.ended = self._now()
            self.start_what_fits()

    def patch(self, job: CloudJob, body: Mapping[str, Any]) -> dict[str, Any]:
        with self.lock:
            wanted = (body.get("spec") or {}).get("stopped")
            job.raw["spec"].update(body.get("spec") or {})
            if wanted and job.state not in OVER:
                self._take_down(job, "Stopping", "Stopped")
            elif wanted is False and job.state == "Stopped":
                job.state = "Queueing"
                self.start_what_fits()
            return self.shown(job)

    def delete(self, job: CloudJob) -> None:
        with self.lock:
            if job.state in OVER:
                job.state, job.archived = "Deleted" if job.state == "Stopped" else job.state, True
            else:
                self._take_down(job, "Deleting", "Deleted")

    def _take_down(self, job: CloudJob, now: str, then: str) -> None:
        if job.state == now:
            return
        job.state = now

        def end() -> None:
            threads = [threading.Thread(target=worker.end, args=(self.grace,)) for worker in job.workers]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for worker in job.workers:
                worker.kill()
            with self.lock:
                job.state, job.archived, job.ended = then, then == "Deleted", self._now()
                self.start_what_fits()

        threading.Thread(target=end, daemon=True).start()

    # -- what happens without anybody asking ---------------------------------------------------------------------------

    def take_away(self, job: CloudJob, again: bool) -> None:
        """The job's machines are taken away; Lepton starts it anew, or calls it failed."""
        with self.lock:
            if job.state != "Running":
                return
            job.state = "Restarting"
        for worker in job.workers:
            worker.end(self.grace)
            worker.kill()
        with self.lock:
            if job.raw["spec"].get("stopped"):
                job.state = "Stopped"
            elif again:
                job.history.append({"job_name": job.id, "state": "Failed", "failed": 1})
                self._start(job)
            else:
                job.state = "Failed"
                job.ended = self._now()

    def archive(self, job: CloudJob) -> None:
        """What its time to live does to a job that is over: its logs are gone with it."""
        with self.lock:
            assert job.state in OVER
            job.said, job.archived = "Archived", True
            self.forget_logs(job)

    def forget_logs(self, job: CloudJob) -> None:
        for worker in job.workers:
            worker.log.moments, worker.log.lines = [], []

    # -- what is shown -------------------------------------------------------------------------------------------------

    def shown(self, job: CloudJob) -> dict[str, Any]:
        count, codes = len(job.workers), [worker.code for worker in job.workers]
        late = (
            job.state == "Running"
            and time.time() * 1000 - job.raw["metadata"]["created_at"] < 1000 * self.worker_seconds
        )
        status = {
            "job_name": job.id,
            "state": job.said if job.said is not None else job.state,
            "active": count if job.state in ("Starting", "Running") else 0,
            "ready": (1 if late else count) if job.state == "Running" else 0,
            "succeeded": codes.count(0) if job.state in ("Completed", "Failed") else 0,
            "failed": sum(bool(code) for code in codes) if job.state == "Failed" else 0,
            "creation_time": job.raw["metadata"]["created_at"],
            "completion_time": job.ended or None,
            "job_history": job.history,
        }
        return {"metadata": job.raw["metadata"], "spec": job.raw["spec"], "status": status}

    def find(self, id: str, mode: str) -> CloudJob:
        job = self.jobs.get(id)
        if job is None or (job.archived and mode == "alive_only"):
            raise Rejected(404, f"job {id} not found", "ResourceNotFound")
        return job

    def listed(self, query: Mapping[str, list[str]]) -> list[dict[str, Any]]:
        mode = _one(query, "job_query_mode", "alive_only")
        with self.lock:
            found = [self.shown(job) for job in self.jobs.values() if _is_in(job, mode) and _fits(job, query)]
        wanted = query.get("status") or []
        found = [one for one in found if not wanted or one["status"]["state"] in wanted]
        found.sort(key=lambda one: -one["metadata"]["created_at"])
        if self.ignores_pages or "page" not in query:
            return found[: self.most_rows]
        page, size = int(_one(query, "page", "1")), min(int(_one(query, "page_size", "100")), self.most_rows)
        return found[(page - 1) * size : page * size]

    def replicas(self, job: CloudJob) -> list[dict[str, Any]]:
        waiting = job.state in ("Queueing", "Starting") and not job.workers
        issue = job.issue or (("NoCapacity", "no node has enough idle GPUs") if job.state == "Queueing" else None)
        names = [f"{job.id}-0-{'x' * 5}"] if waiting and job.issue else [worker.name for worker in job.workers]
        status: dict[str, Any] = {
            "node": {"id": self._node(job), "name": self._node(job), "node_group_id": self._group(job)},
            "cpu": 2,
        }
        status |= {"readiness_issue": {"reason": issue[0], "message": issue[1]}} if issue else {}
        return [{"metadata": {"id": name, "name": name}, "id": name, "status": status} for name in names]

    def node_group(self, id: str) -> dict[str, Any]:
        return {
            "metadata": {"id": id, "name": self.groups[id], "created_at": 1},
            "spec": {"desired_nodes": 1, "gpu_product": H100, "volumes": self.volumes},
            "status": {"ready_nodes": 1, "quota_enabled": self.has_quota},
        }


def _random(count: int) -> str:
    return "".join(random.choices(ALNUM, k=count))


def _source(volume: Mapping[str, Any]) -> str:
    return "node-local" if volume["from"] == "local" else f"node-{volume['from']}:{volume['name']}"


def _one(query: Mapping[str, list[str]], name: str, default: str = "") -> str:
    return (query.get(name) or [default])[0]


def _is_in(job: CloudJob, mode: str) -> bool:
    return {"alive_only": not job.archived, "archive_only": job.archived}.get(mode, True)


def _fits(job: CloudJob, query: Mapping[str, list[str]]) -> bool:
    labels = job.raw["metadata"].get("labels") or {}
    for part in filter(None, _one(query, "query").split(",")):
        name, equals, value = part.partition("=")
        if labels.get(name) != value if equals else name not in labels:
            return False
    return _one(query, "q") in job.name or _one(query, "q") in job.id
