"""What object storage answers is told apart: readable, missing, denied, silent; and nothing is left in a bucket."""

from __future__ import annotations

import importlib
import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest
from gate_tools import Elsewhere, launch, level_of, only, resolved
from http_faults import Fault, Faults
from opened_platforms import slurm_at
from s3_server import S3Server

from prefect_tao.jobs.finding import Finding, Level, blocking
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.registry import registered
from prefect_tao.preflight.checks import idle_gpus, object_storage
from prefect_tao.preflight.gates import run_gate, run_gates
from prefect_tao.storage import objects

CREDENTIALS = {"ACCESS_KEY": "access-key-4711", "SECRET_KEY": "secret-key-0815", "CLOUD_REGION": "eu-north-1"}


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with S3Server() as running:
        yield running.endpoint


@pytest.fixture
def client(endpoint: str) -> Iterator[Any]:
    """An owner's view of the storage, with two buckets."""
    post(endpoint, "reset")
    made = boto3.client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="owner",
        aws_secret_access_key="owner",
    )
    for bucket in ("data", "outbox"):
        made.create_bucket(Bucket=bucket)
    made.put_object(Bucket="data", Key="train/annotations.json", Body=json.dumps([{"video_fps": 1}, {"id": 2}]))
    made.put_object(Bucket="data", Key="train/empty.json", Body=b"")
    made.put_object(Bucket="data", Key="train/images/1.png", Body=b"1")
    yield made
    post(endpoint, "reset-auth", b"inf")


@pytest.fixture
def credentials(endpoint: str, client: Any) -> dict[str, str]:
    return {**CREDENTIALS, "S3_ENDPOINT_URL": endpoint}


def post(endpoint: str, command: str, data: bytes = b"") -> None:
    plain = {"Content-Type": "application/octet-stream"}
    with urllib.request.urlopen(urllib.request.Request(f"{endpoint}/moto-api/{command}", data, plain), timeout=10):
        pass


def content(client: Any) -> list[str]:
    """Everything in both buckets, older versions included."""
    found = []
    for bucket in ("data", "outbox"):
        listed = client.list_object_versions(Bucket=bucket)
        found += [
            f"{bucket}/{entry['Key']}" for kind in ("Versions", "DeleteMarkers") for entry in listed.get(kind, [])
        ]
    return sorted(found)


async def look(credentials: dict[str, str], uri: str) -> Finding:
    [found] = await run_gate(
        "datasets", launch("kubernetes", ask=resolved("kubernetes", {"key": uri}), credentials=credentials)
    )
    return found


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("s3://data/train/annotations.json", "object"),
        ("s3://data/train", "prefix"),
        ("s3://data/train/", "prefix"),
        ("s3://data", "prefix"),
    ],
)
async def test_an_object_or_a_prefix_is_found_by_asking(credentials: dict[str, str], uri: str, kind: str) -> None:
    found = await look(credentials, uri)
    assert found.level is Level.OK
    assert found.evidence.startswith(kind)


@pytest.mark.parametrize(
    "uri", ["s3://data/train/annotations", "s3://data/tra", "s3://data/nothing/", "s3://nobucket/a"]
)
async def test_what_is_not_there_fails(credentials: dict[str, str], uri: str) -> None:
    found = await look(credentials, uri)
    assert found.level is Level.FAIL
    assert "there is nothing" in found.message or "bucket does not exist" in found.message
    assert found.remedy


@pytest.mark.parametrize("uri", ["s3://", "s3:///train", "s3://Not A Bucket/train"])
async def test_a_location_without_a_usable_bucket_fails(credentials: dict[str, str], uri: str) -> None:
    found = await look(credentials, uri)
    assert found.level is Level.FAIL
    assert "s3://<bucket>/<path>" in found.remedy


async def test_denied_fails_with_a_remedy_for_the_credentials(endpoint: str, credentials: dict[str, str]) -> None:
    post(endpoint, "reset-auth", b"0")
    found = await look(credentials, "s3://data/train/annotations.json")
    assert found.level is Level.FAIL
    assert "ACCESS_KEY and SECRET_KEY" in found.remedy


async def test_a_wrong_clock_is_told_as_such(endpoint: str, credentials: dict[str, str]) -> None:
    with Faults(int(endpoint.rpartition(":")[2])) as proxy:
        proxy.rules.append(lambda request: Fault(status=403, code="RequestTimeTooSkewed"))
        found = await look({**credentials, "S3_ENDPOINT_URL": proxy.endpoint}, "s3://data/train/annotations.json")
    assert found.level is Level.FAIL
    assert "RequestTimeTooSkewed" in found.message
    assert "clock" in found.remedy


