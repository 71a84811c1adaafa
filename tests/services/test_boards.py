"""A chain and a sweep at a real terminal: a board that lives, Ctrl-C once to leave, the way back, twice to cancel."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from prefect_tools import Api, job_states, wait_for
from terminal import CTRL_C, Terminal

from prefect_tao.jobs.state import JobState

pytestmark = pytest.mark.xdist_group("prefect-server")
CHAIN = """
steps:
- {name: first, command: 'true'}
- {name: left, command: sleep 200, after: first}
- {name: right, command: sleep 200, after: first}
"""
COMMAND = "sleep 200 # {config_path}"
SWEEP = ("sweep", "--over", "number=1,2", "--set", "number=0", "--max-concurrent", "2", "--", COMMAND)


@contextmanager
def at_a_terminal(server: Any, home: Path, *words: str) -> Iterator[Terminal]:
    env = {**server.env, "PREFECT_TAO_HOME": str(home)}
    with closing(Terminal([sys.executable, "-m", "prefect_tao.cli", *words], env)) as terminal:
        yield terminal


def way_back(terminal: Terminal) -> list[str]:
    """The words after the program's name in the command that was printed."""
    (line,) = re.findall(r"^  \S.*--run-key.*$", terminal.shown, re.MULTILINE)
    return shlex.split(line)[1:]


@pytest.mark.parametrize(
    ("words", "board"),
    [
        (("chain", "chain.yaml"), (r"first  Complete", r"left   Running .*tao-", r"right  Running .*tao-")),
        (SWEEP, (r"0%  2 running \(2 jobs\)",)),
    ],
    ids=["chain", "sweep"],
)
def test_the_board_lives_one_interrupt_leaves_the_jobs_and_a_second_one_cancels_them(
    server: Any, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], board: tuple[str]
) -> None:
    (tmp_path / "chain.yaml").write_text(CHAIN)
    monkeypatch.chdir(tmp_path)

    def running() -> bool:
        return job_states(home).count(JobState.RUNNING) == 2

    with at_a_terminal(server, home, *words) as terminal:
        terminal.sees(*board)
        wait_for(running, 30)
        terminal.press(CTRL_C)
        terminal.sees("Detached: 2 jobs go on without this terminal. To come back:", "Ctrl-C again within 3 s")
        assert terminal.ends() == 130
        assert "Traceback" not in terminal.shown
        back = way_back(terminal)
    assert running()

    with at_a_terminal(server, home, *back) as terminal:
        terminal.sees(*board)
        assert running()  # those that were there, and no others
        terminal.press(CTRL_C)
        terminal.sees("Ctrl-C again within 3 s cancels them")
        terminal.press(CTRL_C)
        terminal.sees("Canceled")
        assert terminal.ends() == 130
        assert "Traceback" not in terminal.shown
    assert Api(server.api).newest_run(words[0])["state"]["type"] == "CANCELLED"
    assert job_states(home).count(JobState.CANCELED) == 2
    assert not job_states(home).count(JobState.RUNNING)
