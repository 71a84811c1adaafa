"""Checks of a cluster before a launch: rights, capacity, node runtime, a create that is only tried. Nothing stays."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.finding import COMPUTE, NO_GATE, REACHABLE, Finding, GateName, Level
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.container_jobs import wanted_gpus
from prefect_tao.platforms.kubernetes import dry_runs
from prefect_tao.platforms.kubernetes.client import ApiRefused, Manifest
from prefect_tao.platforms.kubernetes.submit import remedy_for

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
    found += [*_runtime(platform, request, nodes), *await dry_runs.findings(platform, request)]
    return found


def _finding(level: Level, subject: str, message: str, remedy: str = "", gate: GateName = NO_GATE) -> Finding:
    return Finding(level=level, subject=subject, message=message, remedy=remedy, gate=gate)


# -- rights ------------------------------------------------------------------------------------------------------------


async def _denied(platform: KubernetesPlatform) -> list[str]:
    """What we may not do there, by the cluster's own word."""
    answers = await asyncio.gather(*(platform.api.may(*right) for right in RIGHTS))
    return [f"{verb} {plural}" for (verb, _, plural), allowed in zip(RIGHTS, answers, strict=True) if not allowed]


# -- capacity ----------------------------------------------------------------------------------------------------------


async def _nodes(platform: KubernetesPlatform) -> list[Manifest] | None:
    """The nodes; None where we may not list them."""
    if not await platform.api.may("list", "", "nodes", everywhere=True):
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
    if not wants_gpus or not await platform.api.may("list", "", "pods", everywhere=True):
        return {}
    used: dict[str, int] = {}
    running = {"fieldSelector": "status.phase!=Succeeded,status.phase!=Failed"}
    try:
        pods = (await platform.api.ask("GET", "/api/v1/pods", query=running))["items"] or ()
    except (Unreachable, ApiRefused):  # on a large cluster it may take too long, and it is no more than a hint
        return {}
    for pod in pods:
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
