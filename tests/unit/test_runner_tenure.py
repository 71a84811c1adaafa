"""A job that its platform starts again while its last start lives: one of them works at a time."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest
from runner_tools import Runner, until

from prefect_tao.runner.entrypoint import build_entrypoint
from prefect_tao.runner.inside import tenure
from prefect_tao.runner.inside.failures import RunnerError
from prefect_tao.runner.inside.tenure import Tenure


def start(path: Path, restarts: int, monkeypatch: pytest.MonkeyPatch) -> Tenure:
    monkeypatch.setenv("TAO_RESTARTS", str(restarts))
    return Tenure(str(path))


def test_the_first_start_and_one_after_an_end_wait_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tenure, "_watch", lambda self, main: None)
    monkeypatch.setattr(tenure.time, "sleep", lambda seconds: pytest.fail("it waits"))
    for restarts in range(2):
        own = start(tmp_path / "tenure", restarts, monkeypatch)
        own.take()
        assert not own.is_lost()
        own.leave()
    assert [path.name for path in tmp_path.iterdir()] == ["tenure"]


def test_a_start_whose_file_is_old_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tenure, "_watch", lambda self, main: None)
    before, after = (start(tmp_path / "tenure", restarts, monkeypatch) for restarts in range(2))
    before.take()
    os.utime(before.beat, (time.time() - 31, time.time() - 31))
    monkeypatch.setattr(tenure.time, "sleep", lambda seconds: pytest.fail("it waits"))
    after.take()
    assert (before.is_lost(), after.is_lost()) == (True, False)


def test_a_start_that_lives_is_waited_for_until_it_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tenure, "_watch", lambda self, main: None)
    before, after = (start(tmp_path / "tenure", restarts, monkeypatch) for restarts in range(2))
    before.take()
    taking = threading.Thread(target=after.take)
    taking.start()
    until(before.is_lost, "the older start to notice")
    assert taking.is_alive()
    before.leave()
    taking.join(5)
    assert not taking.is_alive()


def test_an_older_start_that_comes_late_is_turned_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tenure, "_watch", lambda self, main: None)
    late, own = (start(tmp_path / "tenure", restarts, monkeypatch) for restarts in range(2))
    own.take()
    with pytest.raises(RunnerError, match="a later start"):
        late.take()
    assert (late.is_lost(), own.is_lost()) == (True, False)


def test_a_claim_that_cannot_be_read_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tenure, "_watch", lambda self, main: None)
    own = start(tmp_path / "tenure", 0, monkeypatch)
    own.take()
    (tmp_path / "tenure").write_text("")
    assert not own.is_lost()
    (tmp_path / "tenure").unlink()
    assert not own.is_lost()


def test_a_claim_that_cannot_be_made_keeps_no_job_from_running(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    own = start(tmp_path / "no such folder" / "tenure", 0, monkeypatch)
    own.take()
    assert not own.is_lost()
    assert "no later start of this job could notice this one" in "".join(capfd.readouterr())


def test_a_start_that_is_superseded_stops_its_command_and_writes_no_end(tmp_path: Path) -> None:
    runner, place = Runner(tmp_path), tmp_path / "tenure"
    job = runner.start(build_entrypoint("echo begun; sleep 300"), TAO_TENURE_FILE=str(place))
    job.says("begun")
    place.write_text("1 another\n")
    job.signal(signal.SIGTERM)  # as its own look at the claim does a few seconds later
    assert job.end().code == 128 + signal.SIGTERM
    assert "ended" not in job.marker()
    assert [path.name for path in tmp_path.glob("tenure*")] == ["tenure"]
