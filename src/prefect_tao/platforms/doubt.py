"""Only a definite answer is an answer: one rule for every request over HTTP."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from prefect_tao.jobs.retrying import retry_blocking

T = TypeVar("T")
# How long a step in doubt is repeated before the caller is told that nothing is known; a person waits for a check.
DOUBT_SECONDS = 60.0
CHECK_SECONDS = 10.0
LONGEST_PAUSE = 5.0
REQUEST_TIMEOUT, TOO_MANY_REQUESTS, SERVER_ERRORS = 408, 429, 500
# Engines and registries say 500 to much that they will never do; these words tell what is not worth another try.
_PERMANENT = re.compile(
    "could not select device driver|unknown runtime|nvidia-container-cli|inject CDI|OCI runtime|no space left|"
    "exec format error|executable file not found|no such file or directory|permission denied|"
    "bind source path does not exist|invalid mount|not found|already in use|already allocated|"
    "unauthorized|access denied|denied:|authentication required|no basic auth|forbidden|manifest unknown|"
    "does not exist|no such image|no matching manifest|no such host|invalid reference",
    re.IGNORECASE,
)


class Refused(Exception):
    """The service answered that it will not; `status` is its code, `said` its own words."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(said)
        self.status = status
        self.said = said


def is_doubt(status: int) -> bool:
    """Whether an answer of this status says nothing: what was asked for may have been done, or not, or may be later.

    A proxy in between answers so, and so does a server that has lost its own. Every other 4xx is final.
    """
    return status >= SERVER_ERRORS or status in (REQUEST_TIMEOUT, TOO_MANY_REQUESTS)


def is_in_doubt(error: Exception) -> bool:
    """Whether an answer tells neither that the service did what it was asked, nor that it never will."""
    return isinstance(error, Refused) and is_doubt(error.status) and not _PERMANENT.search(error.said)


def sure(step: Callable[[], T]) -> T:
    """Repeat a step until its answer is definite: a later caller could not finish it for us."""
    return retry_blocking(step, DOUBT_SECONDS, is_in_doubt, LONGEST_PAUSE)


def checked(question: Callable[[], T]) -> T:
    """The same for a check before a launch, for a shorter while. A service that says nothing at all is told at once."""
    return retry_blocking(question, CHECK_SECONDS, is_in_doubt, LONGEST_PAUSE, is_silence_doubt=False)
