"""Checks of a cluster before a launch: rights, capacity, node runtime, a create that is only tried. Nothing stays."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prefect_tao.jobs.errors import InvalidInput, Unreachable
from prefect_tao.jobs.finding import COMPUTE, NO_GATE, REACHABLE, Finding, GateName, Level
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.container_jobs import wanted_gpus
from prefect_tao.platforms.kubernetes import render
from prefect_tao.platforms.kubernetes.client import ApiRefused, Manifest
from prefect_tao.platforms.kubernetes.pod_volumes import mounts_of
from prefect_tao.platforms.kubernetes.submit import NO_NGC_KEY, STRICT, remedy_for

if TYPE_CHECKING:
    from prefect_tao.platforms.kubernetes.driver import KubernetesPlatform

# What launching, watching and cancelling need; deployments/kubernetes/rbac.yaml grants exactly this.
RIGHTS = (
    *((verb, "batch", "jobs") for verb in ("create", "get", "list", "patch", "delete")),
    *((verb, "", "pods") for verb in ("create", "get", "list", "delete")),
    ("get", "", "pods/log"),
    *((verb, "", "secrets") for verb in ("create", "get", "patch")),
    *((verb, "", "configmaps") for verb in ("create", "get", "list", "patch")),
    *((verb, "", "services") for verb in ("create", "get")),
    ("list", "", "events"),
)
SKIP = "TAO_K8S_SKIP_NODE_RUNTIME_CHECK"
DRIVER = ("nvidia.com/cuda.driver-version.full", "nvidia.com/cuda.driver.major")
CUDA = ("nvidia.com/cuda.runtime-version.full", "nvidia.com/cuda.runtime.major")
OLDEST_DRIVER = 580
OLDEST_FOR_NODES = 28
# A key that no job will ever have; the create that is only tried bears it.
_KEY = "0" * 16
OPERATOR = "install the NVIDIA GPU Operator, or the device plugin, so that nodes offer {}"


async def findings(platform: KubernetesPlatform, request: JobRequest | None) -> list[Finding]:
    """All findings; when the cluster does not answer, only why."""
    try:
        version = await platform.api.ask("GET", "/version")
        denied, nodes, used = await asyncio.gather(_denied(platform), _nodes(platform), _in_use(platform, request))
    except Unreachable as error:
        level = Level.UNKNOWN if error.retryable else Level.FAIL
        return [_finding(level, "reachable", error.cause, error.remedy, REACHABLE)]
    except ApiRefused as error:
        return [_finding(Level.FAIL, "reachable", error.said, remedy_for(error.said), REACHABLE)]
    shown = version.get("gitVersion", "")
    found = [_finding(Level.OK, "reachable", f"Kubernetes {shown} answers, namespace {platform.api.namespace}")]
    if denied:
        words = f"the namespace {platform.api.namespace} does not let you {', '.join(denied)}"
        return [*found, _finding(Level.FAIL, "rights", words, remedy_for("cannot x resource"), REACHABLE)]
    if request is None:
        return found
    found += [*_version(request, version), *_selected(platform, nodes), *_capacity(platform, request, nodes, used)]
    found += [*_runtime(platform, request, nodes), *await _tried(platform, request)]
    return found


def _finding(level: Level, subject: str, message: str, remedy: str = "", gate: GateName = NO_GATE) -> Finding:
    return Finding(level=level, subject=subject, message=message, remedy=remedy, gate=gate)


# -- rights ------------------------------------------------------------------------------------------------------------


async def _denied(platform: KubernetesPlatform) -> list[str]:
    """What we may not do there, by the cluster's own word."""
    answers = await asyncio.gather(*(_may(platform, *right) for right in RIGHTS))
    return [f"{verb} {plural}" for (verb, _, plural), allowed in zip(RIGHTS, answers, strict=True) if not allowed]


