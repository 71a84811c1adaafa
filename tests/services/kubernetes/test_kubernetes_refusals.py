"""What cannot run on a cluster is said before a launch, with what to do, and nothing is left of a refusal."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kube_discovery
import pytest
from kube_cluster import SERVICES, KubeCluster
from kube_jobs import Opener, request, start
from kube_store import CONFIG_MAPS, JOBS, NODES, PODS, SECRETS, ApiError

from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.finding import Level

pytestmark = [pytest.mark.xdist_group("kubernetes"), pytest.mark.usefixtures("nothing_left")]
LISTED = (JOBS, PODS, SECRETS, CONFIG_MAPS, SERVICES)


@pytest.fixture
def nothing_left(kube: KubeCluster) -> Iterator[None]:
    """The namespace is listed before and after each test here: a refusal leaves nothing behind."""
    before = _listed(kube)
    yield
    assert _listed(kube) == before


def _listed(kube: KubeCluster) -> list[tuple[str, str]]:
    return sorted((one.plural, thing["metadata"]["name"]) for one in LISTED for thing in kube.store.all(one))


BAD: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("label", {"pod_template": {"metadata": {"labels": {"a": "b c"}}}}, {}, "valid label"),
    ("typo", {"pod_template": {"spec": {"hostNetwrk": True}}}, {}, "unknown field"),
    (
        "volume",
        {
            "pod_template": {
                "spec": {"containers": [{"name": "main", "volumeMounts": [{"name": "x", "mountPath": "/x"}]}]}
            }
        },
        {},
        "Not found",
    ),
]


@pytest.mark.parametrize(("settings", "fields", "words"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
async def test_what_the_cluster_refuses_is_said_and_leaves_nothing(
    kube: KubeCluster, opened: Opener, settings: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    platform = opened(**settings)
    before = sorted(kube.store.objects)
    tried = await platform.probe(request(**fields))
    assert [one for one in tried if one.level is Level.FAIL and words in one.message and one.remedy]
    with pytest.raises(SubmitFailed, match=re.escape(words)) as refused:
        await start(platform, **fields)
    assert refused.value.remedy
    assert sorted(kube.store.objects) == before


async def test_a_namespace_that_is_not_there_is_said_at_once(opened: Opener) -> None:
    platform = opened(namespace="nowhere")
    assert any('namespaces "nowhere" not found' in one.message for one in await platform.probe(request()) if one.blocks)
    with pytest.raises(Unreachable, match="the namespace nowhere") as refused:
        await start(platform)
    assert not refused.value.retryable


async def test_a_quota_is_a_finding_and_a_refusal(kube: KubeCluster, opened: Opener) -> None:
    kube.add_quota({"count/jobs.batch": "0"})
    platform = opened()
    assert any("exceeded quota" in one.message and one.blocks for one in await platform.probe(request()))
    with pytest.raises(SubmitFailed, match="exceeded quota"):
        await start(platform)


async def test_a_secret_that_may_not_be_made_takes_the_job_back(kube: KubeCluster, opened: Opener) -> None:
    kube.add_user("weak", lambda verb, resource: resource != "secrets")
    platform = opened("weak")
    [denied] = [one for one in await platform.probe(request()) if one.blocks]
    assert "create secrets" in denied.message
    with pytest.raises(SubmitFailed, match='cannot create resource "secrets"'):
        await start(platform)
    assert kube.jobs() == []


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kubeconfig": "/nowhere/config"}, "there is no kubeconfig at /nowhere/config"),
        ({"context": "other"}, "does not lead to a cluster"),
    ],
)
async def test_a_cluster_that_cannot_be_found_is_a_finding(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any], words: str
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    [found] = await opened(**settings).probe(request())
    assert found.blocks
    assert words in found.message
    assert found.remedy


@pytest.mark.parametrize(
    ("token", "settings", "words"),
    [
        ("admin", {"kubeconfig": "/nowhere/config"}, "there is no kubeconfig at /nowhere/config"),
        ("admin", {"context": "other"}, "does not lead to a cluster"),
        ("expired", {}, "Unauthorized"),
        ("admin", {"namespace": "nowhere"}, "the namespace nowhere does not show the cluster's certificate"),
    ],
)
async def test_a_launch_without_gates_says_what_leads_nowhere(
    opened: Opener, monkeypatch: pytest.MonkeyPatch, token: str, settings: dict[str, Any], words: str
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(Unreachable, match=words) as refused:
        await start(opened(token, **settings))
    assert refused.value.remedy
    assert not refused.value.retryable  # it is said at once


async def test_an_expired_token_is_a_finding(kube: KubeCluster, opened: Opener) -> None:
    [found] = await opened("expired").probe(request())
    assert (found.level, found.message) == (Level.FAIL, "Unauthorized")
    assert "log in again" in found.remedy


async def test_more_gpus_than_any_node_has_are_a_finding(opened: Opener) -> None:
    findings = await opened().probe(request(resources={"gpus": 9}))
    assert [one.message for one in findings if one.blocks] == [
        "9 nvidia.com/gpu are wanted, and the nodes have 16 in total, 8 on the largest"
    ]
    elastic = await opened(autoscales=True).probe(request(resources={"gpus": 9}))
    assert not [one for one in elastic if one.blocks]


async def test_a_cluster_without_gpus_is_told_what_offers_them(opened: Opener) -> None:
    found = await opened(gpu_resource="amd.com/gpu").probe(request(resources={"gpus": 1}))
    [blocks] = [one for one in found if one.blocks]
    assert blocks.message == "no node that fits offers amd.com/gpu"
    assert "device plugin" in blocks.remedy


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ({"nvidia.com/cuda.driver-version.full": "570.86.15"}, "the oldest GPU driver of the nodes is 570.86.15"),
        ({"nvidia.com/cuda.driver.major": "580"}, ""),
        ({}, "no node label names the GPU driver"),
    ],
)
async def test_the_driver_of_the_nodes_is_read_from_their_labels(
    kube: KubeCluster, opened: Opener, monkeypatch: pytest.MonkeyPatch, label: dict[str, str], words: str
) -> None:
    nodes = kube.store.all(NODES)
    for node in nodes:
        kube.store.update(NODES, node, lambda new: new["metadata"]["labels"].update(label))
    try:
        for skip, expected in (("", words), ("1", "")):
            monkeypatch.setenv("TAO_K8S_SKIP_NODE_RUNTIME_CHECK", skip)
            found = await opened().probe(request(resources={"gpus": 1}))
            told = [one for one in found if one.subject == "node runtime"]
            assert [one.message for one in told] == ([expected] if expected else [])
            assert all(one.level is Level.WARN and "TAO_K8S_SKIP_NODE_RUNTIME_CHECK=1" in one.remedy for one in told)
    finally:
        for node in nodes:
            kube.store.update(NODES, node, lambda new: [new["metadata"]["labels"].pop(name) for name in label])


async def test_several_nodes_on_an_old_cluster_are_a_finding(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(kube_discovery.VERSION, "minor", "27+")
    monkeypatch.setitem(kube_discovery.VERSION, "gitVersion", "v1.27.16")
    [found] = [one for one in await opened().probe(request(resources={"nodes": 2})) if one.blocks]
    assert found.message == "jobs on several nodes need Kubernetes 1.28, and this is v1.27.16"
    assert not [one for one in await opened().probe(request()) if one.blocks]


async def test_what_the_block_names_and_the_namespace_lacks_is_a_finding(kube: KubeCluster, opened: Opener) -> None:
    platform = opened(mounts=["pvc://data:/data"], results_root=None, image_pull_secret="ngc")
    messages = [one.message for one in await platform.probe(request()) if one.blocks]
    assert messages == [
        "there is no secret ngc in the namespace default",
        "there is no persistentvolumeclaim data in the namespace default",
    ]


async def test_a_volume_of_one_node_is_told_to_a_job_of_several(
    kube: KubeCluster, opened: Opener, tmp_path: Path
) -> None:
    kube.add_claim("alone", tmp_path, mode="ReadWriteOnce")
    platform = opened(mounts=[], results_root=None, results_claim="alone")
    found = {nodes: await platform.probe(request(resources={"nodes": nodes})) for nodes in (1, 2)}
    told = {nodes: [one for one in findings if "alone" in one.subject] for nodes, findings in found.items()}
    assert told[1] == []
    assert [(one.level, one.message) for one in told[2]] == [
        (Level.WARN, "the claim alone can be mounted on one node at a time, and the job has 2")
    ]


async def test_a_node_selector_that_matches_nothing_is_a_finding(opened: Opener) -> None:
    settings = {"node_selector": {"gpu-type": "h1oo"}}
    [found] = [one for one in await opened(**settings).probe(request()) if one.blocks]
    assert found.message == "no node has the labels gpu-type=h1oo"
    assert not [one for one in await opened(**settings, autoscales=True).probe(request()) if one.blocks]


async def test_what_a_webhook_denies_is_said_with_its_words_and_leaves_nothing(
    kube: KubeCluster, opened: Opener
) -> None:
    said = 'admission webhook "images.example" denied the request: image registry.example is not allowed'
    kube.api.fault = lambda method, path: (
        ApiError(403, "Forbidden", said) if method == "POST" and "/jobs" in path else None
    )
    [found] = [one for one in await opened().probe(request()) if one.blocks]
    assert said in found.message
    assert "webhook" in found.remedy
    with pytest.raises(SubmitFailed, match="is not allowed") as refused:
        await start(opened())
    assert "webhook" in refused.value.remedy
    assert kube.jobs() == kube.store.all(SECRETS) == []


@pytest.mark.parametrize(("field", "blocks"), [("podReplacementPolicy", False), ("suspend", True)])
async def test_what_the_cluster_drops_from_a_job_is_found_out_by_trying(
    kube: KubeCluster, opened: Opener, field: str, blocks: bool
) -> None:
    kube.api.missing_features.add(field)
    [found] = [one for one in await opened().probe(request()) if one.subject == "job"]
    assert field in found.message
    assert (found.blocks, found.level) == (blocks, Level.FAIL if blocks else Level.WARN)
    assert found.remedy
    assert kube.jobs() == []


def _refusing_pods(kube: KubeCluster, said: str, code: int = 403) -> None:
    kube.api.fault = lambda method, path: (
        ApiError(code, "Forbidden", said) if (method, path.partition("?")[0][-5:]) == ("POST", "/pods") else None
    )


POD_SECURITY = 'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "main" must ...)'
GPUS = "exceeded quota: gpus, requested: requests.nvidia.com/gpu={}, used: requests.nvidia.com/gpu=4, limited: {}"
PODS_REFUSED = [
    ("a policy", POD_SECURITY, True, "securityContext"),
    ("a quota that is too small", GPUS.format(8, "requests.nvidia.com/gpu=4"), True, "owner"),
    ("a quota for two Pods", GPUS.format(8, "requests.nvidia.com/gpu=8"), True, "owner"),
    ("a quota that is used up", GPUS.format(8, "requests.nvidia.com/gpu=16"), False, "sooner"),
    (
        "one of memory",
        "exceeded quota: m, requested: limits.memory=512Mi, used: limits.memory=1Gi, limited: limits.memory=1Gi",
        False,
        "sooner",
    ),
    ("a class", "no PriorityClass with name fast was found", True, "priority_class"),
    ("a webhook", 'admission webhook "x.example" does not support dry run', False, "go on"),
    ("a webhook that may ask who", 'admission webhook "x.example" denied the request: no', False, "webhook"),
    ("a policy that may ask who", "ValidatingAdmissionPolicy 'x' with binding 'y' denied request: no", False, "policy"),
]


@pytest.mark.parametrize(
    ("said", "blocks", "remedy"), [one[1:] for one in PODS_REFUSED], ids=[one[0] for one in PODS_REFUSED]
)
async def test_what_would_be_said_to_the_pods_of_a_job_is_told_before_a_launch(
    kube: KubeCluster, opened: Opener, said: str, blocks: bool, remedy: str
) -> None:
    _refusing_pods(kube, f'pods "tao-0" is forbidden: {said}')
    found = await opened().probe(request(resources={"nodes": 2}))
    [told] = [one for one in found if said in one.message]
    assert (told.level, told.blocks) == ((Level.FAIL, True) if blocks else (Level.WARN, False))
    assert remedy in told.remedy


async def test_a_webhook_that_cannot_be_tried_keeps_no_job_from_being_launched(
    kube: KubeCluster, opened: Opener
) -> None:
    said = 'admission webhook "x.example" does not support dry run'
    kube.api.fault = lambda method, path: ApiError(400, "BadRequest", said) if "dryRun=All" in path else None
    found = await opened().probe(request())
    assert not [one for one in found if one.blocks]
    assert [one.level for one in found if said in one.message] == [Level.WARN, Level.WARN]


async def test_a_quota_and_an_account_for_pods_are_tried_as_the_cluster_has_them(
    kube: KubeCluster, opened: Opener
) -> None:
    kube.add_quota({"requests.nvidia.com/gpu": "4", "limits.memory": "64Gi"})
    fits = request(resources={"gpus": 4, "memory": "8G"})
    assert not [one for one in await opened().probe(fits) if one.blocks]
    for asked, words in (
        (request(resources={"gpus": 8, "memory": "8G"}), "exceeded quota: quota, requested: requests.nvidia.com/gpu=8"),
        (request(resources={"gpus": 4}), "failed quota: quota: must specify limits.memory for: main"),
    ):
        [told] = [one for one in await opened().probe(asked) if one.blocks]
        assert words in told.message
        assert told.remedy
    [told] = [one for one in await opened(service_account="none").probe(fits) if one.blocks]
    assert 'serviceaccount "none" not found' in told.message
    assert "service_account" in told.remedy
