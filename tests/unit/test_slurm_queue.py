"""Reading what squeue and sacct print, as they print it."""

from __future__ import annotations

import pytest

from prefect_tao.jobs.state import EndedBy, JobState
from prefect_tao.platforms.slurm.queue import (
    COLUMNS,
    OVER,
    Row,
    account_rows,
    exit_code,
    first_word,
    queue_rows,
)

NAME = "tao-0123456789abcdef-1"


def printed(**cells: str) -> str:
    """A row as squeue prints it: columns of fixed width, what is longer cut off."""
    given = {"JobID": "17", "Name": NAME, "State": "RUNNING", "RestartCnt": "0", **cells}
    return "".join(given.get(column, "").ljust(width)[:width] for column, width in COLUMNS.items())


def one(line: str) -> Row:
    (row,) = queue_rows([line])
    return row


# -- squeue ------------------------------------------------------------------------------------------------------------


def test_a_row_is_read_by_the_widths_of_its_columns() -> None:
    line = printed(Reason="None", StartTime="1700000000", EndTime="1700014400", RestartCnt="2", NodeList="node[1-4]")
    assert one(line) == Row("17", NAME, "RUNNING", "None", 1700000000.0, 1700014400.0, 2, "node[1-4]")


def test_a_reason_of_several_words_stays_in_its_column() -> None:
    row = one(printed(State="PENDING", Reason="ReqNodeNotAvail, UnavailableNodes:node1", StartTime="N/A"))
    assert row.reason == "ReqNodeNotAvail, UnavailableNodes:node1"
    assert row.started is None
    assert "reserved or down" in row.why


@pytest.mark.parametrize("moment", ["N/A", "", "0", "Unknown", "NONE"])
def test_a_moment_that_is_not_known_is_none(moment: str) -> None:
    assert one(printed(StartTime=moment, EndTime=moment)).started is None


def test_tasks_of_an_array_are_rows_of_their_own() -> None:
    rows = list(queue_rows([printed(JobID="38_0"), printed(JobID="38_1"), printed(JobID="38_[2-5%3]")]))
    assert [row.id for row in rows] == ["38_0", "38_1", "38_[2-5%3]"]


def test_what_is_no_row_of_ours_is_passed_over() -> None:
    lines = [
        "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
        "",
        "squeue: error: something",
        printed(Name="train-resnet"),
        printed(Name="tao-image-0123456789abcdef"),
        printed(Name="tao-0123456789abcdef"),
        printed(Name="tao-0123456789ABCDEF-1"),
        printed(JobID="5"),
    ]
    assert [row.id for row in queue_rows(lines)] == ["5"]


def test_a_restart_count_that_is_not_told_is_not_zero() -> None:
    assert one(printed(RestartCnt="")).restarts is None
    assert one(printed(RestartCnt="0")).restarts == 0


# -- what words mean ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("PENDING CONFIGURING REQUEUED REQUEUE_HOLD REQUEUE_FED SPECIAL_EXIT RESV_DEL_HOLD", JobState.PENDING),
        ("RUNNING COMPLETING RESIZING SIGNALING STAGE_OUT", JobState.RUNNING),
        ("SUSPENDED STOPPED", JobState.PAUSED),
        ("COMPLETED", JobState.COMPLETE),
        ("FAILED BOOT_FAIL DEADLINE OUT_OF_MEMORY NODE_FAIL TIMEOUT", JobState.ERROR),
        ("CANCELLED PREEMPTED REVOKED", JobState.CANCELED),
    ],
)
def test_each_word_of_slurm_has_one_meaning(words: str, state: JobState) -> None:
    for word in words.split():
        row = one(printed(State=word))
        assert row.job_state is state, word
        assert state.terminal is (word in OVER), word


def test_a_word_that_nobody_knows_means_nothing() -> None:
    row = one(printed(State="POWER_UP_NODE"))
    assert row.job_state is None
    assert row.ended_by is EndedBy.NONE


@pytest.mark.parametrize(
    ("word", "ended_by"),
    [
        ("CANCELLED", EndedBy.CANCEL),
        ("TIMEOUT", EndedBy.TIME_LIMIT),
        ("DEADLINE", EndedBy.TIME_LIMIT),
        ("PREEMPTED", EndedBy.PREEMPT),
        ("REVOKED", EndedBy.PREEMPT),
        ("FAILED", EndedBy.NONE),
        ("NODE_FAIL", EndedBy.NONE),
        ("COMPLETED", EndedBy.NONE),
    ],
)
def test_some_words_say_who_ended_the_job(word: str, ended_by: EndedBy) -> None:
    assert one(printed(State=word)).ended_by is ended_by


@pytest.mark.parametrize(
    ("said", "word"),
    [("CANCELLED by 1001", "CANCELLED"), ("COMPLETED+", "COMPLETED"), ("CANCELLED+", "CANCELLED"), ("", "")],
)
def test_what_accounting_adds_to_a_state_is_left_off(said: str, word: str) -> None:
    assert first_word(said) == word


def test_a_waiting_job_says_why_in_words() -> None:
    assert one(printed(State="PENDING", Reason="Priority")).why == "Priority: others are before it in the queue"
    assert one(printed(State="PENDING", Reason="(Resources)")).why.startswith("Resources: ")
    assert one(printed(State="PENDING", Reason="QOSGrpCpuLimit")).why == "QOSGrpCpuLimit"
    assert one(printed(State="PENDING", Reason="None")).why == ""
    assert one(printed(State="RUNNING", Reason="Priority")).why == ""


# -- sacct -------------------------------------------------------------------------------------------------------------


def test_accounting_tells_of_every_run_in_order() -> None:
    lines = [
        f"17|{NAME}|NODE_FAIL|1:0|1700000000|1700000100|node2",
        f"17|{NAME}|CANCELLED by 1001|0:15|1700000200|1700000300|node1",
        f"18|{NAME}|TIMEOUT+|0:0|1700000200|Unknown|node[1-2]",
    ]
    first, second, third = account_rows(lines)
    assert (first.id, first.state, first.exit_code, first.nodes) == ("17", "NODE_FAIL", 1, "node2")
    assert (second.state, second.exit_code, second.started, second.ended) == ("CANCELLED", 143, 1700000200, 1700000300)
    assert (third.state, third.exit_code, third.ended) == ("TIMEOUT", 0, None)


def test_steps_and_errors_among_the_rows_of_accounting_are_passed_over() -> None:
    lines = [
        "sacct: error: slurm_persist_conn_open: Something happened with the receiving/processing",
        "17.batch|batch|CANCELLED|0:15|1|2|node1",
        "17.0|python|CANCELLED|0:15|1|2|node1",
        "17|short|COMPLETED",
        "",
    ]
    assert list(account_rows(lines)) == []


@pytest.mark.parametrize(
    ("text", "code"), [("0:0", 0), ("3:0", 3), ("0:9", 137), ("0:15", 143), ("1:9", 137), ("", None), ("x:y", None)]
)
def test_an_exit_code_counts_signals_as_a_shell_does(text: str, code: int | None) -> None:
    assert exit_code(text) == code