async def test_an_endpoint_that_does_not_answer_is_unknown(credentials: dict[str, str]) -> None:
    found = await look({**credentials, "S3_ENDPOINT_URL": "http://127.0.0.1:9"}, "s3://data/train")
    assert found.level is Level.UNKNOWN
    assert "S3_ENDPOINT_URL" in found.remedy


async def test_an_endpoint_that_is_no_address_fails(credentials: dict[str, str]) -> None:
    found = await look({**credentials, "S3_ENDPOINT_URL": "minio.local:9000"}, "s3://data/train")
    assert found.level is Level.FAIL
    assert "https://" in found.remedy


# -- data that GPUs would wait for -------------------------------------------------------------------------------------


async def waits(credentials: dict[str, str], rule: dict[str, Any] | None = None, **settings: Any) -> list[Finding]:
    """What the gate says of a SLURM job that downloads two inputs, besides that they are there."""
    driver = slurm_at(hostnames=["nowhere"], **settings)
    specs = {"file": "s3://data/train/annotations.json", "folder": "s3://data/train/images"}
    request = JobRequest.build(
        command="true {config_path}", specs=specs, inputs={"file": {}, "folder": {"type": "folder", **(rule or {})}}
    )
    findings = await run_gate(
        "datasets", launch("slurm", driver, ask=resolved("slurm", request=request), credentials=credentials)
    )
    return [finding for finding in findings if finding.subject == idle_gpus.SUBJECT]


async def test_data_that_gpus_would_wait_for_is_warned_of_with_its_size(credentials: dict[str, str]) -> None:
    [found] = await waits(credentials)
    assert found.level is Level.WARN
    assert "the GPUs wait while 30 B are downloaded" in found.message
    assert "lustre://" in found.remedy
    assert await waits(credentials, allow_s3_inputs=True) == []