async def _may(platform: KubernetesPlatform, verb: str, group: str, plural: str, everywhere: bool = False) -> bool:
    resource, _, sub = plural.partition("/")
    asked = {"verb": verb, "group": group, "resource": resource}
    asked |= {} if everywhere else {"namespace": platform.api.namespace}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {**asked, **({"subresource": sub} if sub else {})}},
    }
    answer = await platform.api.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
    return bool(answer["status"]["allowed"])


# -- capacity ----------------------------------------------------------------------------------------------------------


async def _nodes(platform: KubernetesPlatform) -> list[Manifest] | None:
    """The nodes; None where we may not list them."""
    if not await _may(platform, "list", "", "nodes", everywhere=True):
        return None
    return list((await platform.api.ask("GET", "/api/v1/nodes"))["items"])


def _amount(node: Manifest, resource: str) -> int:
    text = str(((node.get("status") or {}).get("allocatable") or {}).get(resource) or "0")
    return int(text) if text.isdigit() else 0


async def has_others(platform: KubernetesPlatform, avoided: Sequence[str]) -> bool:
    """Whether nodes are left for jobs when some are avoided; where nodes may not be listed, they are taken to be."""
    nodes = await _nodes(platform)
    fit = [node for node in nodes or () if _matches(node, platform.options.node_selector)]
    return nodes is None or any(node["metadata"]["name"] not in avoided for node in fit)


async def _in_use(platform: KubernetesPlatform, request: JobRequest | None) -> dict[str, int]:
    """GPUs that Pods of all namespaces hold, by node; nothing where none are wanted, or we may not look."""
    wants_gpus = request is not None and wanted_gpus(request, platform.options) > 0
    if not wants_gpus or not await _may(platform, "list", "", "pods", everywhere=True):
        return {}
    used: dict[str, int] = {}
    running = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
    for pod in (await platform.api.ask("GET", "/api/v1/pods", query=running))["items"]:
        for container in pod["spec"]["containers"]:
            amounts = (container.get("resources") or {}).get("limits") or {}
            if node := pod["spec"].get("nodeName"):
                used[node] = used.get(node, 0) + int(amounts.get(platform.options.gpu_resource) or 0)
    return used


async def most_gpus(platform: KubernetesPlatform) -> int | None:
    """The most GPUs that one node offers; None where that is not known."""
    nodes = await platform._answered(_nodes(platform))
    amounts = [_amount(node, platform.options.gpu_resource) for node in nodes or ()]
    return max(amounts, default=0) or None


def _selected(platform: KubernetesPlatform, nodes: Sequence[Manifest] | None) -> Iterator[Finding]:
    """A selector that no node matches would leave the job waiting for ever."""
    selector = platform.options.node_selector
    if not selector or nodes is None or any(_matches(node, selector) for node in nodes):
        return
    words = f"no node has the labels {', '.join(f'{name}={value}' for name, value in selector.items())}"
    if platform.options.autoscales:
        yield _finding(Level.WARN, "node selector", f"{words}; the cluster adds nodes on demand", "", COMPUTE)
    else:
        remedy = "correct the block's node selector (kubectl get nodes --show-labels), or say that nodes come on demand"
        yield _finding(Level.FAIL, "node selector", words, remedy, COMPUTE)


