"""What the runner could not do, and in which phase."""

from __future__ import annotations

import errno

FULL = (errno.ENOSPC, errno.EDQUOT)
# What a disk says for good.
FINAL_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG) + FULL
ROOM = "free space there, or give the job a larger disk (TAO_WORK_DIR)"
RUNNER_FAILED = 125  # what docker and timeout(1) use for "the wrapper failed, not the command"


class RunnerError(Exception):
    """The runner could not do its own part; `phase` says which."""

    final = True  # whether trying again is of no use

    def __init__(self, phase: str, message: str) -> None:
        super().__init__(message)
        self.phase = phase


class NothingThere(RunnerError):
    """An input is not where it should be."""


def advised(error: Exception) -> str:
    """What went wrong with a file, and what to do about a full disk."""
    return "%s; %s" % (error, ROOM) if getattr(error, "errno", 0) in FULL else str(error)


def described(error: Exception) -> str:
    """What went wrong, for people: our own errors and the system's speak for themselves."""
    known = isinstance(error, (RunnerError, OSError, ValueError))
    return str(error) if known else "%s: %s" % (type(error).__name__, error)
