"""What the runner could not do, and in which phase."""

from __future__ import annotations

import errno

FULL = (errno.ENOSPC, errno.EDQUOT)
# What a disk answers for good.
FINAL_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG) + FULL
ROOM = "free space there, or give the job a larger disk (TAO_WORK_DIR)"
RUNNER_FAILED = 125  # what docker and timeout(1) use for "the wrapper failed, not the command"


class OwnError(Exception):
    """An error of ours: it says all there is to say and passes through as it is."""


class RunnerError(OwnError):
    """The runner could not do its own part; `phase` says which."""

    final = True  # whether trying again is of no use

    def __init__(self, phase: str, message: str) -> None:
        super().__init__(message)
        self.phase = phase


class StorageError(RunnerError):
    """What a storage could not do, and the remedy; `final` when trying again is of no use.

    `code` is the storage's own word for it. It is empty when the disk failed (`local`) or when we found the problem.
    """

    def __init__(
        self, text: str, final: bool = True, local: bool = False, what: str = "", code: str = "", remedy: str = ""
    ) -> None:
        super().__init__("inputs", "%s; %s" % (text, remedy) if remedy else text)
        self.cause, self.remedy = text, remedy
        self.final, self.local, self.what, self.code = final, local, what, code


class Missing(StorageError):
    """There is nothing at that place."""


class Changed(OwnError):
    """The object is no longer what was listed."""


class Unsettled(OwnError):
    """The file was written to while it was carried; what was carried of it is dropped."""


def is_full(error: BaseException) -> bool:
    return getattr(error, "errno", 0) in FULL or "No space left on device" in str(error)


def is_local(error: BaseException) -> bool:
    """Whether the disk, or a folder on it, refused for good."""
    return (isinstance(error, OSError) and error.errno in FINAL_ERRORS) or is_full(error)


def advised(error: Exception) -> str:
    """What went wrong with a file, and what to do about a full disk."""
    return "%s; %s" % (error, ROOM) if is_full(error) else str(error)


def described(error: Exception) -> str:
    """What went wrong, for people: our own errors and the system's speak for themselves."""
    known = isinstance(error, (OwnError, OSError, ValueError))
    return str(error) if known else "%s: %s" % (type(error).__name__, error)
