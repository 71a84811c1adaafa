"""From rendered objects to a Job that runs, exactly once: Job suspended, what it needs, then resumed; or adopted.

The Job's name decides. A launcher that dies half-way leaves a suspended Job, which the next one completes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import Rendered
from prefect_tao.jobs.retrying import retry
from prefect_tao.platforms.kubernetes import abandoned, render
from prefect_tao.platforms.kubernetes.client import (
    CONFLICT,
    INVALID,
    MERGE,
    NOT_FOUND,
    ApiRefused,
    ClusterApi,
    Manifest,
)
from prefect_tao.platforms.kubernetes.kept_ends import KEPT
from prefect_tao.platforms.kubernetes.observe import is_over
from prefect_tao.platforms.kubernetes.settings import KubernetesSettings

T = TypeVar("T")
# How long a request in doubt is repeated, and how long an object that is being deleted is waited for.
DOUBT_SECONDS = 60.0
PAUSE = 0.3
STRICT = {"fieldValidation": "Strict"}
NO_NGC_KEY = "set NGC_KEY, or name a pull secret of the namespace in the block instead (image_pull_secret)"
_log = logging.getLogger(__name__)


class _Over(Exception):
    """The job is over, and the cluster has forgotten its Job."""

    def __init__(self, handle: JobHandle) -> None:
        super().__init__(handle.name)
        self.handle = handle


@dataclass
class JobLauncher:
    """Creates jobs in one namespace. Raises SubmitFailed when there is no job, Unreachable when that is not known."""

    api: ClusterApi
    settings: KubernetesSettings
    target: str
    ngc_key: str = ""

    async def submit(
        self, rendered: Rendered, secrets: Mapping[str, str], site: str, avoided: Sequence[str] = ()
    ) -> JobHandle:
        """Start the job off `avoided` nodes, or adopt the one that has its name; its record will name the `site`."""
        if self.settings.ngc_pull_secret and not self.ngc_key:
            raise SubmitFailed("the block asks for a pull secret, and NGC_KEY is not known", NO_NGC_KEY)
        if rendered.attempt > 1:
            await self._await_earlier(rendered)
        job = await self._create(rendered, site, avoided)
        handle = self._own_handle(job, rendered)
        if render.RESUMED in (job["metadata"].get("annotations") or {}):
            return handle
        try:
            await self._complete(job, rendered, secrets)
        except _Over as over:
            await self._withdraw(job)
            return over.handle
        except ApiRefused as error:
            await self._withdraw(job)
            raise explained(error) from error
        return handle

    # -- before --------------------------------------------------------------------------------------------------------

    async def _await_earlier(self, rendered: Rendered) -> None:
        """Wait for Pods of earlier attempts: a lost node or a careless delete leaves some that still run."""
        give_up = time.monotonic() + DOUBT_SECONDS
        while True:
            pods = await sure(lambda: self.api.listed("pods", f"{render.KEY}={rendered.key}"))
            alive = [pod for pod in pods if not is_over(pod) and _attempt(pod) < rendered.attempt]
            if not alive:
                return
            name, node = alive[0]["metadata"]["name"], alive[0]["spec"].get("nodeName")
            if time.monotonic() > give_up:
                raise Unreachable(
                    f"the Pod {name} of an earlier attempt may still run on {node}",
                    f"wait for its node, or make sure that it is dead and remove it: kubectl delete pod {name} --force",
                )
            _log.warning("waiting for the Pod %s of an earlier attempt to end", name)
            await asyncio.sleep(PAUSE * 5)

    # -- the Job -------------------------------------------------------------------------------------------------------

    async def _create(self, rendered: Rendered, site: str, avoided: Sequence[str]) -> Manifest:
        """The suspended Job, new or there already."""
        manifest = render.avoiding(json.loads(rendered.files[render.JOB_FILE]), avoided)
        name = manifest["metadata"]["name"]
        manifest["metadata"]["annotations"][render.CREATED] = str(time.time_ns())
        pod = manifest["spec"]["template"]["metadata"]
        pod["annotations"] = {**(pod.get("annotations") or {}), render.SITE: site, render.TARGET: self.target}
        give_up = time.monotonic() + DOUBT_SECONDS
        while True:
            try:
                return await self._made(manifest)
            except ApiRefused as error:
                if error.status != CONFLICT:
                    raise explained(error) from error
            there = await sure(lambda: self.api.find("jobs", name))
            if there and not self._is_leaving_unused(there):
                return there
            if time.monotonic() > give_up:
                remedy = f"look why it does not go: kubectl describe job {name} -n {self.api.namespace}"
                raise Unreachable(f"the Job {name} is being deleted and does not go", remedy)
            await asyncio.sleep(PAUSE)  # gone a moment ago, or about to go without ever having run

    async def _made(self, manifest: Manifest) -> Manifest:
        """The Job, new; where the cluster is too old for something that only makes it safer, without that."""
        try:
            made: Manifest = await sure(lambda: self.api.ask("POST", self.api.path("jobs"), manifest, STRICT))
        except ApiRefused as error:
            if (lean := render.without_unknown(manifest, error.said)) is None:
                raise
            return await self._made(lean)
        return made

    @staticmethod
    def _is_leaving_unused(job: Manifest) -> bool:
        meta = job["metadata"]
        return bool(meta.get("deletionTimestamp")) and render.RESUMED not in (meta.get("annotations") or {})

    def _own_handle(self, job: Manifest, rendered: Rendered) -> JobHandle:
        handle = render.handle_of(self.target, job)
        name = job["metadata"]["name"]
        if handle is None or (handle.key, handle.attempt) != (rendered.key, rendered.attempt):
            raise SubmitFailed(
                f"a Job {name} is there, but it is not a job of prefect-tao",
                f"rename or remove it (kubectl delete job {name} -n {self.api.namespace}), and launch again",
            )
        is_held = render.RESUMED not in (job["metadata"].get("annotations") or {})
        if is_held and handle.digest != rendered.request.digest:
            raise SubmitFailed(
                f"{handle.name} was created with another request and never started",
                f"remove it (kubectl delete job {name} -n {self.api.namespace}) and launch again",
            )
        return handle

    # -- what comes with it --------------------------------------------------------------------------------------------

    async def _complete(self, job: Manifest, rendered: Rendered, secrets: Mapping[str, str]) -> None:
        """Create what the Job owns, then let it start. Others may do the same at the same time."""
        name = job["metadata"]["name"]
        for secret in render.secret_manifests(name, self.api.namespace, job, rendered.files, secrets):
            await self._add("secrets", secret)
        if self.settings.ngc_pull_secret:
            await self._add("secrets", render.pull_secret_manifest(name, self.api.namespace, job, self.ngc_key))
        if render.SERVICE_FILE in rendered.files:
            service = render.owned_service(json.loads(rendered.files[render.SERVICE_FILE]), job)
            await self._add("services", service)
        notes: dict[str, Any] = {"uid": job["metadata"]["uid"], "annotations": {render.RESUMED: "true"}}
        patch: dict[str, Any] = {"metadata": notes}
        if self.settings.queue:
            notes["labels"] = {render.QUEUE: self.settings.queue}  # from here on the queue decides when it starts
        else:
            patch["spec"] = {"suspend": False}
        try:
            await sure(lambda: self.api.ask("PATCH", self.api.path("jobs", name), patch, kind=MERGE))
        except ApiRefused as error:
            if error.status not in (NOT_FOUND, CONFLICT) and "metadata.uid" not in error.said:
                raise
            # Somebody deleted it since; what is kept of it tells.
            raise Unreachable(f"the Job {name} is gone", "look for the job by its name") from error

    async def _add(self, plural: str, manifest: Manifest) -> None:
        """Create an object that the Job owns; one of the same name that this Job owns will do. Raises _Over."""
        owner, name = manifest["metadata"]["ownerReferences"][0]["uid"], manifest["metadata"]["name"]
        give_up = time.monotonic() + DOUBT_SECONDS
        while True:
            try:
                await sure(lambda: self.api.ask("POST", self.api.path(plural), manifest))
                return
            except ApiRefused as error:
                if error.status != CONFLICT:
                    raise
                there = await sure(lambda: self.api.find(plural, name))
                meta = (there or {}).get("metadata", {})
                owners = [one["uid"] for one in meta.get("ownerReferences") or ()]
                if KEPT in (meta.get("labels") or {}):
                    await self._check_over(name)
                elif owner in owners:
                    if there and plural == "secrets" and abandoned.is_swept(there):
                        await sure(lambda: abandoned.refill(self.api, manifest))
                    return
                if there and not owners:
                    raise ApiRefused(INVALID, "Foreign", f"{plural} {name} belongs to something else") from error
                if time.monotonic() > give_up:
                    raise
            await asyncio.sleep(PAUSE)  # an earlier Job of this name owned it, and the cluster is collecting it

    async def _check_over(self, name: str) -> None:
        """Raise _Over for a job of this name that is over and was deleted: it must not run a second time."""
        note = await sure(lambda: self.api.find("configmaps", name))
        if note and (handle := render.handle_of(self.target, note)):
            raise _Over(handle)

    async def _withdraw(self, job: Manifest) -> None:
        """Remove a Job that never started, with what it owns; verified. Raises Unreachable while that is not known."""
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        give_up = time.monotonic() + DOUBT_SECONDS
        while True:
            there = await sure(lambda: self.api.find("jobs", name))
            if there is None or there["metadata"]["uid"] != uid:
                return
            if render.RESUMED in (there["metadata"].get("annotations") or {}):
                return  # another launcher has completed it
            await sure(lambda: self.api.delete("jobs", name, uid, propagationPolicy="Foreground"))
            if time.monotonic() > give_up:
                raise Unreachable(f"the Job {name} could not be withdrawn", f"remove it: kubectl delete job {name}")
            await asyncio.sleep(PAUSE)


async def sure(step: Callable[[], Awaitable[T]]) -> T:
    """Repeat a request that does no harm twice until its answer is definite."""
    return await retry(step, DOUBT_SECONDS)


def _attempt(pod: Manifest) -> int:
    return int((pod["metadata"].get("labels") or {}).get(render.ATTEMPT) or 0)


_REMEDIES: tuple[tuple[str, str], ...] = (
    (r"exceeded quota", "wait for other jobs to end, or ask the namespace's owner for more"),
    (r"failed quota.*must specify", "say how much the job needs (--cpus, --memory); the namespace's quota wants it"),
    (r'namespaces? "?\S+"? not found', "name one that is there: TAO_K8S_NAMESPACE, or the block's namespace"),
    (r"being terminated", "use another namespace; this one is being deleted"),
    (r"cannot \w+ resource", "ask the cluster's owner for the rights in deployments/kubernetes/rbac.yaml"),
    (r"Unauthorized", "log in again: the token of the kubeconfig has run out, or is of another cluster"),
    (
        r"admission webhook|ValidatingAdmissionPolicy",
        "change what the webhook or policy names, or ask the cluster's owner for an exception",
    ),
    (r"strict decoding error|unknown field", "correct the pod_template of the block"),
    (
        r"violates PodSecurity",
        "set what it names in the block's pod_template (securityContext), or use another namespace",
    ),
    (r"serviceaccount \S+ not found", "create it, or name another in the block (service_account)"),
    (r"PriorityClass", "name one that is there in the block (priority_class): kubectl get priorityclasses"),
    (r"(?:maximum|minimum) \S+ (?:usage|limit)", "stay within what the namespace allows: kubectl get limitrange"),
    (r"label", "correct the labels that are named"),
)


def remedy_for(said: str) -> str:
    """What to do about a refusal."""
    found = (remedy for pattern, remedy in _REMEDIES if re.search(pattern, said))
    return next(found, "correct what the API server names, and launch again")


def explained(error: ApiRefused) -> SubmitFailed:
    """A refusal as the launcher tells it; there is no job."""
    return SubmitFailed(f"the cluster refused the job: {error.said}", remedy_for(error.said))
