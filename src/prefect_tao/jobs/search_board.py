"""Where searches of this machine keep their state: the study's storage, and how its board stood last, as JSON."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.search_outcome import SearchOutcome
from prefect_tao.runner.inside.atomic import write_atomic

STEP = "automl"


class SearchFolder:
    """The files of one search, by the key of its run and the step that it is."""

    def __init__(self, run: str, step: str = STEP) -> None:
        home = os.environ.get("PREFECT_TAO_HOME") or Path.home() / ".prefect-tao"
        self.key = job_key(run, step)
        self.folder = Path(home) / "studies"
        self.database = self.folder / f"{self.key}.db"
        self.board = self.folder / f"{self.key}.json"

    def storage(self) -> str:
        """The storage as Optuna, and its dashboard, take it. Raises InvalidInput where there can be none."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(
                f"the state of the search cannot be kept in {self.folder}: {error.strerror}",
                "set PREFECT_TAO_HOME to a folder that can be written, or give a storage",
            ) from None
        return f"sqlite:///{self.database}"

    def write(self, outcome: SearchOutcome) -> None:
        """Keep the board, whole or not at all."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_atomic(str(self.board), outcome.model_dump_json().encode())

    def read(self) -> SearchOutcome | None:
        """The board as it stood last, if there was one."""
        try:
            return SearchOutcome.model_validate_json(self.board.read_bytes())
        except FileNotFoundError:
            return None


def newest_board(flow_run_id: str | None = None) -> SearchOutcome | None:
    """The board of the search of this machine that was heard of last, or that of one flow run."""
    folder = SearchFolder("").folder
    boards = sorted(folder.glob("*.json"), key=lambda path: -path.stat().st_mtime) if folder.is_dir() else []
    found = (SearchOutcome.model_validate_json(path.read_bytes()) for path in boards)
    return next((one for one in found if flow_run_id in (None, one.flow_run_id)), None)


def earlier_best(key: str) -> dict[str, Any]:
    """The best values of an earlier search of this machine. Raises InvalidInput where there is none."""
    found = SearchFolder(key).read() or newest_board(key)
    if found is None or found.best is None:
        raise InvalidInput(
            f"warm_start: there is no search {key} with a best trial on this machine",
            "give the run key or the flow run's id of one that has ended here, or leave it out",
        )
    return dict(found.best.overrides)
