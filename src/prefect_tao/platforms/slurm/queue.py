"""What SLURM says, read: the queue's rows, accounting's rows, and what its words mean for a job. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prefect_tao.jobs.naming import KEY_PATTERN
from prefect_tao.jobs.state import EndedBy, JobState

# squeue prints columns of these widths, without a separator.
COLUMNS = {"JobID": 24, "Name": 40, "State": 24, "Reason": 60, "StartTime": 24, "EndTime": 24, "RestartCnt": 8}
COLUMNS |= {"ReqNodes": 2, "NodeList": 200}
SACCT_FIELDS = ("JobIDRaw", "JobName", "State", "ExitCode", "Start", "End", "NodeList")
_NAME = re.compile(rf"tao-{KEY_PATTERN}-\d+")

_STATES = {
    **dict.fromkeys(("PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD"), JobState.PENDING),
    **dict.fromkeys(("RESV_DEL_HOLD", "SPECIAL_EXIT"), JobState.PENDING),
    **dict.fromkeys(("RUNNING", "COMPLETING", "RESIZING", "SIGNALING", "STAGE_OUT"), JobState.RUNNING),
    **dict.fromkeys(("SUSPENDED", "STOPPED"), JobState.PAUSED),
    "COMPLETED": JobState.COMPLETE,
    **dict.fromkeys(("FAILED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY", "NODE_FAIL", "TIMEOUT"), JobState.ERROR),
    **dict.fromkeys(("CANCELLED", "PREEMPTED", "REVOKED"), JobState.CANCELED),
}
# States in which SLURM does nothing more with a job.
OVER = frozenset(word for word, state in _STATES.items() if state.terminal)
_ENDINGS = {
    "CANCELLED": EndedBy.CANCEL,
    "TIMEOUT": EndedBy.TIME_LIMIT,
    "DEADLINE": EndedBy.TIME_LIMIT,
    "PREEMPTED": EndedBy.PREEMPT,
    "REVOKED": EndedBy.PREEMPT,
}
# Ends that SLURM knows best: what the runner saw of them was only a signal.
DECISIVE = frozenset({"OUT_OF_MEMORY", "NODE_FAIL", "BOOT_FAIL", *_ENDINGS})
# SLURM itself may start a job again that ended so.
MAY_REQUEUE = frozenset({"NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "REVOKED", "REQUEUED"})

# In these it never will.
FINAL = OVER - MAY_REQUEUE

_WAITS = {
    "Priority": "others are before it in the queue",
    "Resources": "it is next and waits for free nodes",
    "Dependency": "its image is being converted",
    "BeginTime": "SLURM starts it again shortly",
    "JobHeldUser": "it is held; scontrol release lets it go",
    "JobHeldAdmin": "an administrator holds it",
    "PartitionTimeLimit": "its time limit is longer than the partition allows",
    "PartitionNodeLimit": "it wants more nodes than the partition allows",
    "PartitionDown": "the partition is down",
    "ReqNodeNotAvail": "the nodes it could use are reserved or down",
    "AssocGrpGRES": "the account uses all the GPUs that it may",
    "QOSMaxGRESPerUser": "you use all the GPUs that you may",
    "BadConstraints": "no node can ever satisfy it",
}


@dataclass(frozen=True)
class Row:
    """One run of one job, as the queue or accounting tells of it."""

    id: str
    name: str
    state: str
    reason: str = ""
    started: float | None = None
    ended: float | None = None
    restarts: int | None = None
    nodes: str = ""
    exit_code: int | None = None

    @property
    def job_state(self) -> JobState | None:
        """The state in our words; None for a word that we do not know."""
        return _STATES.get(self.state)

    @property
    def ended_by(self) -> EndedBy:
        """Why SLURM ended it."""
        return _ENDINGS.get(self.state, EndedBy.NONE)

    @property
    def why(self) -> str:
        """The reason, in words where we have some."""
        if self.job_state is not JobState.PENDING or not self.reason or self.reason == "None":
            return ""
        word = self.reason.split(",")[0].strip("()")
        return f"{word}: {_WAITS[word]}" if word in _WAITS else self.reason


def first_word(state: str) -> str:
    """The state without what accounting adds: `CANCELLED by 1001`, `COMPLETED+`."""
    return state.split(" ")[0].rstrip("+") if state else ""


def queue_rows(lines: Iterable[str]) -> Iterator[Row]:
    """The rows of squeue among `lines`; what is no row of a job of ours is passed over."""
    for line in lines:
        cells, start = {}, 0
        for column, width in COLUMNS.items():
            cells[column] = line[start : start + width].strip()
            start += width
        if not _NAME.fullmatch(cells["Name"]):
            continue
        yield Row(
            id=cells["JobID"],
            name=cells["Name"],
            state=first_word(cells["State"]),
            reason=cells["Reason"],
            started=_moment(cells["StartTime"]),
            ended=_moment(cells["EndTime"]),
            restarts=int(cells["RestartCnt"]) if cells["RestartCnt"].isdigit() else None,
            nodes=cells["NodeList"],
        )


def account_rows(lines: Iterable[str]) -> Iterator[Row]:
    """The rows of sacct among `lines`, in the order of the runs."""
    for line in lines:
        cells = line.split("|")
        if len(cells) != len(SACCT_FIELDS) or not cells[0].isdigit():
            continue
        id, name, state, code, started, ended, nodes = cells
        yield Row(
            id=id,
            name=name,
            state=first_word(state),
            started=_moment(started),
            ended=_moment(ended),
            nodes=nodes,
            exit_code=exit_code(code),
        )


def exit_code(text: str) -> int | None:
    """The exit code in `3:0`, 128+n where signal n ended the job (`0:9`)."""
    code, _, number = text.partition(":")
    if not code.isdigit() or not number.isdigit():
        return None
    return int(code) if int(number) == 0 else 128 + int(number)


def _moment(text: str) -> float | None:
    return float(text) if text.isdigit() and int(text) > 0 else None
