"""A PostgreSQL cluster of a test's own: in a folder, on a free port of the loopback, run by an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import debian

HOME = Path("/usr/lib/postgresql/15/bin")
USER = "nobody"  # the server refuses to run as root
LIVELY = "-c fsync=off -c synchronous_commit=off"  # it lives for one test


@contextmanager
def cluster() -> Iterator[str]:
    """The address of a database for Prefect, for as long as the block lasts. Raises debian.Missing."""
    programs = _programs()
    # Not below pytest's folder, which is root's alone.
    folder = Path(tempfile.mkdtemp(prefix="tao-postgres-"))
    if os.geteuid() == 0:
        account = pwd.getpwnam(USER)
        os.chown(folder, account.pw_uid, account.pw_gid)
    data, port = folder / "data", _free_port()
    try:
        _run(programs["initdb"], "--pgdata", data, "--username", "prefect", "--auth", "trust", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder} {LIVELY}"
        _run(programs["pg_ctl"], "--pgdata", data, "--wait", "--log", folder / "log", "--options", options, "start")
        try:
            _run(programs["createdb"], "--host", "127.0.0.1", "--port", str(port), "--username", "prefect", "prefect")
            yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/prefect"
        finally:
            _run(programs["pg_ctl"], "--pgdata", data, "--wait", "--mode", "immediate", "stop")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Mapping[str, str]:
    names = ("postgres", "initdb", "pg_ctl", "createdb")
    found = {name: shutil.which(name) for name in names}
    if all(found.values()):
        return {name: str(path) for name, path in found.items()}
    debian.ensure({str(HOME / "postgres"): "postgresql-15"})
    return {name: str(HOME / name) for name in names}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _run(program: str, *words: str | Path) -> None:
    nobody = os.geteuid() == 0
    done = subprocess.run(
        [program, *map(str, words)],
        cwd="/",
        user=USER if nobody else None,
        group=pwd.getpwnam(USER).pw_gid if nobody else None,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
