"""Amounts are read as people write them, and what may mean two things is refused."""

from __future__ import annotations

import pytest

from prefect_tao.jobs.quantities import format_seconds, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("16G", 16 * 1024**3),
        ("16GB", 16 * 1024**3),
        ("16Gi", 16 * 1024**3),
        ("16 GiB", 16 * 1024**3),
        ("512m", 512 * 1024**2),
        ("1.5K", 1536),
        ("2T", 2 * 1024**4),
        ("4096", 4096),
        (4096, 4096),
    ],
)
def test_memory_is_read_in_powers_of_1024(text: str | int, amount: int) -> None:
    assert parse_bytes(text) == amount


@pytest.mark.parametrize("text", ["", "0", "0G", "-1G", "16 gigs", "G", "1e3", "sixteen", "16G 2M", True, None])
def test_what_is_no_memory_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 16G"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        (90, 90),
        (0.5, 0.5),
        ("30s", 30),
        ("30m", 1800),
        ("4h", 14400),
        ("4H", 14400),
        ("1h30m", 5400),
        ("1 h 30 m", 5400),
        ("1.5h", 5400),
        ("2d", 172800),
        ("3:30:00", 12600),
        ("0:30:00", 1800),
        ("100:00:00", 360000),
        ("1-02:00:00", 93600),
        ("1-02:30", 95400),
    ],
)
def test_durations_are_read_in_every_usual_way(text: str | float, seconds: float) -> None:
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0h", "-5", "-1h", "nan", "inf", "soon", "4 hours", "1h banana", "1-2"])
def test_what_is_no_duration_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write for example 30m"):
        parse_seconds(text)


def test_a_clock_of_two_numbers_is_refused_because_schedulers_disagree_about_it() -> None:
    with pytest.raises(ValueError, match="write 30:00:00, 4h or 30m"):
        parse_seconds("30:00")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0 s"),
        (8.04, "8.0 s"),
        (10, "10 s"),
        (59.4, "59 s"),
        (200, "3 min 20 s"),
        (3600, "1 h 00 min"),
        (7500, "2 h 05 min"),
        (100800, "1 d 04 h"),
    ],
)
def test_durations_are_shown_as_a_person_reads_them(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
