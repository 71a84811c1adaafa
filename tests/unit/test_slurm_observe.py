"""What one look at SLURM jobs means: every kind of evidence, in its order, and silence as silence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.platforms.slurm.observe import REQUEUE_SECONDS, Judged, QueueAnswer, judge, read_look
from prefect_tao.platforms.slurm.questions import read_answer
from prefect_tao.platforms.slurm.queue import COLUMNS, MAY_REQUEUE

KEY = "0123456789abcdef"
NAME = f"tao-{KEY}-1"
NOW = 1_700_000_000
GONE = 90.0
SITE = "SLURM cluster polar, user me"


def printed(state: str, id: str = "17", restarts: int | None = 0, name: str = NAME, **cells: str) -> str:
    """A row as squeue prints it."""
    given = {"JobID": id, "Name": name, "State": state, "RestartCnt": "" if restarts is None else str(restarts)}
    given |= {"StartTime": str(NOW - 100), "EndTime": str(NOW - 1), "Reason": "None", "NodeList": "node1", **cells}
    return "".join(given[column].ljust(width) if column in given else " " * width for column, width in COLUMNS.items())


def accounted(state: str, code: str = "0:0", id: str = "17", name: str = NAME, ended: int = NOW - 1) -> str:
    return f"{id}|{name}|{state}|{code}|{NOW - 100}|{ended}|node1"


def marker(code: int, restarts: int = 0, id: str = "17", **more: Any) -> str:
    facts = {"native_id": id, "restarts": restarts, "exit_code": code, "ended_by": "none"}
    return json.dumps({**facts, "started": NOW - 100.5, "ended": NOW - 1.5, **more})


def record(ended_by: str = "none", restarts: int = 0, id: str = "17", **more: Any) -> str:
    return json.dumps({"native_id": id, "restarts": restarts, "ended_by": ended_by, "started": NOW - 99, **more})


def looked(
    *rows: str,
    queue: int = 0,
    files: dict[str, str] | None = None,
    accounting: tuple[int, list[str]] | None = None,
    marks: tuple[str, ...] = (),
    asked: str = "17",
    status: str | None = None,
) -> QueueAnswer:
    """A look as the login node answers it, read."""
    said: list[tuple[str, ...]] = [("now", str(NOW)), ("queue", str(queue), "\n".join(rows))]
    paths = {"exit": f"{NAME}/exit.json", "end": f"{NAME}/end.json", "record": f"/results/{KEY}/attempts/1.json"}
    said += [("file", paths[name], text) for name, text in (files or {}).items()]
    said += [tuple(mark.split(" ")) for mark in marks]
    if accounting:
        said.append(("accounting", str(accounting[0]), asked, "\n".join(accounting[1])))
    if status is not None:
        said.append(("status", NAME, status))
    return read_look(
        read_answer("".join(f"{len(record)}\0" + "".join(f"{field}\0" for field in record) for record in said))
    )


def judged(look: QueueAnswer, requeue: bool = True, denied_for: float = 0.0) -> Judged | None:
    handle = JobHandle(target="slurm", key=KEY, attempt=1, native_id="17", site=SITE, results=f"/results/{KEY}")
    return judge(handle, look, requeue, denied_for, GONE)


def known(look: QueueAnswer, requeue: bool = True, denied_for: float = 0.0) -> Observation:
    found = judged(look, requeue, denied_for)
    assert found
    return found.observation


# -- the queue ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PENDING", JobState.PENDING),
        ("CONFIGURING", JobState.PENDING),
        ("RUNNING", JobState.RUNNING),
        ("COMPLETING", JobState.RUNNING),
        ("SUSPENDED", JobState.PAUSED),
        ("STOPPED", JobState.PAUSED),
        ("FAILED", JobState.ERROR),
        ("BOOT_FAIL", JobState.ERROR),
        ("DEADLINE", JobState.ERROR),
        ("OUT_OF_MEMORY", JobState.ERROR),
        ("NODE_FAIL", JobState.ERROR),
        ("TIMEOUT", JobState.ERROR),
        ("CANCELLED", JobState.CANCELED),
        ("PREEMPTED", JobState.CANCELED),
        ("REVOKED", JobState.CANCELED),
    ],
)
def test_each_state_of_the_queue_is_one_of_ours(word: str, state: JobState) -> None:
    seen = known(looked(printed(word)), requeue=False)
    assert (seen.state, seen.native_state, seen.evidence) == (state, word, "squeue")


def test_what_slurm_calls_completed_is_complete_only_when_the_job_itself_says_so() -> None:
    fresh, old = printed("COMPLETED"), printed("COMPLETED", EndTime=str(int(NOW - GONE)))
    waits = known(looked(fresh))
    assert (waits.state, waits.native_state) == (JobState.RUNNING, "COMPLETED")
    assert "marker" in waits.reason
    # A job that could not even claim its name has run nothing, whatever SLURM calls its end.
    for look in (looked(old), looked(accounting=(0, [accounted("COMPLETED", ended=int(NOW - GONE))]))):
        nothing = known(look)
        assert (nothing.state, nothing.exit_code, nothing.native_state) == (JobState.ERROR, None, "COMPLETED")
        assert "nothing shows" in nothing.reason
    assert judged(looked(accounting=(0, [accounted("COMPLETED")]))) is None
    for files in ({"exit": marker(0)}, {"record": record(exit_code=0)}):
        assert known(looked(old, files=files)).state is JobState.COMPLETE
    assert known(looked(old, files={"record": record(exit_code=0, id="16")})).state is JobState.ERROR


def test_a_state_that_nobody_knows_leaves_the_job_out() -> None:
    assert judged(looked(printed("POWERING_UP"))) is None


def test_a_job_the_queue_lists_is_not_over_whatever_its_marker_says() -> None:
    seen = known(looked(printed("COMPLETING"), files={"exit": marker(0)}))
    assert seen.state is JobState.RUNNING


def test_the_word_of_a_person_who_cancels_is_shown_until_the_job_is_over() -> None:
    assert known(looked(printed("RUNNING"), marks=(f"stop {NAME}",))).state is JobState.CANCELING
    assert known(looked(printed("CANCELLED"), marks=(f"stop {NAME}",))).state is JobState.CANCELED
    other = "tao-fedcba9876543210-1"
    assert known(looked(printed("RUNNING"), marks=(f"stop {other}",))).state is JobState.RUNNING


def test_a_silent_queue_is_no_evidence() -> None:
    error = "slurm_load_jobs error: Unable to contact slurm controller (connect failure)"
    look = looked(error, queue=1)
    assert "Unable to contact" in look.queue_words
    assert judged(look, denied_for=10 * GONE) is None
    # Rows of a call that failed do not count, nor does a failure's marker: the job may be started again.
    assert judged(looked(printed("FAILED"), error, queue=1)) is None
    assert judged(looked(queue=1, files={"exit": marker(1)})) is None


def test_a_clean_end_stands_even_while_the_queue_is_silent() -> None:
    seen = known(looked(queue=1, files={"exit": marker(0)}))
    assert (seen.state, seen.exit_code, seen.evidence) == (JobState.COMPLETE, 0, "exit marker")


def test_error_text_among_rows_that_were_told_does_no_harm() -> None:
    seen = known(looked("squeue: warning: something is odd", printed("RUNNING")))
    assert seen.state is JobState.RUNNING


# -- the marker --------------------------------------------------------------------------------------------------------


def test_the_marker_tells_exit_code_and_times_better_than_the_queue() -> None:
    seen = known(looked(printed("FAILED", Reason="NonZeroExitCode"), files={"exit": marker(3)}))
    assert (seen.state, seen.exit_code, seen.evidence) == (JobState.ERROR, 3, "exit marker")
    assert seen.started_at
    assert seen.started_at.timestamp() == NOW - 100.5
    assert seen.reason == ""


@pytest.mark.parametrize("other", [{"restarts": 0, "id": "17"}, {"restarts": 1, "id": "16"}])
def test_the_marker_of_another_run_is_ignored(other: dict[str, Any]) -> None:
    look = looked(printed("CANCELLED", restarts=1), files={"exit": marker(0, **other)})
    seen = known(look)
    assert (seen.state, seen.evidence, seen.restarts) == (JobState.CANCELED, "squeue", 1)


def test_an_unlisted_job_is_told_by_its_marker() -> None:
    clean = judged(looked(files={"exit": marker(0)}))
    failed = judged(looked(files={"exit": marker(7)}))
    assert clean
    assert failed
    assert (clean.observation.state, clean.observation.exit_code) == (JobState.COMPLETE, 0)
    assert (failed.observation.state, failed.observation.exit_code) == (JobState.ERROR, 7)
    # What the marker tells in full needs no note.
    assert (clean.keep, failed.keep) == (False, True)


@pytest.mark.parametrize("text", ["", "{", '"text"', "[1]", "{}", '{"native_id": "17"}', "null"])
def test_a_marker_that_is_not_whole_is_none(text: str) -> None:
    assert judged(looked(files={"exit": text})) is None
    assert known(looked(printed("FAILED"), files={"exit": text})).evidence == "squeue"


@pytest.mark.parametrize(
    ("word", "ended_by", "state"),
    [
        ("time_limit", EndedBy.TIME_LIMIT, JobState.ERROR),
        ("cancel", EndedBy.CANCEL, JobState.CANCELED),
        ("preempt", EndedBy.PREEMPT, JobState.CANCELED),
        ("none", EndedBy.NONE, JobState.ERROR),
    ],
)
def test_the_runner_knows_why_it_stopped_the_command(word: str, ended_by: EndedBy, state: JobState) -> None:
    seen = known(looked(printed("FAILED"), files={"exit": marker(143), "record": record(word)}))
    assert (seen.ended_by, seen.state, seen.exit_code) == (ended_by, state, 143)


def test_a_command_that_ends_well_after_its_limit_has_still_hit_it() -> None:
    seen = known(looked(printed("COMPLETED"), files={"exit": marker(0), "record": record("time_limit")}))
    assert (seen.state, seen.ended_by) == (JobState.ERROR, EndedBy.TIME_LIMIT)


def test_the_record_of_an_earlier_run_says_nothing_of_this_one() -> None:
    files = {"exit": marker(0, restarts=1), "record": record("preempt", restarts=0)}
    seen = known(looked(printed("COMPLETED", restarts=1), files=files))
    assert (seen.state, seen.ended_by) == (JobState.COMPLETE, EndedBy.NONE)


@pytest.mark.parametrize(
    ("word", "ended_by"),
    [
        ("OUT_OF_MEMORY", EndedBy.NONE),
        ("NODE_FAIL", EndedBy.NONE),
        ("TIMEOUT", EndedBy.TIME_LIMIT),
        ("PREEMPTED", EndedBy.PREEMPT),
        ("CANCELLED", EndedBy.CANCEL),
    ],
)
def test_slurms_own_word_outranks_what_the_runner_saw_of_it(word: str, ended_by: EndedBy) -> None:
    files = {"exit": marker(143), "record": record("time_limit" if word != "TIMEOUT" else "cancel")}
    seen = known(looked(printed(word), files=files), requeue=False)
    assert (seen.native_state, seen.ended_by) == (word, ended_by)


def test_the_runners_own_error_is_the_reason() -> None:
    seen = known(looked(printed("FAILED"), files={"exit": marker(1), "record": record(error="no such input")}))
    assert seen.reason == "no such input"


# -- ends that were written down ---------------------------------------------------------------------------------------


def test_an_end_that_was_written_down_never_changes() -> None:
    end = Observation(state=JobState.ERROR, native_state="NODE_FAIL", evidence="squeue")
    for look in (
        looked(printed("RUNNING"), files={"end": end.model_dump_json()}),
        looked(queue=1, files={"end": end.model_dump_json()}),
        looked(files={"end": end.model_dump_json(), "exit": marker(0)}),
    ):
        found = judged(look)
        assert found
        assert found.observation == end
        assert not found.keep


def test_a_note_that_cannot_be_read_is_no_end() -> None:
    assert known(looked(printed("RUNNING"), files={"end": '{"state": "Over"}'})).state is JobState.RUNNING


# -- requeue -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("word", sorted(MAY_REQUEUE - {"REQUEUED"}))
def test_while_slurm_may_start_a_job_again_it_is_not_over(word: str) -> None:
    fresh = printed(word, EndTime=str(NOW - 1))
    old = printed(word, EndTime=str(int(NOW - REQUEUE_SECONDS)))
    assert known(looked(fresh)).state is JobState.PENDING
    assert "start it again" in known(looked(fresh)).reason
    assert known(looked(old)).state.terminal
    assert known(looked(fresh), requeue=False).state.terminal


@pytest.mark.parametrize("word", ["FAILED", "TIMEOUT", "CANCELLED", "OUT_OF_MEMORY"])
def test_other_ends_are_not_waited_with(word: str) -> None:
    assert known(looked(printed(word, EndTime=str(NOW)))).state.terminal


def test_a_requeued_job_waits_and_says_so() -> None:
    seen = known(looked(printed("PENDING", restarts=1, Reason="BeginTime"), files={"exit": marker(143)}))
    assert (seen.state, seen.restarts) == (JobState.PENDING, 1)
    assert "again" in seen.reason


# -- several jobs of one name ------------------------------------------------------------------------------------------


def test_the_job_that_has_claimed_the_name_is_the_one() -> None:
    rows = printed("PENDING", id="16"), printed("RUNNING", id="18")
    found = judged(looked(*rows, marks=(f"claim {NAME} 18", "ours 16", "ours 18")))
    assert found
    assert found.observation.state is JobState.RUNNING
    assert found.surplus == ("16",)


def test_before_any_has_claimed_it_the_one_that_was_noted_first_is_kept_whoever_looks() -> None:
    rows = [printed("PENDING", id=id) for id in ("16", "17", "18")]
    marks = ("ours 16", "ours 17", "ours 18")
    for known_id in ("16", "17", "18"):
        handle = JobHandle(target="slurm", key=KEY, attempt=1, native_id=known_id, site=SITE)
        noted = judge(handle, looked(*rows, marks=(*marks, f"id {NAME} 18")), True, 0.0, GONE)
        assert noted
        assert noted.surplus == ("16", "17")
        # Two launchers that each know another id must not cancel each other's job.
        nobody = judge(handle, looked(*rows, marks=marks), True, 0.0, GONE)
        assert nobody
        assert nobody.surplus == ()


def test_an_unknown_id_falls_back_to_the_oldest_that_is_alive() -> None:
    rows = printed("COMPLETED", id="3"), printed("RUNNING", id="20"), printed("PENDING", id="100")
    found = judged(looked(*rows, marks=("ours 3", "ours 20", "ours 100")))
    assert found
    assert found.observation.state is JobState.RUNNING
    assert found.surplus == ()


def test_one_that_is_over_is_not_preferred_while_another_of_ours_lives() -> None:
    rows = printed("CANCELLED", id="17"), printed("PENDING", id="18")
    found = judged(looked(*rows, marks=("ours 17", "ours 18", f"id {NAME} 17")))
    assert found
    assert (found.observation.state, found.surplus) == (JobState.PENDING, ())


def test_a_job_of_somebody_else_under_the_name_is_none_of_ours() -> None:
    look = looked(printed("RUNNING", id="99"), marks=(f"id {NAME} 17",), accounting=(0, [accounted("FAILED", "3:0")]))
    assert known(look).exit_code == 3


def test_a_duplicate_that_has_left_at_once_does_not_end_the_job() -> None:
    rows = printed("COMPLETED", id="18"), printed("RUNNING", id="17")
    found = judged(looked(*rows))
    assert found
    assert found.observation.state is JobState.RUNNING
    assert found.surplus == ()


def test_one_that_has_begun_is_never_surplus() -> None:
    found = judged(looked(printed("PENDING", id="17"), printed("RUNNING", id="18")))
    assert found
    assert found.surplus == ()


def test_once_the_name_is_claimed_no_other_job_is_taken_for_the_one_that_has_it() -> None:
    claim = (f"claim {NAME} 17",)
    stranger = printed("RUNNING", id="99")
    assert known(looked(stranger, files={"exit": marker(0)}, marks=claim)).state is JobState.COMPLETE
    assert judged(looked(stranger, marks=claim)) is None


# -- accounting, and nothing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "state", "code", "ended_by"),
    [
        (accounted("FAILED", "3:0"), JobState.ERROR, 3, EndedBy.NONE),
        (accounted("OUT_OF_MEMORY", "0:125"), JobState.ERROR, 253, EndedBy.NONE),
        (accounted("CANCELLED by 1001", "0:15"), JobState.CANCELED, 143, EndedBy.CANCEL),
        (accounted("TIMEOUT", "0:0"), JobState.ERROR, 0, EndedBy.TIME_LIMIT),
        (accounted("NODE_FAIL", "0:0"), JobState.ERROR, 0, EndedBy.NONE),
        (accounted("PREEMPTED", "0:0"), JobState.CANCELED, 0, EndedBy.PREEMPT),
    ],
)
def test_a_job_that_left_nothing_is_told_by_accounting(
    said: str, state: JobState, code: int, ended_by: EndedBy
) -> None:
    found = judged(looked(accounting=(0, [said])))
    assert found
    seen = found.observation
    assert (seen.state, seen.exit_code, seen.ended_by, seen.evidence) == (state, code, ended_by, "sacct")
    assert found.keep


def test_of_several_runs_the_last_one_counts() -> None:
    said = [accounted("REQUEUED", "0:0"), accounted("NODE_FAIL"), accounted("FAILED", "3:0")]
    assert known(looked(accounting=(0, said))).exit_code == 3


def test_rows_of_another_job_that_had_the_same_id_do_not_count() -> None:
    other = accounted("FAILED", "3:0", name="tao-fedcba9876543210-1")
    assert judged(looked(accounting=(0, [other]))) is None
    early = accounted("FAILED", "3:0", name="allocation")  # before accounting has heard the name
    assert known(looked(accounting=(0, [early]))).exit_code == 3


@pytest.mark.parametrize("stopped", [marker(143), marker(143, ended_by="preempt"), marker(0, ended_by="preempt")])
def test_who_stopped_a_job_only_accounting_knows(stopped: str) -> None:
    files = {"exit": stopped, "record": record("preempt")}
    by_hand = known(looked(files=files, accounting=(0, [accounted("CANCELLED by 1001", "0:15")])))
    assert (by_hand.state, by_hand.ended_by, by_hand.native_state) == (JobState.CANCELED, EndedBy.CANCEL, "CANCELLED")
    pushed_out = known(looked(files=files, accounting=(0, [accounted("PREEMPTED", "0:15")])))
    assert pushed_out.ended_by is EndedBy.PREEMPT
    # As long as accounting says nothing, nothing is concluded.
    assert judged(looked(files=files, accounting=(1, ["sacct: error: no"])), denied_for=10 * GONE) is None
    assert judged(looked(files=files), denied_for=10 * GONE) is None
    assert judged(looked(files=files, accounting=(0, []), asked="16"), denied_for=10 * GONE) is None
    assert known(looked(files=files, accounting=(0, [])), denied_for=GONE).ended_by is EndedBy.PREEMPT
    off = looked(files=files, accounting=(1, ["Slurm accounting storage is disabled"]))
    assert known(off).ended_by is EndedBy.PREEMPT


def test_the_marker_of_an_earlier_run_does_not_tell_the_end_of_a_job_that_the_queue_forgot() -> None:
    said = [accounted("PREEMPTED", "0:15"), accounted("CANCELLED by 1001")]
    found = judged(looked(files={"exit": marker(3, restarts=0)}, accounting=(0, said)))
    assert found
    assert (found.observation.ended_by, found.observation.evidence) == (EndedBy.CANCEL, "sacct")
    last = known(looked(files={"exit": marker(3, restarts=1)}, accounting=(0, [said[0], accounted("FAILED", "3:0")])))
    assert (last.evidence, last.restarts) == ("exit marker", 1)


def test_accounting_that_is_away_does_not_hide_what_a_program_did_itself() -> None:
    seen = known(looked(files={"exit": marker(3)}, accounting=(1, ["sacct: error: no"])))
    assert (seen.state, seen.exit_code) == (JobState.ERROR, 3)


@pytest.mark.parametrize("word", ["RUNNING", "PENDING", "REQUEUED", "SOMETHING"])
def test_accounting_that_is_behind_is_no_evidence(word: str) -> None:
    assert judged(looked(accounting=(0, [accounted(word)])), denied_for=10 * GONE) is None


def test_a_job_is_gone_only_when_all_deny_it_for_long() -> None:
    denied = looked(accounting=(0, []))
    assert judged(denied, denied_for=GONE - 1) is None
    seen = known(denied, denied_for=GONE)
    assert (seen.state, seen.native_state, seen.evidence) == (JobState.ERROR, "gone", "squeue and sacct")
    found = judged(denied, denied_for=GONE)
    assert found
    assert found.keep


def test_accounting_denies_only_what_it_was_asked_for() -> None:
    assert judged(looked(accounting=(0, []), asked="1,2,3"), denied_for=10 * GONE) is None


def test_accounting_that_fails_denies_nothing() -> None:
    failing = ["sacct: error: slurm_persist_conn_open_without_init: failed to open persistent connection"]
    assert judged(looked(accounting=(1, failing)), denied_for=10 * GONE) is None
    assert judged(looked(), denied_for=10 * GONE) is None


def test_where_there_is_no_accounting_the_queue_alone_denies() -> None:
    off = looked(accounting=(1, ["Slurm accounting storage is disabled"]))
    assert judged(off, denied_for=GONE - 1) is None
    seen = known(off, denied_for=GONE)
    assert (seen.state, seen.native_state) == (JobState.ERROR, "gone")
    assert "accounting is off" in seen.evidence


def test_a_job_that_a_person_cancelled_and_that_is_gone_is_cancelled() -> None:
    seen = known(looked(accounting=(0, []), marks=(f"stop {NAME}",)), denied_for=GONE)
    assert (seen.state, seen.ended_by) == (JobState.CANCELED, EndedBy.CANCEL)


def test_a_job_that_was_staged_and_never_submitted_waits() -> None:
    seen = known(looked(marks=(f"staged {NAME}",)), denied_for=10 * GONE)
    assert (seen.state, seen.native_state) == (JobState.PENDING, "staged")
    assert "launch again" in seen.reason


# -- reading -----------------------------------------------------------------------------------------------------------


def test_status_files_are_read_whole_whatever_they_hold() -> None:
    text = '{"epoch": 1}\nqueue 1\n@file x\n{"epoch": 2}'
    look = looked(printed("RUNNING"), marks=(f"stop {NAME}",), status=text)
    assert text in look.statuses[NAME]
    assert look.queue_answers
    assert look.stops == {NAME}


def test_a_base_folder_that_cannot_be_entered_is_told() -> None:
    assert looked().has_base
    assert not looked(marks=("nobase",)).has_base
