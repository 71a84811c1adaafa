"""The site that takes an attempt is noted beside the results before there is a job, and the first one counts."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from prefect_tao.jobs.errors import Elsewhere
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.platforms import site_notes
from prefect_tao.platforms.files import LocalFiles

FILES = LocalFiles()


def attempt(root: Path, site: str, number: int = 1) -> JobHandle:
    target = f"local-docker/{site}"
    return JobHandle(target=target, key="ab" * 8, attempt=number, site=site, results=str(root / ("ab" * 8)))


def test_of_many_sites_at_once_one_gets_the_attempt_and_the_others_are_told_which(tmp_path: Path) -> None:
    def taken(number: int) -> str:
        try:
            site_notes.leave(FILES, attempt(tmp_path, f"engine-{number}"))
        except Elsewhere as error:
            return error.handle.site
        return f"engine-{number}"

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(taken, range(32)))
    assert len(set(answers)) == 1
    (found,) = site_notes.others(FILES, [attempt(tmp_path, "another")])
    assert (found.site, found.target, found.attempt) == (answers[0], f"local-docker/{answers[0]}", 1)


def test_a_site_sees_no_other_in_its_own_note_and_takes_it_back_when_it_was_refused(tmp_path: Path) -> None:
    site_notes.leave(FILES, attempt(tmp_path, "ours", 2))
    site_notes.leave(FILES, attempt(tmp_path, "ours", 2))
    assert site_notes.others(FILES, [attempt(tmp_path, "ours")]) == []
    site_notes.drop(FILES, attempt(tmp_path, "ours", 2))
    site_notes.leave(FILES, attempt(tmp_path, "theirs", 2))
    with pytest.raises(Elsewhere, match="theirs"):
        site_notes.leave(FILES, attempt(tmp_path, "ours", 2))


def test_where_no_note_can_be_left_nothing_is_refused() -> None:
    site_notes.leave(FILES, attempt(Path("/proc/nowhere"), "ours"))
    assert site_notes.others(FILES, [attempt(Path("/proc/nowhere"), "ours")]) == []
