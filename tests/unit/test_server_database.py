"""Which database the server of this machine gets where there is no Postgres, or one that fails: nothing vanishes."""

from __future__ import annotations

from pathlib import Path

import pytest

from prefect_tao.jobs.errors import MissingDependency
from prefect_tao.server import hosting, postgres_programs
from prefect_tao.server.postgres_programs import PostgresPrograms
from prefect_tao.server.server_home import ServerHome

PART_OF_PROGRAMS = ("bin", "lib", "share")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ServerHome:
    """A home of Prefect's own, for which nobody has named a database."""
    monkeypatch.delenv("PREFECT_PROFILES_PATH", raising=False)
    monkeypatch.setattr(ServerHome, "names_a_database", lambda self: False)
    return ServerHome(tmp_path / "prefect")


def install(monkeypatch: pytest.MonkeyPatch, programs: PostgresPrograms | None) -> None:
    monkeypatch.setattr(hosting, "find_programs", lambda major=None: programs)


def test_without_a_postgres_it_is_sqlite_with_a_warning(home: ServerHome, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    told: list[str] = []
    with hosting._database(home, told.append) as postgres:
        assert postgres is None
    assert told == [
        "the server runs on SQLite, which is slow with many runs at once; pip install 'prefect-tao[postgres]' brings "
        "Postgres"
    ]
    assert not home.postgres.exists()


def test_a_postgres_that_cannot_be_made_leaves_all_in_the_file(
    home: ServerHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in PART_OF_PROGRAMS:
        (tmp_path / "broken" / part).mkdir(parents=True)
    for name in ("initdb", "postgres"):
        (tmp_path / "broken" / "bin" / name).write_text("#!/bin/sh\necho a library is missing >&2\nexit 1\n")
        (tmp_path / "broken" / "bin" / name).chmod(0o755)
    monkeypatch.setattr(postgres_programs, "COPIES", tmp_path / "copies")
    install(monkeypatch, PostgresPrograms(tmp_path / "broken" / "bin", "18.6"))
    home.sqlite.parent.mkdir(parents=True)
    home.sqlite.write_text("what people made")
    told: list[str] = []
    with hosting._database(home, told.append) as postgres:
        assert postgres is None
    assert "here it could not be used" in told[-1]
    assert "runs on SQLite" in told[-1]
    assert (home.sqlite.read_text(), home.postgres.exists()) == ("what people made", False)


def test_once_there_is_a_postgres_nothing_else_takes_its_place(
    home: ServerHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(monkeypatch, None)
    (home.postgres / "data").mkdir(parents=True)
    (home.postgres / "data" / "PG_VERSION").write_text("18\n")
    (home.postgres / "complete").touch()
    with pytest.raises(MissingDependency, match="no Postgres 18 to read it") as told:  # noqa: SIM117
        with hosting._database(home, print):
            raise AssertionError("a server would start without what people made")
    assert "prefect-tao[postgres]" in told.value.remedy
