"""What Lepton shows of a job means the same as on every platform, whatever words it uses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.jobs.verdict import Category, classify
from prefect_tao.platforms.lepton.observe import (
    LeptonRow,
    end_in_log,
    evidence,
    explained,
    gone,
    oldest,
    rows,
    seen,
    turned_away_by,
)

NAME = "tao-0123456789abcdef-1"


def raw(state: str | None = "Running", spec: dict[str, Any] | None = None, **status: Any) -> dict[str, Any]:
    metadata = {"id": f"{NAME}-98bw", "name": NAME, "created_at": 1_000_000, "labels": {"prefect-tao": "true"}}
    return {"metadata": metadata, "spec": spec or {}, "status": {"state": state, **status}}


def row(state: str | None = "Running", spec: dict[str, Any] | None = None, **status: Any) -> LeptonRow:
    found = LeptonRow.read(raw(state, spec, **status))
    assert found
    return found


def record(code: int = 0, ended_by: str = "none", native_id: str = f"{NAME}-98bw", **more: Any) -> dict[str, Any]:
    ends = {"ended": 1010.0, "exit_code": code, "ended_by": ended_by, "phase": "command", "error": ""}
    return {"name": NAME, "native_id": native_id, "started": 1005.0, **ends, **more}


@pytest.mark.parametrize(
    ("state", "means"),
    [
        ("Awaiting", JobState.PENDING),
        ("Queueing", JobState.PENDING),
        ("Starting", JobState.PENDING),
        ("PendingRetry", JobState.PENDING),
        ("Restarting", JobState.PENDING),
        ("Running", JobState.RUNNING),
        ("Stopping", JobState.CANCELING),
        ("Deleting", JobState.CANCELING),
        ("Terminating", JobState.CANCELING),
        ("Stopped", JobState.CANCELED),
        ("Deleted", JobState.CANCELED),
        ("Completed", JobState.COMPLETE),
        ("Failed", JobState.ERROR),
        ("", JobState.PENDING),
        (None, JobState.PENDING),
        ("UNK", JobState.PENDING),
        ("Hibernating", JobState.PENDING),
    ],
)
def test_every_state_of_lepton_has_one_meaning(state: str | None, means: JobState) -> None:
    found = seen(row(state))
    assert found.state is means
    assert found.native_state == (state or "")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_every_state_that_the_real_client_knows_is_known_here(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEPTON_CACHE_DIR", str(tmp_path))
    from leptonai.api.v2.types.job import LeptonJobState

    known = {state.value for state in LeptonJobState} - {"UNK"}
    assert {state for state in known if row(state).job_state is None} == set()


@pytest.mark.parametrize("before", [JobState.RUNNING, JobState.PENDING, None])
def test_an_unknown_word_ends_nothing_and_changes_nothing(before: JobState | None) -> None:
    found = seen(row("Hibernating"), before=before)
    assert found.state is (before or JobState.PENDING)
    assert "'Hibernating'" in found.reason


@pytest.mark.parametrize("status", [{"status": None}, {"status": {}}, {"status": {"state": None, "ready": None}}, {}])
def test_a_job_without_a_status_has_not_begun(status: dict[str, Any]) -> None:
    found = LeptonRow.read({"metadata": {"id": "x", "name": NAME}, **status})
    assert found
    assert seen(found).state is JobState.PENDING


@pytest.mark.parametrize(("ready", "active", "means"), [(2, 2, JobState.RUNNING), (1, 2, JobState.PENDING)])
def test_a_job_runs_when_all_its_workers_do(ready: int, active: int, means: JobState) -> None:
    found = seen(row("Running", ready=ready, active=active))
    assert found.state is means
    assert ("1 of 2 workers" in found.reason) == (means is JobState.PENDING)


@pytest.mark.parametrize(
    ("counts", "spec", "means"),
    [
        ({"succeeded": 2}, {}, JobState.COMPLETE),
        ({"succeeded": 1, "failed": 1}, {}, JobState.ERROR),
        ({"failed": 1}, {"stopped": True}, JobState.ERROR),
        ({}, {"stopped": True}, JobState.CANCELED),
        ({"completion_time": 1_010_000}, {}, JobState.ERROR),
    ],
)
def test_an_archived_job_ended_as_its_workers_did(
    counts: dict[str, Any], spec: dict[str, Any], means: JobState
) -> None:
    assert seen(row("Archived", spec, **counts)).state is means


def test_what_the_runner_wrote_down_counts_before_the_archive() -> None:
    end = seen(row("Archived", failed=1), record(3))
    assert (end.state, end.exit_code) == (JobState.ERROR, 3)
    assert seen(row("Archived"), record(0)).state is JobState.COMPLETE


def test_a_stopped_job_is_canceled_unless_it_had_ended_before() -> None:
    assert seen(row("Stopped")).ended_by is EndedBy.CANCEL
    stopped = seen(row("Stopped"), record(143, "preempt"))
    assert (stopped.state, stopped.ended_by) == (JobState.CANCELED, EndedBy.CANCEL)
    assert seen(row("Stopped"), record(0)).state is JobState.COMPLETE
    assert seen(row("Deleted"), record(3)).exit_code == 3


def test_a_worker_that_failed_outweighs_the_first_that_ended_well() -> None:
    end = seen(row("Failed", failed=1, succeeded=1), record(0))
    assert (end.state, "another worker" in end.reason) == (JobState.ERROR, True)


def test_the_record_of_another_job_with_the_name_tells_nothing() -> None:
    assert seen(row("Failed"), record(0, native_id="another")).state is JobState.ERROR


def test_a_marker_does_not_end_what_lepton_still_shows() -> None:
    assert seen(row("Running", ready=1, active=1), record(0)).state is JobState.RUNNING


def test_times_are_those_of_the_record_else_leptons() -> None:
    with_record, without = seen(row("Completed"), record()), seen(row("Completed", completion_time=1_020_000))
    assert with_record.started_at
    assert with_record.started_at.timestamp() == 1005
    assert with_record.ended_at
    assert with_record.ended_at.timestamp() == 1010
    assert without.started_at
    assert without.started_at.timestamp() == 1000
    assert without.ended_at
    assert without.ended_at.timestamp() == 1020


def test_what_the_workspace_has_forgotten_ended_as_its_marker_says() -> None:
    assert gone(record(3)).exit_code == 3
    lost = gone(None)
    assert (lost.state, lost.exit_code) == (JobState.ERROR, None)
    assert "does not know" in lost.reason


@pytest.mark.parametrize("found", [[], {"jobs": None}, {"jobs": []}])
def test_an_empty_list_has_no_jobs(found: Any) -> None:
    assert rows(found) == []


@pytest.mark.parametrize("found", [None, {}, {"message": "odd"}, "text", 0, {"jobs": 3}, [None, 3, {"metadata": {}}]])
def test_what_is_no_list_of_jobs_never_passes_for_an_empty_one(found: Any) -> None:
    assert rows(found) is None


def test_both_forms_of_a_list_are_read_and_one_odd_row_hides_no_other() -> None:
    assert [one.name for one in rows({"jobs": [raw(), {"metadata": 7}]})] == [NAME]
    assert [one.name for one in rows([{}, raw()])] == [NAME]


def test_only_secrets_of_the_job_itself_are_its_own() -> None:
    refs = [f"{NAME}.TOKEN", "hf", "tao-ffffffffffffffff-1.TOKEN"]
    envs = [{"name": "A", "value_from": {"secret_name_ref": ref}} for ref in refs]
    assert row(spec={"envs": [*envs, {"name": "B", "value": "1"}]}).secrets == (f"{NAME}.TOKEN",)


def test_of_two_with_one_name_all_take_the_older_one() -> None:
    early, late = LeptonRow("z", NAME, created=1), LeptonRow("a", NAME, created=2)
    assert oldest([late, early]) is early
    assert oldest([]) is None


# -- why it does not start ---------------------------------------------------------------------------------------------


def replica(reason: str = "", message: str = "") -> dict[str, Any]:
    issue = {"readiness_issue": {"reason": reason, "message": message}} if reason else {}
    return {"id": "r-0", "metadata": {"id": "r-0"}, "status": {"node": {"name": "n1"}, **issue}}


@pytest.mark.parametrize(
    ("replicas", "words"),
    [
        ([replica("InProgress", "Pulling image")], "InProgress: Pulling image"),
        ([replica("Failed", "ImagePullBackOff"), replica("InProgress", "Pulling")], "Failed: ImagePullBackOff"),
        (
            [replica("InProgress"), replica("ConfigError", "Mount point not found")],
            "ConfigError: Mount point not found",
        ),
        ([replica("NoCapacity")], "NoCapacity: no node has room for it"),
        ([replica("Gremlins", "in the rack")], "Gremlins: in the rack"),
        ([replica()], ""),
        ([{"status": None}, None, {}], ""),
        (None, ""),
    ],
)
def test_a_job_that_does_not_start_says_why(replicas: Any, words: str) -> None:
    assert explained(replicas) == words
    assert seen(row("Starting"), issue=words).reason == words


# -- why it ended ------------------------------------------------------------------------------------------------------


def verdict(
    end: Observation, log: str = "", analysis: Any = None, events: Any = None, replicas: Any = None
) -> Category:
    return classify(evidence(end, None, log, analysis, events, replicas)).category


def test_lepton_s_own_analysis_counts() -> None:
    failed = seen(row("Failed", failed=1))
    oom = {"err_class": "ERR_PROGRAM", "job_failure_by_node_event": [{"node_event_name": "OOM", "message": "killed"}]}
    xid = {
        "job_failure_by_node_event": [{"node_event_name": "GPUError", "message": "Xid 79: GPU has fallen off the bus"}]
    }
    assert verdict(failed, analysis=oom) is Category.OUT_OF_MEMORY
    assert verdict(failed, analysis=xid) is Category.GPU_FAILURE
    for nothing in (None, [], "text", {"job_failure_by_node_event": None}, {"job_failure_by_node_event": ["x", {}]}):
        assert verdict(failed, "CUDA out of memory", nothing) is verdict(failed, "CUDA out of memory")


def test_what_kept_it_from_starting_explains_a_failure_without_a_log() -> None:
    failed = seen(row("Failed"))
    assert verdict(failed, replicas=[replica("Failed", "ImagePullBackOff")]) is Category.IMAGE
    assert verdict(failed, replicas=[replica("NoCapacity", "no node has 8 idle GPUs")]) is Category.CAPACITY


def test_warnings_among_the_events_count() -> None:
    events = [
        {"type": "Normal", "reason": "Scheduled", "count": 1},
        {"type": "Warning", "reason": "NodeNotReady", "count": 1, "note": "node n1 is not ready"},
        None,
    ]
    assert verdict(seen(row("Failed")), events=events) is Category.NODE_FAILURE


def test_a_stopped_job_is_canceled_whatever_its_log_says() -> None:
    assert verdict(seen(row("Stopped")), "RuntimeError: CUDA error") is Category.CANCELED


def test_the_end_is_read_out_of_the_log_where_results_cannot_be_looked_into() -> None:
    other = json.dumps({**record(0), "rank": 1})
    text = f"begun\nhalf a line{json.dumps(record(3, rank=0))}\n{other}\n"
    found = end_in_log(text)
    assert found
    assert (found["exit_code"], found["native_id"]) == (3, f"{NAME}-98bw")
    for odd in ("", '{"name": "tao-', '{"name": "tao-x", "ended": 1}', f"{json.dumps(record(3))[:-5]}"):
        assert end_in_log(odd) is None


def test_a_job_that_was_turned_away_names_the_one_that_has_the_name() -> None:
    assert turned_away_by(f"hello\n[prefect-tao] job {NAME}-98bw has this name; nothing to do\n") == f"{NAME}-98bw"
    assert turned_away_by("job x has this name; nothing to do") is None
