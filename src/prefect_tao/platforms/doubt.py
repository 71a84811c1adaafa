"""Only a definite answer is an answer: one rule for every request over HTTP."""

from __future__ import annotations

LONGEST_PAUSE = 5.0
REQUEST_TIMEOUT, TOO_MANY_REQUESTS, SERVER_ERRORS = 408, 429, 500


def is_doubt(status: int) -> bool:
    """Whether an answer of this status says nothing: what was asked for may have been done, or not, or may be later.

    A proxy in between answers so, and so does a server that has lost its own. Every other 4xx is final.
    """
    return status >= SERVER_ERRORS or status in (REQUEST_TIMEOUT, TOO_MANY_REQUESTS)