async def test_more_than_a_gigabyte_needs_a_persons_word(
    credentials: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(idle_gpus, "LARGEST", 29)  # the two together are more, neither of them alone
    [found] = await waits(credentials)
    assert found.level is Level.FAIL
    assert "more than 29 B" in found.message
    assert "allow_s3_inputs" in found.remedy
    assert await waits(credentials, allow_s3_inputs=True) == []
    chosen = {"selective": {"annotation": "file", "keys": ["video"]}}
    [found] = await waits(credentials, chosen)
    assert (found.level, "only a part of it" in found.message) == (Level.UNKNOWN, True)


async def test_data_is_counted_only_so_far(
    credentials: dict[str, str], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(objects, "MOST_OBJECTS", 3)
    for number in range(5):
        client.put_object(Bucket="data", Key=f"train/images/more-{number}", Body=b"")
    [found] = await waits(credentials)
    assert found.level is Level.FAIL
    assert "objects are downloaded" in found.message


@pytest.mark.parametrize(
    ("change", "words"),
    [({"SECRET_KEY": ""}, "SECRET_KEY missing"), ({"S3_ENDPOINT_URL": "http://127.0.0.1:9"}, "answer")],
)
async def test_a_size_that_cannot_be_known_is_unknown(
    credentials: dict[str, str], change: dict[str, str], words: str
) -> None:
    [found] = await waits({**credentials, **change})
    assert found.level is Level.UNKNOWN
    assert "size not known" in found.message
    assert words in found.message
    assert found.remedy


# -- what is asked at all ----------------------------------------------------------------------------------------------


async def test_without_keys_nothing_is_asked() -> None:
    found = await look({"S3_ENDPOINT_URL": "http://127.0.0.1:9", "SECRET_KEY": ""}, "s3://data/train")
    assert found.level is Level.UNKNOWN
    assert "ACCESS_KEY and SECRET_KEY missing" in found.message


async def test_without_boto3_the_finding_says_what_to_install(
    credentials: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def absent(name: str) -> ModuleType:
        if name.startswith("boto"):
            raise ModuleNotFoundError(name=name)
        return importlib.import_module(name)

    monkeypatch.setattr(objects, "import_module", absent)
    found = await look(credentials, "s3://data/train")
    assert found.level is Level.FAIL
    assert found.remedy == "pip install 'prefect-tao[aws]'"


@pytest.mark.parametrize("versions", [False, True])
async def test_the_results_bucket_is_tried_and_left_as_it_was(
    credentials: dict[str, str], client: Any, versions: bool
) -> None:
    if versions:
        client.put_bucket_versioning(Bucket="outbox", VersioningConfiguration={"Status": "Enabled"})
    before = content(client)
    findings = await run_gate("datasets", launch("kubernetes", credentials={**credentials, "S3_BUCKET_NAME": "outbox"}))
    assert level_of(findings, "results S3_BUCKET_NAME") is Level.OK
    assert content(client) == before


async def test_a_results_bucket_that_is_not_there_fails(credentials: dict[str, str]) -> None:
    findings = await run_gate(
        "datasets", launch("kubernetes", credentials={**credentials, "S3_BUCKET_NAME": "gone-away"})
    )
    found = only(findings, "results S3_BUCKET_NAME")
    assert found.level is Level.FAIL
    assert "gone-away" not in found.model_dump_json()


async def test_results_of_the_spec_are_tried_where_they_will_be(credentials: dict[str, str], client: Any) -> None:
    spec = {"results_dir": "s3://outbox/mine"}
    ask = resolved("kubernetes", request=JobRequest.build(command="true", specs=spec, outputs=["results_dir"]))
    before = content(client)
    findings = await run_gate("datasets", launch("kubernetes", ask=ask, credentials=credentials))
    assert level_of(findings, "results results_dir") is Level.OK
    assert content(client) == before


async def test_a_probe_that_cannot_be_deleted_is_a_warning(credentials: dict[str, str], client: Any) -> None:
    policy = {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Deny", "Principal": "*", "Action": "s3:DeleteObject", "Resource": "arn:aws:s3:::outbox/*"}
        ],
    }
    client.put_bucket_policy(Bucket="outbox", Policy=json.dumps(policy))
    findings = await run_gate("datasets", launch("kubernetes", credentials={**credentials, "S3_BUCKET_NAME": "outbox"}))
    found = only(findings, "results S3_BUCKET_NAME")
    assert found.level is Level.WARN
    assert object_storage.PROBE_NAME in found.remedy


async def test_annotations_are_sampled_from_storage(credentials: dict[str, str]) -> None:
    paths = {"train": "s3://data/train/annotations.json", "empty": "s3://data/train/empty.json"}
    fields = {"train": ["video_fps"], "empty": ["id"], "typo": ["id"]}
    ask = resolved("kubernetes", paths)
    findings = await run_gate(
        "datasets", launch("kubernetes", ask=ask, credentials=credentials, json_required_fields=fields)
    )
    assert "record 2 lacks video_fps" in only(findings, "annotation train").message
    assert "no record" in only(findings, "annotation empty").message
    assert "train, empty" in only(findings, "annotation typo").remedy


async def test_storage_is_asked_although_the_platform_does_not_answer(credentials: dict[str, str]) -> None:
    datasets = {"a": "s3://data/train", "b": "/mnt/volume"}
    findings = await run_gate(
        "datasets", launch("kubernetes", ask=resolved("kubernetes", datasets), credentials=credentials)
    )
    assert level_of(findings, "input a") is Level.OK
    assert level_of(findings, "input b") is Level.FAIL


async def test_no_value_of_a_credential_is_in_any_finding(
    credentials: dict[str, str], client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, endpoint: str
) -> None:
    monkeypatch.setitem(registered(), "kubernetes", registered()["process"])
    driver = Elsewhere(tmp_path)
    driver.answer = [Finding(level=Level.FAIL, subject="token", message="Bearer token-of-hf-99 was refused")]
    supplied = {**credentials, "S3_BUCKET_NAME": "outbox", "HF_TOKEN": "token-of-hf-99", "LEPTON_AUTH_TOKEN": "x"}
    ask = resolved("kubernetes", {"a": "s3://data/train", "b": "s3://nobucket/x"})
    seen = []
    for rule in (b"inf", b"0"):
        post(endpoint, "reset-auth", rule)
        for address in (endpoint, "http://127.0.0.1:9", "nonsense"):
            values = {**supplied, "S3_ENDPOINT_URL": address}
            gates = await run_gates(launch("kubernetes", driver, ask=ask, credentials=values))
            seen += [(found.model_dump_json(), values) for findings in gates.values() for found in findings]
            assert blocking(gates["datasets"])
    for text, values in seen:
        for name in ("ACCESS_KEY", "SECRET_KEY", "HF_TOKEN", "S3_ENDPOINT_URL", "S3_BUCKET_NAME", "CLOUD_REGION"):
            assert values[name] not in text, name
