"""Requests are checked before anything runs; handles, observations, verdicts and outcomes travel as JSON."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from prefect_tao.jobs.clock import now
from prefect_tao.jobs.errors import InvalidInput, JobFailed, TaoError
from prefect_tao.jobs.finding import Finding, Level, blocking
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName, job_key, run_label
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.request import InputRule, JobRequest, OutputRule, Resources
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.jobs.statusfile import Progress
from prefect_tao.jobs.target import Target
from prefect_tao.jobs.verdict import Evidence, NodeEvent, Verdict, classify

KEY = "0123456789abcdef"
TOKEN = "nvapi-" + "a1B2" * 10


def request(**fields: Any) -> JobRequest:
    return JobRequest.build(**{"command": "python train.py", **fields})


def problems(**fields: Any) -> list[str]:
    """What a person is told about these fields."""
    with pytest.raises(InvalidInput) as caught:
        request(**fields)
    assert caught.value.findings
    assert all(finding.blocks and finding.remedy for finding in caught.value.findings)
    return [finding.message for finding in caught.value.findings]


# -- JSON --------------------------------------------------------------------------------------------------------------


def full_request() -> JobRequest:
    return request(
        image="nvcr.io/nvidia/tao/tao-toolkit:6.0.0-pyt",
        specs={"train": {"num_epochs": 3, "lr": 1e-05}, "dataset": {"roots": ["s3://bucket/a", None, True]}},
        inputs={"dataset.roots": InputRule(type="folder", optional=True)},
        outputs={"results_dir": OutputRule()},
        resources={"gpus": 8, "nodes": 2, "cpus": 16, "memory": "64G", "time_limit": "4h", "shm": "8G"},
        env={"COLOR": "green"},
        secrets=["NGC_KEY"],
        model="tiny",
        action="train",
        labels={"run": "abc"},
    )


def handle() -> JobHandle:
    return JobHandle(
        target="slurm/polar", key=KEY, attempt=2, native_id="4711", results="/r", digest="d", labels={"run": "abc"}
    )


def observation() -> Observation:
    return Observation(
        state=JobState.ERROR,
        native_state="TIMEOUT",
        reason="stopped",
        evidence="sacct",
        exit_code=143,
        ended_by=EndedBy.TIME_LIMIT,
        started_at=datetime(2026, 1, 1, tzinfo=UTC),
        ended_at=datetime(2026, 1, 2, tzinfo=UTC),
        restarts=1,
        progress=Progress(epoch=3, max_epoch=10, metrics={"loss": 0.5}),
    )


def verdict() -> Verdict:
    event = NodeEvent(name="NodeNotReady", message="kubelet stopped posting", node="gpu-7")
    return classify(Evidence(exit_code=137, native_state="NODE_FAIL", log_tail="é漢🙂\n", node_events=(event,)))


def outcome() -> Outcome:
    seen = observation()
    return Outcome(
        handle=handle(),
        state=seen.state,
        verdict=verdict(),
        progress=seen.progress,
        exit_code=143,
        started_at=seen.started_at,
        ended_at=seen.ended_at,
        results="/r",
        files=("/r/train/model_epoch_003.pth", "/r/train/status.json"),
    )


@pytest.mark.parametrize(
    "noun", [full_request(), handle(), observation(), verdict(), outcome()], ids=lambda n: type(n).__name__
)
def test_every_noun_survives_the_way_through_json(noun: BaseModel) -> None:
    read = type(noun).model_validate_json(noun.model_dump_json())
    assert read.model_dump() == noun.model_dump()
    assert type(noun).model_validate(json.loads(json.dumps(noun.model_dump(mode="json")))) == noun


def test_nouns_cannot_be_changed_and_know_no_other_fields() -> None:
    with pytest.raises(ValidationError):
        handle().attempt = 3  # type: ignore[misc]
    with pytest.raises(ValidationError):
        JobHandle.model_validate({**handle().model_dump(), "extra": 1})


def test_a_request_read_back_is_the_same_work() -> None:
    first = full_request()
    assert JobRequest.model_validate_json(first.model_dump_json()).digest == first.digest


def test_an_outcome_knows_its_checkpoints_metrics_and_duration() -> None:
    end = outcome()
    assert end.checkpoints == ["/r/train/model_epoch_003.pth"]
    assert end.metrics == {"loss": 0.5}
    assert end.seconds == 86400


# -- handles, names, targets -------------------------------------------------------------------------------------------


def test_two_handles_are_the_same_job_when_target_and_name_are() -> None:
    other = handle().model_copy(update={"native_id": "4712", "results": "", "labels": {}})
    assert other == handle()
    assert len({other, handle()}) == 1
    assert handle().model_copy(update={"attempt": 3}) != handle()
    assert handle().model_copy(update={"target": "slurm/other"}) != handle()
    assert (handle().name, handle().platform) == (f"tao-{KEY}-2", "slurm")


@pytest.mark.parametrize("fields", [{"key": "short"}, {"key": KEY.upper()}, {"key": f"{KEY}\n"}, {"attempt": 0}])
def test_a_handle_with_an_impossible_name_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        JobHandle(**{"target": "process", "key": KEY, "attempt": 1, **fields})


def test_names_are_read_back_and_others_are_refused() -> None:
    assert JobName.parse(str(JobName(KEY, 12))) == (KEY, 12)
    assert JobName.parse(f"tao-job-{KEY}-1") == (KEY, 1)
    for text in (
        "",
        "tao",
        f"tao-{KEY}",
        f"tao-{KEY}-0",
        f"tao-{KEY}-01",
        f"tao-{KEY}-1.bak",
        f"x-{KEY}-1",
        f"tao-{KEY}-1\n",
    ):
        with pytest.raises(InvalidInput):
            JobName.parse(text)


def test_a_key_is_the_same_for_the_same_run_and_step_only() -> None:
    assert job_key("run", "train") == job_key("run", "train")
    keys = {job_key("run", "train"), job_key("run", "export"), job_key("other", "train"), job_key("runt", "rain")}
    assert len(keys) == 4
    assert all(JobName.parse(f"tao-{key}-1").key == key for key in keys)
    assert run_label("run") != run_label("other")


def test_targets_are_a_platform_and_a_block() -> None:
    assert Target.parse("process") == ("process", None)
    assert Target.parse(" slurm/polar ") == ("slurm", "polar")
    assert str(Target.parse("slurm/polar")) == "slurm/polar"
    for text in ("", "/", "/polar", "slurm/", "slurm/Polar", "slurm/a/b", "slurm/a b"):
        with pytest.raises(InvalidInput, match="is not a target"):
            Target.parse(text)


# -- states ------------------------------------------------------------------------------------------------------------


def test_exactly_complete_error_and_canceled_are_ends() -> None:
    ends = {state for state in JobState if state.terminal}
    assert ends == {JobState.COMPLETE, JobState.ERROR, JobState.CANCELED}


def test_observations_are_the_same_when_only_the_time_of_looking_differs() -> None:
    seen = observation()
    assert seen.same_as(seen.model_copy(update={"since": now()}))
    assert not seen.same_as(seen.model_copy(update={"reason": "other"}))
    assert not seen.same_as(None)


# -- resources ---------------------------------------------------------------------------------------------------------


def test_resources_are_read_as_people_write_them() -> None:
    resources = request(resources={"memory": "16G", "time_limit": "1-02:00:00", "shm": "512Mi"}).resources
    assert (resources.memory, resources.time_limit, resources.shm) == (16 * 1024**3, 93600, 512 * 1024**2)
    assert resources == Resources.model_validate_json(resources.model_dump_json())


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("gpus", -2, "greater than or equal to -1 (got -2)"),
        ("gpus", 1.5, "got 1.5"),
        ("gpus", "many", "got 'many'"),
        ("nodes", 0, "greater than or equal to 1 (got 0)"),
        ("cpus", 0, "greater than or equal to 1 (got 0)"),
        ("memory", "16 gigs", "write for example 16G"),
        ("memory", -1, "write for example 16G"),
        ("time_limit", "soon", "write for example 30m"),
        ("time_limit", 0, "write for example 30m"),
        ("time_limit", "30:00", "minutes"),
        ("shm", "0", "write for example 16G"),
        ("gpu", 1, "not permitted (got 1)"),
    ],
)
def test_an_impossible_resource_is_named_with_what_was_expected(field: str, value: object, expected: str) -> None:
    (message,) = problems(resources={field: value})
    assert message.startswith(f"resources.{field}: ")
    assert expected in message


def test_everything_that_is_wrong_is_said_at_once() -> None:
    messages = problems(command=" ", resources={"gpus": -2, "nodes": 0}, env={"1X": "a"})
    assert [message.partition(":")[0] for message in messages] == [
        "command",
        "resources.gpus",
        "resources.nodes",
        "env",
    ]


# -- environment and secrets -------------------------------------------------------------------------------------------


def test_names_of_variables_are_checked() -> None:
    assert request(env={"A" * 255: ""}).env
    (long,) = problems(env={"A" * 300: "x"})
    assert "300 characters; at most 255" in long
    for name in ("", "1A", "A-B", "A B", "A=B", "É"):
        assert "is not a variable name" in problems(env={name: "x"})[0]
    assert "NUL" in problems(env={"A": "x\0y"})[0]
    assert "env.A" in problems(env={"A": 5})[0]


@pytest.mark.parametrize(
    "secret",
    [
        TOKEN,
        "hf_" + "aB3" * 12,
        "AKIA" + "ABCD1234" * 2,
        "ghp_" + "aB3" * 12,
        "-----BEGIN RSA PRIVATE KEY-----\nMIIE",
    ],
)
@pytest.mark.parametrize(
    "fields",
    [
        lambda secret: {"env": {"NGC_KEY": secret}},
        lambda secret: {"env": {"URL": f"https://user:{secret}@host"}},
        lambda secret: {"secrets": [secret]},
        lambda secret: {"secrets": secret},
        lambda secret: {"secrets": [f"NGC_KEY={secret}"]},
        lambda secret: {"labels": {"owner": secret}},
        lambda secret: {"command": f"NGC_KEY={secret} python train.py"},
        lambda secret: {"specs": {"hub": {"tokens": [secret]}}},
        lambda secret: {"args": {"token": secret}},
    ],
)
def test_a_secret_where_none_belongs_is_refused_and_not_repeated(secret: str, fields: Any) -> None:
    assert secret not in " ".join(problems(**fields(secret)))
    with pytest.raises(ValidationError) as caught:
        JobRequest(**{"command": "x", **fields(secret)})
    assert secret not in str(caught.value)


def test_what_only_resembles_a_secret_passes() -> None:
    plain = {"A": "hf_model://nvidia/tiny", "B": "/data/akia/nvapi-docs", "C": "ghp_short", "D": "MY-AKIA"}
    plain |= {"E": "https://me:$TOKEN@host/x", "F": "docker://ubuntu:24.04@sha256:ab", "G": "s3://bucket/a:b@c"}
    assert request(env=plain, specs=dict(plain), secrets=["NGC_KEY", "HF_TOKEN"])


# -- specs and args ----------------------------------------------------------------------------------------------------


def test_specs_and_args_exclude_each_other() -> None:
    (message,) = problems(specs={}, args={})
    assert "either specs" in message


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"train": {"lr": float("nan")}}, "train.lr is nan"),
        ({"train": {"rates": [0.1, float("inf")]}}, "train.rates[1] is inf"),
        ({"train": {"when": datetime(2026, 1, 1)}}, "train.when is a datetime"),
        ({"train": {1: "x"}}, "train has a key that is not text: 1"),
    ],
)
@pytest.mark.parametrize("field", ["specs", "args"])
def test_a_value_that_no_config_file_can_hold_is_found_by_its_place(
    field: str, value: dict[str, Any], where: str
) -> None:
    assert where in problems(**{field: value})[0]


# -- digest ------------------------------------------------------------------------------------------------------------


def test_the_digest_tells_the_work_and_not_its_labels_or_spelling() -> None:
    first = full_request()
    same = {**first.model_dump(), "labels": {"run": "other"}, "secrets": ("OTHER",)}
    same["specs"] = dict(reversed(list(same["specs"].items())))
    assert JobRequest.build(**same).digest == first.digest
    hours = {"resources": {**same["resources"], "time_limit": "240m", "memory": "65536M"}}
    assert JobRequest.build(**{**same, **hours}).digest == first.digest
    changes: list[dict[str, Any]] = [{"command": "other"}, {"env": {}}, {"specs": {}}, {"image": None}]
    for change in (*changes, {"action": "evaluate"}):
        assert JobRequest.build(**{**first.model_dump(), **change}).digest != first.digest


def test_the_digest_is_the_same_in_every_process() -> None:
    lines = ["import sys", "from prefect_tao.jobs.request import JobRequest"]
    program = "\n".join([*lines, "print(JobRequest.model_validate_json(sys.stdin.read()).digest)"])
    text = full_request().model_dump_json()
    told = subprocess.run([sys.executable, "-c", program], input=text, capture_output=True, text=True, check=True)
    assert told.stdout.strip() == full_request().digest


# -- findings and errors -----------------------------------------------------------------------------------------------


def test_fail_and_unknown_forbid_a_launch() -> None:
    findings = [Finding(level=level, subject="c", message="m") for level in Level]
    assert {finding.level for finding in blocking(findings)} == {Level.FAIL, Level.UNKNOWN}


def test_errors_say_what_to_do() -> None:
    assert str(TaoError("it broke", "fix it")) == "it broke\n  what to do: fix it"
    assert str(TaoError("it broke")) == "it broke"
    two = InvalidInput.of([Finding(level=Level.FAIL, subject="c", message=text, remedy="r") for text in ("one", "two")])
    assert "fix 2 problems" in str(two)
    assert "- one\n    what to do: r\n  - two" in str(two)
    assert "last log lines:\n" in str(JobFailed("it failed", "", verdict()))
