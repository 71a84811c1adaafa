"""Lepton jobs as they are sent: what the real client's own models and checks accept, and nothing secret in them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.platform import Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.lepton import render
from prefect_tao.platforms.lepton.settings import LeptonSettings

KEY = "0123456789abcdef"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reads this folder while it is imported."""
    monkeypatch.setenv("LEPTON_CACHE_DIR", str(tmp_path / "lepton"))


def drawn(command: str = "train", settings: dict[str, Any] | None = None, attempt: int = 1, **fields: Any) -> Rendered:
    given = LeptonSettings(workspace_id="ws1", **({"s3_bucket_name": "mine"} if settings is None else settings))
    request = JobRequest.build(**{"command": command, "image": "nvcr.io/nvidia/tao:7", **fields})
    return render.render(request, KEY, attempt, given, "lepton/team")


def body(rendered: Rendered) -> dict[str, Any]:
    return dict(json.loads(rendered.files[render.BODY]))


def envs(rendered: Rendered) -> dict[str, str | None]:
    return {one["name"]: one.get("value") for one in body(rendered)["spec"]["envs"]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("settings", "fields"),
    [
        ({}, {}),
        ({"results_root": "/mnt/lustre/me"}, {"resources": {"gpus": 8, "nodes": 2, "shm": "8G"}}),
        ({"mounts": ["lustre:/team:/data"], "resource_shape": "gpu.8xh100-sxm"}, {"secrets": ["HF_TOKEN"]}),
        ({"queue_priority": "mid-4000", "can_be_preempted": True, "reservation": "r-1"}, {"labels": {"run": "a b/c"}}),
        ({"image_pull_secret": "ngc", "s3_bucket_name": "mine"}, {"specs": {"a": ["x" * 999] * 2000}}),
    ],
)
def test_the_real_client_takes_what_is_rendered(settings: dict[str, Any], fields: dict[str, Any]) -> None:
    from leptonai.api.v2.job_validation import validate_job_create
    from leptonai.api.v2.types.job import LeptonJob

    sent = body(drawn("train -e {config_path}", settings, attempt=9999, **fields))
    job = LeptonJob(**sent)
    validate_job_create(job)
    again = job.model_dump(exclude_none=True, by_alias=True, mode="json")
    assert again["metadata"] == sent["metadata"]
    assert {name: again["spec"][name] for name in sent["spec"]} == sent["spec"]


def test_what_the_service_would_decide_badly_is_said() -> None:
    spec = body(drawn())["spec"]
    assert spec["ttl_seconds_after_finished"] == 259200
    assert spec["log"] == {"enable_collection": True, "save_termination_logs": True}
    assert "intra_job_communication" not in spec
    assert len(body(drawn(attempt=9999))["metadata"]["id"]) <= 36


def test_several_nodes_meet_at_the_first_one(tmp_path: Path) -> None:
    rendered = drawn('echo "$NODE_RANK $MASTER_ADDR $MASTER_PORT $NNODES"', {}, resources={"nodes": 3, "gpus": 8})
    spec = body(rendered)["spec"]
    assert (spec["completions"], spec["parallelism"], spec["intra_job_communication"]) == (3, 3, True)
    lepton = {
        "LEPTON_JOB_SERVICE_PREFIX": "tao-x-98bw",
        "LEPTON_SUBDOMAIN": "tao-x-98bw-job-svc",
        "LEPTON_JOB_WORKER_INDEX": "2",
        "LEPTON_JOB_TOTAL_WORKERS": "3",
    }
    env = lepton | {"PATH": _path(), "TAO_WORK_DIR": str(tmp_path)}
    done = subprocess.run(spec["container"]["command"], env=env, capture_output=True, text=True)
    assert "2 tao-x-98bw-0.tao-x-98bw-job-svc 29400 3\n" in done.stdout


def _path() -> str:
    return f"{Path(sys.executable).parent}:/usr/bin:/bin"


def test_secrets_travel_by_the_names_that_the_workspace_keeps_them_under() -> None:
    rendered = drawn(secrets=["HF_TOKEN"])
    (ref,) = [one for one in body(rendered)["spec"]["envs"] if one["name"] == "HF_TOKEN"]
    assert ref == {"name": "HF_TOKEN", "value_from": {"secret_name_ref": f"tao-{KEY}-1.HF_TOKEN"}}
    assert render.owner_of_secret(f"tao-{KEY}-1.HF_TOKEN") == f"tao-{KEY}-1"
    assert render.owner_of_secret("HF_TOKEN") is None
    assert render.owner_of_secret("team.HF_TOKEN") is None


