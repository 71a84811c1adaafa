"""What Prefect's loggers let through about errors of ours."""

from __future__ import annotations

import logging
from typing import Any

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.tasks.plain_errors import PlainErrors


def logged(*lines: tuple[str, BaseException | None], **extra: Any) -> list[tuple[str, str]]:
    """What is left of these lines, with their levels."""
    filtered, found = PlainErrors(), []
    for text, error in lines:
        record = logging.LogRecord("prefect.task_runs", logging.ERROR, "", 0, text, (), None)
        if error:
            record.exc_info = (type(error), error, None)
        vars(record).update(extra)
        if filtered.filter(record):
            found.append((record.levelname, record.getMessage() + (" with traceback" if record.exc_info else "")))
    return found


REFUSED = InvalidInput("no such 100% thing", "name another")


def test_an_error_of_ours_is_told_once_and_what_to_do_only_by_the_flow() -> None:
    lines = (("Encountered exception: %r", REFUSED), ("Finished in state Failed('no such 100% thing')", None))
    assert logged(*lines, flow_run_id="f") == [("ERROR", str(REFUSED))]
    assert logged(*lines, flow_run_id="f", task_run_id="t") == [("ERROR", "no such 100% thing")]


def test_an_unexpected_error_keeps_its_traceback_and_its_state() -> None:
    lines = (("Task run failed", KeyError("x")), ("Finished in state Failed('KeyError')", None))
    assert logged(*lines, task_run_id="t") == [
        ("ERROR", "Task run failed with traceback"),
        ("ERROR", "Finished in state Failed('KeyError')"),
    ]


def test_what_a_person_wanted_is_no_error_and_gates_that_pass_say_nothing() -> None:
    assert logged(("Finished in state Cancelled('over')", None), flow_run_id="f")[0][0] == "INFO"
    assert logged(("Finished in state Detached('goes on', type=CANCELLED)", None), flow_run_id="f")[0][0] == "INFO"
    assert logged(("Finished in state Completed()", None), task_run_id="t", task_name="gate") == []
    assert logged(("Finished in state Completed()", None), task_run_id="t", task_name="train") != []