def _capacity(
    platform: KubernetesPlatform, request: JobRequest, nodes: Sequence[Manifest] | None, used: Mapping[str, int]
) -> Iterator[Finding]:
    """GPUs over all nodes, and on the largest one: a job that fits nowhere would wait for ever."""
    resource, wanted = platform.options.gpu_resource, wanted_gpus(request, platform.options)
    if not wanted:
        return
    if nodes is None:
        words = "you may not list nodes here, so it is not known whether they have enough GPUs"
        yield _finding(Level.WARN, "gpus", words, "ask for the right to list nodes, or go on", COMPUTE)
        return
    fit = [node for node in nodes if _matches(node, platform.options.node_selector)]
    amounts = [_amount(node, resource) for node in fit]
    total, largest, needed = sum(amounts), max(amounts, default=0), wanted * request.resources.nodes
    if total >= needed and largest >= wanted:
        yield _room(
            resource, wanted, request.resources.nodes, {_name(node): _amount(node, resource) for node in fit}, used
        )
        return
    words = f"{needed} {resource} are wanted, and the nodes have {total} in total, {largest} on the largest"
    if not total:
        words = f"no node that fits offers {resource}"
    if platform.options.autoscales:
        yield _finding(Level.WARN, "gpus", f"{words}; the cluster adds nodes on demand", "", COMPUTE)
        return
    remedy = OPERATOR.format(resource) if not total else "ask for fewer GPUs or nodes, or name another node selector"
    yield _finding(Level.FAIL, "gpus", words, f"{remedy}; if nodes come on demand, say so in the block", COMPUTE)


def _room(resource: str, wanted: int, nodes: int, amounts: Mapping[str, int], used: Mapping[str, int]) -> Finding:
    """Whether the job can start now, as far as is known who uses what."""
    free = {node: amount - used.get(node, 0) for node, amount in amounts.items()}
    total, needed = sum(amounts.values()), wanted * nodes
    shown = f"{total} {resource} on {len(amounts)} nodes, {needed} wanted"
    if sum(amount // wanted for amount in free.values() if amount > 0) >= nodes:
        return _finding(Level.OK, "gpus", shown)
    words = f"{shown}, {sum(free.values())} free now: the job will wait"
    return _finding(Level.WARN, "gpus", words, "go on, or ask for fewer GPUs to start sooner", COMPUTE)


def _name(node: Manifest) -> str:
    return str(node["metadata"]["name"])


def _matches(node: Manifest, selector: dict[str, str]) -> bool:
    return selector.items() <= (node["metadata"].get("labels") or {}).items()


# -- node runtime ------------------------------------------------------------------------------------------------------


async def versions(platform: KubernetesPlatform) -> dict[str, str] | None:
    """The oldest driver and CUDA of the GPU nodes, by the labels of GPU feature discovery."""
    nodes = [node for node in await _nodes(platform) or () if _amount(node, platform.options.gpu_resource)]
    found = {"driver": _oldest(nodes, DRIVER), "cuda": _oldest(nodes, CUDA)}
    return {name: text for name, text in found.items() if text} or None


def _oldest(nodes: Sequence[Manifest], names: Sequence[str]) -> str:
    told = [(node["metadata"].get("labels") or {}) for node in nodes]
    texts = [text for labels in told if (text := next((labels[name] for name in names if name in labels), ""))]
    return min(texts, key=_numbers, default="")


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))


def _runtime(platform: KubernetesPlatform, request: JobRequest, nodes: Sequence[Manifest] | None) -> Iterator[Finding]:
    if not wanted_gpus(request, platform.options) or os.environ.get(SKIP) == "1":
        return
    gpu_nodes = [node for node in nodes or () if _amount(node, platform.options.gpu_resource)]
    driver = _oldest(gpu_nodes, DRIVER)
    remedy = f"have driver {OLDEST_DRIVER} and container toolkit 1.19.0 or newer on the nodes, then set {SKIP}=1"
    if not driver:
        words = "no node label names the GPU driver"
        yield _finding(Level.WARN, "node runtime", words, f"{remedy}, or install GPU feature discovery", COMPUTE)
    elif _numbers(driver)[0] < OLDEST_DRIVER:
        words = f"the oldest GPU driver of the nodes is {driver}"
        yield _finding(Level.WARN, "node runtime", words, remedy, COMPUTE)


def _version(request: JobRequest, version: Manifest) -> Iterator[Finding]:
    """Below 1.28 the Pods of an Indexed Job have no stable names to find each other by."""
    minor = _numbers(str(version.get("minor") or "")) or (OLDEST_FOR_NODES,)
    if request.resources.nodes > 1 and str(version.get("major")) == "1" and minor[0] < OLDEST_FOR_NODES:
        words = f"jobs on several nodes need Kubernetes 1.{OLDEST_FOR_NODES}, and this is {version.get('gitVersion')}"
        yield _finding(Level.FAIL, "nodes", words, "use --nodes 1, or a newer cluster", COMPUTE)


