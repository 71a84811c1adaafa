"""The log of a run: our own errors in their own words, once, without a traceback to code that did its work."""

from __future__ import annotations

import logging
from collections import OrderedDict

from prefect_tao.jobs.errors import TaoError

FINISHED = "Finished in state "
QUIET_TASKS = ("gate", "check")  # the flow says in one line what came of all of them
REMEMBERED = 1000


class PlainErrors(logging.Filter):
    """Takes tracebacks out of what Prefect logs about errors of ours, and drops the lines that repeat others."""

    def __init__(self) -> None:
        super().__init__()
        self._told: OrderedDict[str, None] = OrderedDict()  # the runs whose error was logged

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is logged; it may say something else afterwards."""
        task = getattr(record, "task_run_id", None)
        run = str(task or getattr(record, "flow_run_id", ""))
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, TaoError):
            # What to do is said once, by the flow.
            record.msg, record.args, record.exc_info = error.cause if task else str(error), (), None
            self._told[run] = None
            if len(self._told) > REMEMBERED:
                self._told.popitem(last=False)
            return True
        state = str(record.msg).removeprefix(FINISHED)
        if state == record.msg:
            return True
        if state.startswith("Cancelled(") or state.endswith("type=CANCELLED)"):  # a person wanted that
            record.levelno, record.levelname = logging.INFO, "INFO"
        repeats = state.startswith("Failed(") and run in self._told
        return not repeats and not (getattr(record, "task_name", "") in QUIET_TASKS and state.startswith("Completed("))


def log_errors_plainly() -> None:
    """Install it, once per process."""
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        if not any(isinstance(one, PlainErrors) for one in logger.filters):
            logger.addFilter(PlainErrors())
