"""Creates that are only tried: whether the cluster would take the Job and its Pods, and without what of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from prefect_tao.jobs.errors import InvalidInput, Unreachable
from prefect_tao.jobs.finding import COMPUTE, NO_GATE, REACHABLE, Finding, GateName, Level
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.kubernetes import render
from prefect_tao.platforms.kubernetes.client import ApiRefused, Manifest
from prefect_tao.platforms.kubernetes.pod_volumes import mounts_of
from prefect_tao.platforms.kubernetes.submit import NO_NGC_KEY, STRICT, remedy_for

if TYPE_CHECKING:
    from prefect_tao.platforms.kubernetes.driver import KubernetesPlatform

# A key that no job will ever have; what is only tried bears it.
_KEY = "0" * 16
_UID = "00000000-0000-0000-0000-000000000000"
_TRY = {"dryRun": "All", **STRICT}
# A webhook that does not promise to leave nothing behind is not asked, and the API server refuses in its place.
_NOT_TRIED = "does not support dry run"
TTL = "ttlSecondsAfterFinished"
_WITHOUT = {
    "podFailurePolicy": "a Pod that is taken away may look like one that failed on its own",
    "podReplacementPolicy": "make sure that a lost node is really off before its job is tried again",
    TTL: "remove Jobs that are over yourself",
}
_POLICY = re.compile("admission webhook|ValidatingAdmissionPolicy")
_QUOTA = re.compile(r"exceeded quota: .*requested: (?P<asked>\S+), used: \S+, limited: (?P<most>\S+)")
_UNITS = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)(m|[kMGT]|[KMGT]i)?")


async def findings(platform: KubernetesPlatform, request: JobRequest) -> list[Finding]:
    """What schema, quota, policies and webhooks say to the Job, and then to one of its Pods; and what is missing."""
    try:
        rendered = platform.render(request, _KEY, 1)
    except InvalidInput as error:
        return [_finding(Level.FAIL, "job", error.cause, error.remedy)]
    job = json.loads(rendered.files[render.JOB_FILE])
    try:
        found = [
            *await _job(platform, job),
            *await _pod(platform, job),
            *await _missing(platform, request.resources.nodes),
        ]
    except ApiRefused as error:
        return [_finding(Level.FAIL, "job", f"the cluster refuses it: {error.said}", remedy_for(error.said))]
    except Unreachable as error:
        return [_finding(Level.UNKNOWN, "job", error.cause, error.remedy, REACHABLE)]
    if not render.results_of(_KEY, platform.options):
        words = "there is neither a results volume nor a bucket: results end with the Pod"
        remedy = "set results_claim, a mount or an S3 bucket in the block"
        found.append(_finding(Level.WARN, "results", words, remedy, NO_GATE))
    return found


def _finding(level: Level, subject: str, message: str, remedy: str = "", gate: GateName = COMPUTE) -> Finding:
    return Finding(level=level, subject=subject, message=message, remedy=remedy, gate=gate)


# -- the Job -----------------------------------------------------------------------------------------------------------


async def _job(platform: KubernetesPlatform, job: Manifest) -> list[Finding]:
    """Raises ApiRefused for a Job that the cluster would not take."""
    asked = job
    while True:
        try:
            taken = await platform.api.ask("POST", platform.api.path("jobs"), asked, _TRY)
        except ApiRefused as error:
            if lean := render.without_unknown(asked, error.said):
                asked = lean
            elif _NOT_TRIED in error.said:
                return [_untried("the Job", error)]
            else:
                raise
        else:
            return list(_features(job, taken))


def _features(asked: Manifest, taken: Manifest) -> Iterator[Finding]:
    """What the cluster leaves out of a Job, because it does not have that yet or has it switched off."""
    lost = [name for name in asked["spec"] if name not in taken["spec"]]
    if "suspend" in lost:
        words = "the cluster cannot hold a Job back until its Secret is there (suspend)"
        yield _finding(Level.FAIL, "job", words, "use a cluster of Kubernetes 1.24 or newer")
    elif lost:
        words = f"the cluster would take the Job, but without {', '.join(sorted(lost))}"
        remedy = "; ".join(_WITHOUT[name] for name in sorted(lost) if name in _WITHOUT)
        yield _finding(Level.WARN, "job", words, remedy or "use a newer cluster")
    else:
        yield _finding(Level.OK, "job", "the cluster would take the Job", gate=NO_GATE)
    if (seconds := taken["spec"].get(TTL)) is not None and TTL not in asked["spec"]:
        words = f"a policy of the cluster has Jobs forgotten {seconds} s after their end, seen or not"
        yield _finding(Level.WARN, "job", words, "keep a watcher running, or have results in S3, where ends stay known")


def _untried(what: str, error: ApiRefused) -> Finding:
    words = f"whether the cluster takes {what} cannot be tried: {error.said}"
    return _finding(Level.WARN, "job", words, "go on; what the webhook has against it shows when it is created")


# -- its Pods ----------------------------------------------------------------------------------------------------------


async def _pod(platform: KubernetesPlatform, job: Manifest) -> list[Finding]:
    """What the Job controller would be told: quotas of GPUs, Pod security, accounts, priority classes, limit ranges."""
    template, name = job["spec"]["template"], job["metadata"]["name"]
    # Of a Job, as its Pods will be: policies refuse Pods that nothing owns.
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": _UID, "controller": True}
    meta = {**template["metadata"], "generateName": f"{name}-", "ownerReferences": [owner]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}
    try:
        await platform.api.ask("POST", platform.api.path("pods"), pod, _TRY)
    except ApiRefused as error:
        if _NOT_TRIED in error.said:
            return [_untried("its Pods", error)]
        if _has_room_later(error.said, job["spec"]["parallelism"]):
            words = f"the job will wait for room in a quota: {error.said}"
            return [_finding(Level.WARN, "pod", words, "go on, or ask for less to start sooner")]
        words = f"the cluster would refuse the Pods of the Job: {error.said}"
        if _POLICY.search(error.said):  # it may ask who creates a Pod, and Jobs have theirs made by the cluster
            return [_finding(Level.WARN, "pod", words, remedy_for(error.said))]
        is_too_small = _QUOTA.search(error.said)
        remedy = "ask for less, or ask the namespace's owner for more" if is_too_small else remedy_for(error.said)
        return [_finding(Level.FAIL, "pod", words, remedy)]
    return []


def _has_room_later(said: str, pods: int) -> bool:
    """Whether a quota is only used up for now: it would hold all Pods if nothing else were there."""
    if not (match := _QUOTA.search(said)):
        return False
    asked, most = _amounts(match["asked"]), _amounts(match["most"])
    return all(pods * asked.get(name, 0.0) <= amount for name, amount in most.items())


def _amounts(text: str) -> dict[str, float]:
    found = {}
    for part in text.split(","):
        name, _, amount = part.partition("=")
        if match := _AMOUNT.fullmatch(amount):
            found[name] = float(match[1]) * _UNITS.get(match[2] or "", 1.0)
    return found


# -- what they name ----------------------------------------------------------------------------------------------------


async def _missing(platform: KubernetesPlatform, nodes: int) -> list[Finding]:
    """What the block says is in the namespace and is not as the job needs it; claims are looked for where we may."""
    found = []
    for plural, name in await _named(platform):
        there = await platform.api.find(plural, name)
        if there is None:
            words = f"there is no {plural.rstrip('s')} {name} in the namespace {platform.api.namespace}"
            found.append(_finding(Level.FAIL, f"{plural} {name}", words, "create it, or correct the block"))
        elif nodes > 1 and plural == "persistentvolumeclaims" and not _is_for_many(there):
            words = f"the claim {name} can be mounted on one node at a time, and the job has {nodes}"
            remedy = "use a claim with the access mode ReadWriteMany, or keep all Pods on one node"
            found.append(_finding(Level.WARN, f"{plural} {name}", words, remedy))
    if platform.options.ngc_pull_secret and not platform.launcher.ngc_key:
        words = "the block asks for a pull secret, and NGC_KEY is not known"
        found.append(_finding(Level.FAIL, "NGC_KEY", words, NO_NGC_KEY))
    return found


def _is_for_many(claim: Manifest) -> bool:
    modes = (claim.get("spec") or {}).get("accessModes") or ["ReadWriteMany"]  # unknown is no fault
    return any(mode.endswith("Many") for mode in modes)


async def _named(platform: KubernetesPlatform) -> list[tuple[str, str]]:
    given = platform.options.image_pull_secret
    secrets = [("secrets", given)] if given else []
    sources: Iterator[Mapping[str, Any] | None] = (
        mount.source.get("persistentVolumeClaim") for mount in mounts_of(platform.options)
    )
    claims = sorted({str(source["claimName"]) for source in sources if source})
    if not claims or not await platform.api.may("get", "", "persistentvolumeclaims"):
        return secrets
    return [*secrets, *(("persistentvolumeclaims", claim) for claim in claims)]
