"""What counts as an answer, and how long a step in doubt is repeated."""

from __future__ import annotations

import logging

import pytest

from prefect_tao.jobs.errors import SubmitFailed, Unreachable
from prefect_tao.jobs.retrying import retry_blocking
from prefect_tao.platforms.doubt import Refused, is_doubt, is_in_doubt


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 599])
def test_what_a_proxy_or_a_lost_server_says_is_doubt(status: int) -> None:
    assert is_doubt(status)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
def test_every_other_refusal_is_final(status: int) -> None:
    assert not is_doubt(status)


def test_an_engine_that_names_a_permanent_cause_is_believed() -> None:
    for said in (
        'could not select device driver "" with capabilities: [[gpu]]',
        "failed to create task: OCI runtime create failed",
        "write /x: no space left on device",
    ):
        assert not is_in_doubt(Refused(500, said))
    assert is_in_doubt(Refused(500, "Bad Gateway"))
    assert not is_in_doubt(Refused(400, "Bad Gateway"))
    assert not is_in_doubt(ValueError("x"))


def test_a_step_in_doubt_is_repeated_and_said_to_be(caplog: pytest.LogCaptureFixture) -> None:
    answers = [Unreachable("the reply was lost"), Refused(502, "Bad Gateway"), None]

    def step() -> str:
        if answer := answers.pop(0):
            raise answer
        return "done"

    with caplog.at_level(logging.WARNING):
        assert retry_blocking(step, 10, is_in_doubt) == "done"
    assert ["the reply was lost" in caplog.messages[0], "Bad Gateway" in caplog.messages[1]] == [True, True]


def test_a_refusal_is_not_repeated_and_doubt_has_an_end() -> None:
    tries: list[Exception] = []

    def fail(error: Exception) -> None:
        tries.append(error)
        raise error

    with pytest.raises(SubmitFailed):
        retry_blocking(lambda: fail(SubmitFailed("no")), 10, is_in_doubt)
    assert len(tries) == 1
    with pytest.raises(Refused):
        retry_blocking(lambda: fail(Refused(503, "later")), 0.3, is_in_doubt)
    assert 2 <= len(tries) <= 5
