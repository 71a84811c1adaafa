"""`python -m prefect_tao.deployments.takeover [FILE]`: all that is in Prefect's SQLite file, in an empty Postgres too.

The Postgres is the one that Prefect is set up to use. The file is not changed: a copy of it is brought to the tables of
this version and read. Blocks stay readable, because the key that they are encrypted with is one of the rows.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from prefect.server.database import provide_database_interface
from prefect.server.database.orm_models import Base
from sqlalchemy import Table, func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

ROWS = 500
DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
TOLD = {"flow_run": "runs", "block_document": "blocks", "deployment": "deployments"}


async def take_over(file: Path | None) -> Mapping[str, int]:
    """How many rows of each table there are now."""
    await provide_database_interface().create_db()
    if file is None:
        return {}
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        address = f"sqlite+aiosqlite:///{_copy(file, Path(folder))}"
        source, target = create_async_engine(address), create_async_engine(os.environ[DATABASE])
        try:
            async with source.connect() as read, target.begin() as write:
                # Tables refer to each other in circles, and all of them come.
                await write.execute(text("SET session_replication_role = replica"))
                return {name: await _copied(table, read, write) for name, table in Base.metadata.tables.items()}
        finally:
            await source.dispose()
            await target.dispose()


def _copy(file: Path, folder: Path) -> Path:
    """The file as it is at one moment, also while it is written to, with the tables of this version."""
    copy = folder / "copy.db"
    with sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True) as read, sqlite3.connect(copy) as write:
        read.backup(write)
    read.close()
    write.close()
    words = [sys.executable, "-m", "prefect", "--no-prompt", "server", "database", "upgrade", "--yes"]
    env = {**os.environ, DATABASE: f"sqlite+aiosqlite:///{copy}"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{file} could not be brought to this version of Prefect: {done.stdout}{done.stderr}")
    return copy


async def _copied(table: Table, read: AsyncConnection, write: AsyncConnection) -> int:
    columns = [column for column in table.c if column.computed is None]
    # What making the tables has put there is in the file too, with the ids that others refer to.
    await write.execute(table.delete())
    async for rows in (await read.stream(select(*columns))).mappings().partitions(ROWS):
        await write.execute(
            insert(table), [{column.key: _without_nul(row[column.name]) for column in columns} for row in rows]
        )
    there, here = [(await side.execute(select(func.count()).select_from(table))).scalar_one() for side in (read, write)]
    if there != here:
        raise RuntimeError(f"{table.name} has {there} rows, and {here} of them came")
    return int(here)


def _without_nul(value: Any) -> Any:
    """Postgres has no NUL characters, which a job's output may have."""
    if isinstance(value, str):
        return value.replace("\0", "")
    if isinstance(value, dict):
        return {_without_nul(key): _without_nul(inner) for key, inner in value.items()}
    return [_without_nul(inner) for inner in value] if isinstance(value, list) else value


def main() -> int:
    """Take over, and say what came."""
    counts = asyncio.run(take_over(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
    if counts:
        sys.stdout.write(f"took over {', '.join(f'{counts[table]} {word}' for table, word in TOLD.items())}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
