"""A job is named by its name, or by the handle that one of our commands has printed, wherever that is kept."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from prefect_tao.cli.handles import named
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.handle import JobHandle

HANDLE = JobHandle(target="slurm/polar", key="ab" * 8, attempt=2, native_id="7", results="/r")
TEXT = HANDLE.model_dump_json(indent=2)
MEANT = (HANDLE.name, "slurm/polar")


def test_a_name_is_a_job_of_the_target_that_was_given() -> None:
    assert named(HANDLE.name, "process") == (HANDLE.name, "process")
    assert named("no name at all", "process") == ("no name at all", "process")  # for the look-up to tell


def test_a_handle_brings_its_target_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "handle.json"
    for text in (TEXT, json.dumps({**json.loads(TEXT), "name": HANDLE.name, "seen": {}}), f'{{"handle": {TEXT}}}'):
        assert named(text, "process") == MEANT
        path.write_text(text)
        assert named(str(path), "process") == MEANT
        monkeypatch.setattr("sys.stdin", io.StringIO(text))
        assert named("-", "process") == MEANT


@pytest.mark.parametrize("text", ["{", "[1]", '{"key": 1}', "7", ""])
def test_what_is_no_handle_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "handle.json").write_text(text)
    with pytest.raises(InvalidInput, match="not the handle of a job"):
        named(str(tmp_path / "handle.json"), "process")
