"""A log as it is shown: secrets and escapes go, however they are cut into pieces; text and colours stay."""

from __future__ import annotations

import pytest

from prefect_tao.jobs.redacting import LONGEST_ESCAPE, LogRedactor, without_escapes

SECRETS = {"TOKEN": "s3cret-value"}


def shown(pieces: list[str]) -> str:
    log = LogRedactor(SECRETS)
    return "".join(map(log.feed, pieces)) + log.rest()


@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ("plain\ttext\r\n", "plain\ttext\r\n"),
        ("\x1b[1;31mred\x1b[0m", "\x1b[1;31mred\x1b[0m"),
        ("a\x1b]0;title\x07b", "ab"),
        ("a\x1b]52;c;Zm9v\x1b\\\\b", "a\\b"),
        ("a\x1b[2J\x1b[10;10Hb", "ab"),
        ("a\x1b[6nb\x1b[c", "ab"),
        ("a\x1bPq#0\x1b\\b", "ab"),
        ("a\x1bcb\x1b(0", "ab"),
        ("a\x9b2Jb", "a2Jb"),
        ("the token is s3cret-value.", "the token is ***TOKEN***."),
        ("s3cret\x1b[K-value", "***TOKEN***"),
        ("ends in \x1b[", "ends in "),
    ],
)
def test_what_steers_a_terminal_and_what_is_secret_goes(said: str, seen: str) -> None:
    assert shown([said]) == seen
    assert shown(list(said)) == seen
    for cut in range(len(said)):
        assert shown([said[:cut], said[cut:]]) == seen


def test_an_escape_without_an_end_does_not_swallow_the_log() -> None:
    log = LogRedactor({})
    assert log.feed("before\x1b]0;" + "x" * 100) == "before"
    assert log.feed("y" * LONGEST_ESCAPE).endswith("y" * LONGEST_ESCAPE)
    assert without_escapes("\x1b]0;never ends") == "0;never ends"
