"""A Postgres of our own runs for root and for everyone else, and two of a folder never at once."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import tempfile
import traceback
from pathlib import Path

import asyncpg
import pytest

from prefect_tao.server.postgres import Postgres, PostgresFailed
from prefect_tao.server.postgres_programs import PostgresPrograms, find_programs


def asked(postgres: Postgres, question: str) -> object:
    async def ask() -> object:
        connection = await asyncpg.connect(postgres.address.replace("+asyncpg", ""))
        try:
            return await connection.fetchval(question)
        finally:
            await connection.close()

    return asyncio.run(ask())


def try_one(folder: Path, programs: PostgresPrograms) -> None:
    """Make it, end it, begin it again: what was written is there."""
    postgres = Postgres(folder, programs)
    postgres.create()
    postgres.start()
    try:
        asked(postgres, "create extension pg_trgm")  # which Prefect needs
        asked(postgres, "create table kept as select 42 as number")
    finally:
        postgres.stop()
    assert not postgres.alive
    postgres.start()
    try:
        assert asked(postgres, "select number from kept") == 42
        assert oct((folder / "password").stat().st_mode)[-3:] == "600"
        wrong = postgres.address.replace("+asyncpg", "").replace((folder / "password").read_text(), "wrong")
        with pytest.raises(asyncpg.InvalidPasswordError):
            asyncio.run(asyncpg.connect(wrong))
    finally:
        postgres.stop()


@pytest.fixture
def programs() -> PostgresPrograms:
    found = find_programs()
    assert found is not None
    return found


def test_it_runs_as_whoever_we_are(tmp_path: Path, programs: PostgresPrograms) -> None:
    tmp_path.chmod(0o700)
    try_one(tmp_path / "postgres", programs)


def test_it_runs_as_somebody_who_is_not_root(programs: PostgresPrograms) -> None:
    if os.geteuid() != 0:  # then the test before has shown it
        return
    programs, somebody = programs.for_everyone(), pwd.getpwnam("nobody")
    folder = Path(tempfile.mkdtemp())
    os.chown(folder, somebody.pw_uid, somebody.pw_gid)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setgroups([])
            os.setgid(somebody.pw_gid)
            os.setuid(somebody.pw_uid)
            os.environ["HOME"] = str(folder)
            try_one(folder / "postgres", programs)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    status = os.waitpid(child, 0)[1]
    shutil.rmtree(folder)
    assert os.waitstatus_to_exitcode(status) == 0


def test_what_keeps_it_from_starting_is_told(tmp_path: Path, programs: PostgresPrograms) -> None:
    postgres = Postgres(tmp_path / "postgres", programs)
    postgres.create()
    (tmp_path / "postgres" / "data" / "PG_VERSION").write_text("9\n")
    with pytest.raises(PostgresFailed, match="version 9"):
        postgres.start()
    assert not postgres.alive


def test_programs_that_root_alone_can_reach_are_copied_for_the_account_they_run_as(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: PostgresPrograms
) -> None:
    from prefect_tao.server import postgres_programs

    monkeypatch.setattr(postgres_programs, "COPIES", tmp_path / "copies")
    hidden = tmp_path / "hidden"
    for part in ("lib", "share"):
        (hidden / part).mkdir(parents=True)
    (hidden / "bin").mkdir()
    (hidden / "bin" / "postgres").write_text("#!/bin/sh\n")
    hidden.chmod(0o700)
    copied = PostgresPrograms(hidden / "bin", "18.6").for_everyone()
    assert copied.folder == tmp_path / "copies" / "postgres-18.6" / "bin"
    assert (copied.folder / "postgres").read_text() == "#!/bin/sh\n"
    assert copied.for_everyone().version == "18.6"