def test_results_go_to_the_mount_else_to_the_bucket() -> None:
    assert envs(drawn(settings={"results_root": "/mnt/x/", "s3_bucket_name": "b"}))["TAO_RESULTS_ROOT"] == "/mnt/x"
    bucket = envs(drawn(settings={"s3_bucket_name": "s3://mine/", "s3_endpoint_url": "http://s3"}))
    assert "TAO_RESULTS_ROOT" not in bucket
    assert (bucket["S3_BUCKET_NAME"], bucket["S3_ENDPOINT_URL"]) == ("s3://mine/", "http://s3")
    assert "TAO_CLAIM" in bucket
    assert "TAO_CLAIM" not in envs(drawn(settings={}))


def test_a_handle_comes_back_as_it_was_sent() -> None:
    rendered = drawn(labels={"run": "a b/c", "step": "é"})
    listed = {**body(rendered), "metadata": {**body(rendered)["metadata"], "id": "x-98bw", "name": f"tao-{KEY}-1"}}
    handle = render.handle_of("lepton/team", listed)
    assert handle
    assert (handle.name, handle.native_id, handle.results) == (f"tao-{KEY}-1", "x-98bw", f"s3://mine/results/{KEY}")
    assert (handle.labels, handle.digest) == ({"run": "a b/c", "step": "é"}, rendered.request.digest)


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"metadata": None},
        {"metadata": {"id": "x", "name": "x", "labels": {"prefect-tao": "true"}}},
        {"metadata": {"id": "x", "name": f"tao-{KEY}-1", "labels": None}, "spec": None},
    ],
)
def test_jobs_of_others_have_no_handle(raw: dict[str, Any]) -> None:
    assert render.handle_of("lepton/team", raw) is None


def test_a_job_that_another_version_sent_is_still_ours() -> None:
    metadata = {"id": "x", "name": f"tao-{KEY}-1", "labels": {"prefect-tao": "true"}}
    odd = {"name": render.FACTS, "value": '{"labels": 3}'}
    for spec in ({}, {"envs": None}, {"envs": [odd]}):
        handle = render.handle_of("lepton/team", {"metadata": metadata, "spec": spec})
        assert handle
        assert handle.native_id == "x"


def test_a_large_spec_travels_through_the_bucket() -> None:
    large = {"classes": [f"{number:x}-{number * 7919:x}" for number in range(40_000)]}
    rendered = drawn("train -e {config_path}", specs=large)
    assert len(json.dumps(body(rendered))) < 60_000
    assert json.loads(rendered.files["plan.json"])["specs"] == large
    with pytest.raises(InvalidInput, match="100 KB") as refused:
        drawn("train -e {config_path}", {"results_root": "/mnt/x"}, specs=large)
    assert "S3_BUCKET_NAME" in refused.value.remedy


@pytest.mark.parametrize(
    ("settings", "fields", "words"),
    [
        ({}, {"image": None}, "no image"),
        ({"mounts": ["lustre"]}, {}, "no mount"),
        ({"mounts": ["lustre:data:/x"]}, {}, "no mount"),
        ({"mounts": ["lustre:/a:/b:/c"]}, {}, "no mount"),
        ({}, {"env": {"LEPTON_JOB_NAME": "mine"}}, "sets the variable LEPTON_JOB_NAME itself"),
    ],
)
def test_what_cannot_run_is_refused(settings: dict[str, Any], fields: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        drawn(settings=settings, **fields)
    assert refused.value.remedy


def test_the_text_says_what_is_chosen_when_the_job_is_sent() -> None:
    text = drawn("train", {"results_root": "/mnt/x", "node_group": "h100"}, resources={"gpus": -1}).text
    assert f"tao-{KEY}-1" in text
    for words in ("node group: h100", "all GPUs of a node", "the node group's storage that holds /mnt/x", "NGC_KEY"):
        assert words in text
    named = drawn(settings={"resource_shape": "gpu.h100", "mounts": ["lustre:/a"], "image_pull_secret": "ngc"}).text
    for words in ("shape:", "mount:", "NGC_KEY"):
        assert words not in named