# -- a create that is only tried ---------------------------------------------------------------------------------------


async def _tried(platform: KubernetesPlatform, request: JobRequest) -> list[Finding]:
    """Whether the cluster would take the Job: its schema, quota and webhooks say so without anything being made."""
    try:
        rendered = platform.render(request, _KEY, 1)
        job = json.loads(rendered.files[render.JOB_FILE])
        taken = await platform.api.ask("POST", platform.api.path("jobs"), job, {"dryRun": "All", **STRICT})
    except InvalidInput as error:
        return [_finding(Level.FAIL, "job", error.cause, error.remedy, COMPUTE)]
    except ApiRefused as error:
        return [_finding(Level.FAIL, "job", f"the cluster refuses it: {error.said}", remedy_for(error.said), COMPUTE)]
    except Unreachable as error:
        return [_finding(Level.UNKNOWN, "job", error.cause, error.remedy, REACHABLE)]
    found = [*_features(job, taken), *await _missing(platform)]
    if not render.results_of(_KEY, platform.options):
        words = "there is neither a results volume nor a bucket: results end with the Pod"
        found.append(_finding(Level.WARN, "results", words, "set results_claim, a mount or an S3 bucket in the block"))
    return found


def _features(asked: Manifest, taken: Manifest) -> Iterator[Finding]:
    """What the cluster leaves out of a Job without a word, because it does not have that yet or has it switched off."""
    lost = [name for name in asked["spec"] if name not in taken["spec"]]
    if "suspend" in lost:
        words = "the cluster cannot hold a Job back until its Secret is there (suspend)"
        yield _finding(Level.FAIL, "job", words, "use a cluster of Kubernetes 1.24 or newer", COMPUTE)
    elif lost:
        words = f"the cluster would take the Job, but without {', '.join(sorted(lost))}"
        remedy = "; ".join(_WITHOUT[name] for name in sorted(lost) if name in _WITHOUT)
        yield _finding(Level.WARN, "job", words, remedy or "use a newer cluster", COMPUTE)
    else:
        yield _finding(Level.OK, "job", "the cluster would take the Job")


_WITHOUT = {
    "podFailurePolicy": "a Pod that is taken away may look like one that failed on its own",
    "podReplacementPolicy": "make sure that a lost node is really off before its job is tried again",
    "ttlSecondsAfterFinished": "remove Jobs that are over yourself",
}


async def _missing(platform: KubernetesPlatform) -> list[Finding]:
    """What the block says is in the namespace and is not; claims are looked for where we may."""
    found = []
    for plural, name in await _named(platform):
        if await platform._answered(platform.api.find(plural, name)) is None:
            words = f"there is no {plural.rstrip('s')} {name} in the namespace {platform.api.namespace}"
            found.append(_finding(Level.FAIL, f"{plural} {name}", words, "create it, or correct the block", COMPUTE))
    if platform.options.ngc_pull_secret and not platform.launcher.ngc_key:
        words = "the block asks for a pull secret, and NGC_KEY is not known"
        found.append(_finding(Level.FAIL, "NGC_KEY", words, NO_NGC_KEY, COMPUTE))
    return found


async def _named(platform: KubernetesPlatform) -> list[tuple[str, str]]:
    given = platform.options.image_pull_secret
    secrets = [("secrets", given)] if given else []
    sources = (mount.source.get("persistentVolumeClaim") for mount in mounts_of(platform.options))
    claims = sorted({str(source["claimName"]) for source in sources if source})
    if not claims or not await _may(platform, "get", "", "persistentvolumeclaims"):
        return secrets
    return [*secrets, *(("persistentvolumeclaims", claim) for claim in claims)]
