"""A job as Kubernetes objects: valid by the official schemas, without secrets, and as the user asked for it."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from prefect_tao.blocks import TaoKubernetes
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.kubernetes import render
from prefect_tao.platforms.kubernetes.pod_volumes import parse_mount
from prefect_tao.platforms.kubernetes.probes import RIGHTS
from prefect_tao.platforms.kubernetes.settings import KubernetesSettings

KEY = "0123456789abcdef"
NAME = f"tao-{KEY}-1"
SERVERS = ("1.28", "1.32", "1.36")
OWNER = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": NAME, "uid": "u-1", "labels": {**render.MANAGED, render.KEY: KEY, render.ATTEMPT: "1"}},
}


def rendered(settings: dict[str, Any] | None = None, command: str = "true", **fields: Any) -> Any:
    request = JobRequest.build(command=command, **{"image": "registry.example/tao:1", **fields})
    return render.render(request, KEY, 1, KubernetesSettings(**(settings or {})), "kubernetes/lab")


def job(settings: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(rendered(settings, **fields).files[render.JOB_FILE])
    for server in SERVERS:
        kubernetes_validate.validate(made, server, strict=True)
    return made


def pod(settings: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    spec: dict[str, Any] = job(settings, **fields)["spec"]["template"]["spec"]
    return spec


def env(settings: dict[str, Any] | None = None, **fields: Any) -> dict[str, str]:
    return {one["name"]: one.get("value", "") for one in pod(settings, **fields)["containers"][0]["env"]}


def test_a_job_is_one_pod_that_is_never_started_again() -> None:
    made = job()
    spec = made["spec"]
    assert made["metadata"]["name"] == NAME
    assert (spec["suspend"], spec["backoffLimit"], spec["parallelism"], spec["completions"]) == (True, 0, 1, 1)
    assert spec["podFailurePolicy"]["rules"][0]["action"] == "FailJob"
    assert spec["podReplacementPolicy"] == "Failed"
    assert spec["template"]["spec"]["restartPolicy"] == "Never"
    assert spec["template"]["metadata"]["labels"][render.KEY] == KEY
    assert spec["template"]["spec"]["automountServiceAccountToken"] is False


def test_only_a_job_whose_end_can_be_read_elsewhere_may_be_forgotten() -> None:
    assert "ttlSecondsAfterFinished" not in job()["spec"]
    assert "ttlSecondsAfterFinished" not in job({"results_claim": "data"})["spec"]
    assert job({"s3_bucket_name": "box"})["spec"]["ttlSecondsAfterFinished"] == 3600


def test_a_shape_becomes_requests_and_limits() -> None:
    shape = {"gpus": 2, "cpus": 4, "memory": "16G", "shm": "8G"}
    made = pod({"gpu_resource": "nvidia.com/mig-1g.5gb"}, resources=shape)
    resources = made["containers"][0]["resources"]
    assert resources["limits"] == {"cpu": "4", "memory": str(16 << 30), "nvidia.com/mig-1g.5gb": "2"}
    assert resources["requests"] == {"cpu": "4", "memory": str(16 << 30)}
    shm = next(one for one in made["volumes"] if one["name"] == "shm")
    assert shm["emptyDir"] == {"medium": "Memory", "sizeLimit": str(8 << 30)}
    assert env(resources={"gpus": 0})["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert pod(resources={"gpus": 0})["containers"][0]["resources"] == {}


def test_what_a_cluster_needs_of_a_pod_is_there() -> None:
    made = pod(
        {
            "service_account": "trainer",
            "image_pull_secret": "ngc",
            "node_selector": {"gpu": "h100"},
            "tolerations": ["nvidia.com/gpu"],
            "priority_class": "low",
            "run_as_user": 1000,
            "fs_group": 2000,
            "mounts": ["nfs://filer/export:/data:ro", "host:///models:/models", "pvc://sets/coco:/coco"],
            "results_claim": "results",
        }
    )
    assert made["serviceAccountName"] == "trainer"
    assert "automountServiceAccountToken" not in made
    assert made["imagePullSecrets"] == [{"name": "ngc"}]
    assert made["securityContext"] == {"runAsUser": 1000, "fsGroup": 2000}
    assert (made["nodeSelector"], made["priorityClassName"]) == ({"gpu": "h100"}, "low")
    places = {one["mountPath"]: one for one in made["containers"][0]["volumeMounts"]}
    assert places["/data"]["readOnly"]
    assert places["/coco"]["subPath"] == "coco"
    assert set(places) == {"/prefect-tao", "/prefect-tao-work", "/results", "/data", "/models", "/coco"}


@pytest.mark.parametrize(("group", "mode"), [(None, 0o444), (2000, 0o440)])
def test_an_image_whose_user_is_not_root_can_read_its_files(group: int | None, mode: int) -> None:
    [files] = [one for one in pod({"fs_group": group})["volumes"] if one["name"] == "job"]
    assert files["projected"]["defaultMode"] == mode


def test_a_given_pod_template_is_kept_where_we_say_nothing_ourselves() -> None:
    given = {
        "metadata": {"labels": {"team": "vision", render.KEY: "stolen"}},
        "spec": {
            "restartPolicy": "Always",
            "affinity": {"nodeAffinity": {}},
            "containers": [
                {"name": "main", "image": "other", "securityContext": {"privileged": False}},
                {"name": "side", "image": "side:1"},
            ],
            "volumes": [{"name": "cache", "csi": {"driver": "some.csi.example"}}],
        },
    }
    template = job({"pod_template": given})["spec"]["template"]
    main, side = template["spec"]["containers"]
    assert template["metadata"]["labels"] == {**template["metadata"]["labels"], "team": "vision", render.KEY: KEY}
    assert template["spec"]["restartPolicy"] == "Never"
    assert main["image"] == "registry.example/tao:1"
    assert main["securityContext"] == {"privileged": False}
    assert side == {"name": "side", "image": "side:1"}
    assert {one["name"] for one in template["spec"]["volumes"]} == {"job", "work", "cache"}


def test_a_dollar_means_itself() -> None:
    assert env(env={"WORDS": "$(HOME) $$ $HOME"})["WORDS"] == "$$(HOME) $$$$ $$HOME"
    assert "$" not in "".join(pod()["containers"][0]["command"])


def test_nodes_find_each_other_by_a_service() -> None:
    made = rendered(resources={"nodes": 3, "gpus": 8})
    manifest, service = (json.loads(made.files[name]) for name in (render.JOB_FILE, render.SERVICE_FILE))
    for server in SERVERS:
        kubernetes_validate.validate(service, server, strict=True)
    spec = manifest["spec"]
    assert (spec["completionMode"], spec["parallelism"], spec["completions"]) == ("Indexed", 3, 3)
    assert spec["template"]["spec"]["subdomain"] == service["metadata"]["name"] == NAME
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"]
    assert service["spec"]["selector"] == {"job-name": NAME}
    told = env(resources={"nodes": 3, "gpus": 8})
    assert {"WORLD_SIZE": "3", "NNODES": "3", "NUM_GPU_PER_NODE": "8", "NPROC_PER_NODE": "8"}.items() <= told.items()
    assert (told["MASTER_ADDR"], told["MASTER_PORT"]) == (f"{NAME}-0.{NAME}", "29500")
    assert "NODE_RANK" in told
    assert env(resources={"nodes": 2}, env={"MASTER_PORT": "1234"})["MASTER_PORT"] == "1234"


def test_a_spec_of_any_size_travels_in_secrets_that_the_job_owns() -> None:
    small, large = rendered(), rendered(specs={"names": [f"{number * 7919:x}" for number in range(900_000)]})
    for made in (small, large):
        manifests = render.secret_manifests(NAME, "default", OWNER, made.files, {"TOKEN": "s3cret"})
        for one in manifests:
            kubernetes_validate.validate(one, "1.32", strict=True)
            assert one["metadata"]["ownerReferences"][0]["uid"] == "u-1"
            assert sum(len(base64.b64decode(data)) for data in one["data"].values()) <= 1 << 20
        sources = json.loads(made.files[render.JOB_FILE])["spec"]["template"]["spec"]["volumes"][0]["projected"][
            "sources"
        ]
        assert [one["secret"]["name"] for one in sources] == [one["metadata"]["name"] for one in manifests]
        parts = {name: data for one in manifests for name, data in one["data"].items()}
        script = b"".join(base64.b64decode(parts[name]) for name in sorted(parts) if name.startswith("start.sh."))
        assert script == made.files[render.SCRIPT_FILE]
    assert len(manifests) > 2


def test_the_text_shows_all_but_the_secrets() -> None:
    made = rendered(command="train -e {config_path}", specs={"lr": 0.1}, secrets=["TOKEN"])
    assert "TOKEN" in made.text
    assert "lr" in made.text
    assert [one["kind"] for one in yaml.safe_load_all(made.text)] == ["Job"]


def test_a_handle_is_read_from_a_job() -> None:
    made = job({"s3_bucket_name": "box"}, labels={"run": "a b/c"})
    handle = render.handle_of("kubernetes/lab", {**made, "metadata": {**made["metadata"], "uid": "u-1"}})
    assert handle
    assert (handle.name, handle.native_id, handle.labels) == (NAME, "u-1", {"run": "a b/c"})
    assert handle.results == f"s3://box/results/{KEY}"
    made["metadata"]["labels"][render.KEY] = "another"
    assert render.handle_of("kubernetes/lab", made) is None


@pytest.mark.parametrize(
    ("settings", "fields", "words"),
    [
        ({}, {"image": None}, "no image"),
        ({}, {"resources": {"gpus": -1}}, "how many GPUs"),
        ({"results_root": "results"}, {}, "not an absolute path"),
        ({"results_root": "/results"}, {}, "no volume is mounted"),
        ({"mounts": ["/data:/data"]}, {}, "is no mount"),
    ],
)
def test_what_cannot_run_is_refused_before_anything_is_sent(
    settings: dict[str, Any], fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        rendered(settings, **fields)
    assert refused.value.remedy


@pytest.mark.parametrize("text", ["pvc://claim", "ftp://x/y:/z", "host:///a:b", "nfs://s/p:/x:rx"])
def test_a_mount_says_what_and_where(text: str) -> None:
    with pytest.raises(InvalidInput, match="is no mount"):
        parse_mount(text)


def test_the_role_grants_exactly_the_rights_that_are_checked() -> None:
    path = Path(__file__).parents[2] / "deployments" / "kubernetes" / "rbac.yaml"
    [role] = [one for one in yaml.safe_load_all(path.read_text()) if one["kind"] == "Role"]
    granted = {
        (verb, rule["apiGroups"][0], resource)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert granted == set(RIGHTS)


def test_a_bad_node_is_left_out_of_every_term_of_the_blocks_own_affinity() -> None:
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]} for zone in "ab"]
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    apart: dict[str, Any] = {"preferredDuringSchedulingIgnoredDuringExecution": []}
    affinity = {"nodeAffinity": {required: {"nodeSelectorTerms": terms}}, "podAffinity": apart}
    made = job({"pod_template": {"spec": {"affinity": affinity}}})
    found = render.avoiding(made, ["n1", "n2"])["spec"]["template"]["spec"]["affinity"]
    away = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("n1", "n2")]
    assert found["nodeAffinity"][required]["nodeSelectorTerms"] == [{**term, "matchFields": away} for term in terms]
    assert found["podAffinity"] == apart
    assert render.avoiding(made, []) == made


def test_a_longest_run_is_the_pods_and_counts_from_its_start() -> None:
    made = job({"active_deadline_seconds": 3600})
    assert made["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 3600
    assert "activeDeadlineSeconds" not in made["spec"]


def test_tolerations_are_written_as_taints_in_a_block() -> None:
    block = TaoKubernetes(tolerations="nvidia.com/gpu, team=vision, spot=true:NoSchedule, gone:NoExecute")
    saved = TaoKubernetes(**block.model_dump(mode="json")).tolerations
    assert job({"tolerations": saved})["spec"]["template"]["spec"]["tolerations"] == [
        {"key": "nvidia.com/gpu", "operator": "Exists"},
        {"key": "team", "operator": "Equal", "value": "vision"},
        {"key": "spot", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
        {"key": "gone", "operator": "Exists", "effect": "NoExecute"},
    ]
