"""The server of this machine: what was made before it is in it, all commands find it, and it leaves nothing behind."""

from __future__ import annotations

import signal
import sqlite3
from pathlib import Path

import pytest
from own_server import command, ended, processes, runs, secret, ui
from prefect_tools import wait_for

from prefect_tao.server.server_home import ServerHome

pytestmark = [pytest.mark.xdist_group("own-server"), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


def test_what_was_made_before_the_first_ui_is_in_it_and_stays(place: Path) -> None:
    # As it was before there was a Postgres: all in the file that Prefect makes by itself.
    before = {"PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{place}/prefect.db"}
    command(place, "quickstart", "--epochs", "1", **before)
    command(place, "setup", "process", "--name", "mine", TAO_RESULTS_ROOT=str(place / "kept"), **before)
    wait_for(lambda: ended(place), 30)
    with ui(place) as api:
        assert runs(api) == [("quickstart on process", "COMPLETED")]
        assert secret(api, "tao-process", "mine")["results_root"] == str(place / "kept")
        with sqlite3.connect(place / "prefect.db") as file:  # which is a copy to go back to
            assert file.execute("select count(*) from flow_run").fetchone() == (1,)
        assert "took over 1 runs, 1 blocks" in (place / "ui.log").read_text()
        # Without a word of where it is.
        assert "starting Prefect's server" not in command(place, "run", "--", "true")
        command(place, "setup", "process", "--name", "later")
        assert runs(api) == [("quickstart on process", "COMPLETED"), ("true on process", "COMPLETED")]
        assert secret(api, "tao-process", "later")
        assert any("postgres" in words for words in processes(place))
    assert ended(place), processes(place)
    # Nothing is lost where no server stays: what is started for a command has the same database.
    command(place, "run", "--target", "process/later", "--", "false || true")
    wait_for(lambda: ended(place), 30)
    with ui(place, stop=signal.SIGINT) as api:
        assert len(runs(api)) == 3
    assert ended(place), processes(place)


def test_a_ui_that_is_killed_leaves_no_process_and_no_address(place: Path) -> None:
    with ui(place, stop=signal.SIGKILL):
        assert processes(place)
    wait_for(lambda: ended(place), 30)
    assert ServerHome(place).running() is None
