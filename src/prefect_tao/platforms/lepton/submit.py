"""From a rendered job to one that Lepton has: completed with what the workspace offers, and made once.

Names are not unique there, and each request that arrives makes a job. So the name is looked up before and after; a
request in doubt is repeated only where the jobs themselves claim the name, on a mount or in a bucket.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from prefect_tao.jobs.errors import InvalidInput, SubmitFailed, TaoError, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.platform import Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.container_jobs import NGC, NGC_USER, wanted_gpus
from prefect_tao.platforms.lepton import placement, render
from prefect_tao.platforms.lepton.client import CONFLICT, LeptonWorkspace, NotNow, NotTaken
from prefect_tao.platforms.lepton.observe import LeptonRow
from prefect_tao.platforms.lepton.observer import LeptonObserver
from prefect_tao.platforms.lepton.placement import NodeGroup, OfferedShape
from prefect_tao.platforms.lepton.settings import LeptonSettings
from prefect_tao.runner.entrypoint import PLAN_FILE
from prefect_tao.storage.objects import split, typed

LOOK_AGAIN_SECONDS = 1.0
# After so long a launcher that has sent secrets and made no job has given up, or is dead.
ABANDONED_SECONDS = 3600.0
_REFUSALS = {
    "quota": "wait until your other jobs are over, ask for less, or have the quota raised",
    "shape": "choose a shape that the workspace offers: prefect-tao preflight shows them",
    "permission": "ask the workspace's administrator for the right, or use another folder",
    "secret": "launch again: the secrets of the job are sent once more",
    "token": "create a new token in the workspace's settings",
}


class LeptonLauncher:
    """Sends jobs to one workspace. Methods block."""

    def __init__(self, workspace: LeptonWorkspace, observer: LeptonObserver, settings: LeptonSettings) -> None:
        self.workspace, self.observer, self.settings = workspace, observer, settings
        self.credentials: dict[str, str] = {}
        self.denial_seconds = 30.0
        self._names: dict[str, threading.Lock] = {}
        self._guard = threading.Lock()

    # -- once ----------------------------------------------------------------------------------------------------------

    def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        """Make the job, or adopt the one that has its name. Raises SubmitFailed, Unreachable."""
        name = str(JobName(rendered.key, rendered.attempt))
        with self._alone(name):
            if handle := self._found(name):
                return handle
            own = self.observer.unseen(rendered.key, rendered.attempt)
            self.observer.leave_note(own)
            try:
                return self._send(name, rendered, secrets)
            except SubmitFailed:
                self.observer.drop_note(own)
                raise

    def _send(self, name: str, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        kept = self._secrets(rendered, secrets)
        try:
            body = self.completed(rendered)
            self._point_to_secrets(body, rendered, kept)
            self._put_plan(rendered)
            self.workspace.keep_secrets(kept)
        except InvalidInput as error:
            raise SubmitFailed(error.cause, error.remedy) from error
        except NotTaken as error:
            raise _refused(error) from error
        try:
            row = self.workspace.create(body)
        except (NotTaken, SubmitFailed) as error:
            if handle := self._found(name):  # another launcher's, which needs the secrets
                return handle
            self._forget(kept)
            raise _refused(error) from error
        except NotNow:
            raise
        except Unreachable as error:
            return self._in_doubt(name, error)
        return self._found(name) or self._made(name, row)

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """One submission of a name at a time in this process: two would make two jobs."""
        with self._guard:
            lock = self._names.setdefault(name, threading.Lock())
        with lock:
            yield

    def _found(self, name: str) -> JobHandle | None:
        """The job that bears the name, if there is one."""
        named = self.observer.named(name)
        handle = self.observer.handle(named[0]) if named else None
        row = self.observer.bearer(handle, named) if handle else None
        return self.observer.handle(row) if row else handle

    def _made(self, name: str, row: LeptonRow | None) -> JobHandle:
        """The job that was just made and is not listed yet."""
        handle = self.observer.handle(row) if row else None
        if handle is None:
            raise Unreachable(f"Lepton took {name} and did not say as what", "launch again: it attaches")
        return handle

    def _in_doubt(self, name: str, error: Unreachable) -> JobHandle:
        """A request of which nobody knows whether it arrived: the job is looked for, and never made again blindly."""
        give_up = time.monotonic() + (0 if self.claims else self.denial_seconds)
        while True:
            try:
                if handle := self._found(name):
                    return handle
            except Unreachable:
                if not error.retryable:
                    raise error from None
            if time.monotonic() >= give_up:
                break
            self.workspace.sleep(LOOK_AGAIN_SECONDS)
        cause = f"whether Lepton has {name} is not known: {error.cause}"
        if self.claims or not error.retryable:
            raise Unreachable(cause, error.remedy or "launch again: it attaches", error.retryable) from error
        raise Unreachable(
            cause,
            f"look for it: lep job list -ia -n {name}; launch again only if it is not there, because nothing keeps two "
            "jobs of one name apart here: that takes a results folder on shared storage, or an S3 bucket for results",
            retryable=False,
        ) from error

    @property
    def claims(self) -> bool:
        """Whether jobs claim their name where all of them can see it."""
        return bool(self.settings.results_root or self.settings.s3_bucket_name)

    # -- what goes with it ---------------------------------------------------------------------------------------------

    def _secrets(self, rendered: Rendered, secrets: Mapping[str, str]) -> dict[str, str]:
        """What the job names, and what opens the storage that it uses; not what stands in the job anyway."""
        envs = json.loads(rendered.files[render.BODY])["spec"]["envs"]
        plain = {one["name"]: one.get("value") for one in envs}
        wanted = (name for name in secrets if plain.get(name) != secrets[name])
        return {render.secret_name(rendered.key, rendered.attempt, name): secrets[name] for name in wanted}

    def _point_to_secrets(self, body: dict[str, Any], rendered: Rendered, kept: Mapping[str, str]) -> None:
        """Each as a variable. One that was not supplied is the workspace's own of that name, if any, else left out."""
        own = {name: render.secret_name(rendered.key, rendered.attempt, name) for name in rendered.request.secrets}
        lacking = {ref: name for name, ref in own.items() if ref not in kept}
        there = self.workspace.secrets() if lacking else {}
        more = {render.name_of_secret(ref): ref for ref in kept if ref not in own.values()}
        envs = [{"name": name, "value_from": {"secret_name_ref": ref}} for name, ref in more.items()]
        for one in (one for one in body["spec"]["envs"] if one["name"] not in more):
            name = lacking.get((one.get("value_from") or {}).get("secret_name_ref", ""))
            if name in there:
                envs.append({"name": name, "value_from": {"secret_name_ref": name}})
            elif name is None:
                envs.append(one)
        body["spec"]["envs"] = envs

    def _forget(self, kept: Mapping[str, str]) -> None:
        for name in kept:
            self.workspace.forget_secret(name)

    def sweep(self, over: Sequence[str], living: Collection[str]) -> None:
        """Remove the secrets of jobs that are over, and of launches that never became a job and cannot any more."""
        for name, age in self.workspace.secrets().items():
            owner = render.owner_of_secret(name)
            if owner in over or (owner and owner not in living and age > ABANDONED_SECONDS):
                self.workspace.forget_secret(name)

    def _put_plan(self, rendered: Rendered) -> None:
        """A plan that is too large for a job lies among its results before the job is made."""
        if data := rendered.files.get(PLAN_FILE):
            uri = render.plan_uri(rendered.key, rendered.attempt, self.settings)
            store = self.observer.bucket.objects.store(uri)
            with typed(store, "writing"):
                store.put(*split(uri), data)

    # -- what the workspace knows --------------------------------------------------------------------------------------

    def completed(self, rendered: Rendered) -> dict[str, Any]:
        """The rendered body with node group, shape, mounts and pull secret. Raises InvalidInput, Unreachable."""
        body: dict[str, Any] = json.loads(rendered.files[render.BODY])
        spec, request = body["spec"], rendered.request
        handle = JobHandle(
            target=self.observer.target,
            key=rendered.key,
            attempt=rendered.attempt,
            results=render.results_of(rendered.key, self.settings) or "",
        )
        group = self.node_group(next(iter(self.observer.open_groups(handle)), None))
        if group:
            spec["affinity"] = {"allowed_dedicated_node_groups": [group.id], **self._good_nodes(handle, group)}
        spec["resource_shape"] = self.shape(request, group)
        spec["mounts"] = self.mounts(request, group)
        if not spec["image_pull_secrets"] and (name := self._pull_secret(request)):
            spec["image_pull_secrets"] = [name]
        return body

    def node_group(self, wanted: str | None = None) -> NodeGroup | None:
        """The node group that is wanted, else the first that jobs go to. Raises InvalidInput."""
        found = self.workspace.get("/dedicated-node-groups")
        groups = [NodeGroup.read(one) for one in found or () if isinstance(one, dict)]
        return placement.node_group(groups, wanted or next(iter(self.settings.node_groups), None))

    def _good_nodes(self, handle: JobHandle, group: NodeGroup) -> dict[str, list[str]]:
        """All nodes but those on which earlier attempts could not start; empty where none is bad, or all are."""
        bad = {node for note in self.observer.earlier_notes(handle) for node in note.nodes}
        listed = self.workspace.get(f"/dedicated-node-groups/{group.id}/nodes") if bad else []
        ids = [str((one.get("metadata") or {}).get("id") or "") for one in listed or () if isinstance(one, dict)]
        good = [id for id in ids if id and id not in bad]
        return {"allowed_nodes_in_node_group": good} if good else {}

    def shapes(self, group: NodeGroup | None) -> list[OfferedShape]:
        """What workers may have there."""
        where = {"node_groups": group.id} if group else {}
        found = self.workspace.get("/shapes", purpose="job", **where)
        return [OfferedShape.read(one) for one in found or () if isinstance(one, dict)]

    def shape(self, request: JobRequest, group: NodeGroup | None) -> str:
        """The shape of the job. Raises InvalidInput."""
        return placement.job_shape(self.shapes(group), wanted_gpus(request, self.settings), self.settings)

    def mounts(self, request: JobRequest | None, group: NodeGroup | None) -> list[dict[str, str]]:
        """What the job mounts. Raises InvalidInput."""
        paths = render.paths_of(request, self.settings) if request else []
        return placement.job_mounts(paths, group, self.settings)

    def _pull_secret(self, request: JobRequest) -> str | None:
        """The name of a pull secret that holds the NGC key, made where there is none."""
        key = self.credentials.get("NGC_KEY")
        if not key or not is_on_ngc(request.image):
            return None
        name = f"prefect-tao-ngc-{hashlib.sha256(key.encode()).hexdigest()[:8]}"
        if name in self.pull_secrets():
            return name
        spec = {"registry_server": f"https://{NGC}", "username": NGC_USER, "password": key}
        try:
            self.workspace.change(
                "post", "/imagepullsecrets", json={"metadata": {"name": name, "id": name}, "spec": spec}
            )
        except NotTaken as error:
            if error.status != CONFLICT:
                raise InvalidInput(
                    f"Lepton does not take the NGC key as a pull secret: {error.said}",
                    "check NGC_KEY, or make a pull secret there and name it in the block",
                ) from error
        return name

    def pull_secrets(self) -> list[str]:
        """The names of the pull secrets of the workspace."""
        found = self.workspace.get("/imagepullsecrets")
        listed = [one.get("metadata") or {} for one in found or () if isinstance(one, dict)]
        return [str(one.get("name") or one.get("id")) for one in listed]


def is_on_ngc(image: str | None) -> bool:
    """Whether an image comes from NVIDIA's registry."""
    return str(image or "").partition("/")[0] == NGC


def _refused(error: NotTaken | SubmitFailed) -> TaoError:
    if isinstance(error, SubmitFailed):
        return error
    said = error.said.lower()
    remedy = next(
        (advice for word, advice in _REFUSALS.items() if word in said), "correct what it names, then launch again"
    )
    return SubmitFailed(f"Lepton refused the job: {error.said}", remedy)
