"""A PostgreSQL cluster of a test's own: made in a folder, on a free port of the loopback, run by an unprivileged user."""

from __future__ import annotations

import os
import pwd
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import debian

HOME = Path("/usr/lib/postgresql/15/bin")
USER = "nobody"  # the server refuses to run as root


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """The address of a database for Prefect, for as long as the block lasts. Raises debian.Missing."""
    programs = _programs()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    data, sockets = folder / "data", folder / "sockets"
    sockets.mkdir(parents=True)
    if os.geteuid() == 0:
        account = pwd.getpwnam(USER)
        for path in (folder, sockets):
            os.chown(path, account.pw_uid, account.pw_gid)
        for parent in folder.parents:  # pytest's folders are the owner's alone; the user must be able to pass
            if parent.stat().st_uid == os.geteuid() and parent.name.startswith("pytest-"):
                parent.chmod(parent.stat().st_mode | 0o011)
    _run(
        programs["initdb"],
        "--pgdata",
        data,
        "--username",
        "prefect",
        "--auth",
        "trust",
        "--no-sync",
        "--encoding",
        "UTF8",
    )
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={sockets} -c fsync=off"
    log = folder / "postgres.log"
    _run(programs["pg_ctl"], "--pgdata", data, "--wait", "--log", log, "--options", options, "start")
    try:
        _run(programs["createdb"], "--host", "127.0.0.1", "--port", str(port), "--username", "prefect", "prefect")
        yield f"postgresql+asyncpg://prefect@127.0.0.1:{port}/prefect"
    finally:
        _run(programs["pg_ctl"], "--pgdata", data, "--wait", "--mode", "immediate", "stop")


def _programs() -> Mapping[str, str]:
    names = ("postgres", "initdb", "pg_ctl", "createdb")
    found = {name: shutil.which(name) for name in names}
    if all(found.values()):
        return {name: str(path) for name, path in found.items()}
    debian.ensure({str(HOME / "postgres"): "postgresql-15"})
    return {name: str(HOME / name) for name in names}


def _run(program: str, *words: str | Path) -> None:
    user = {"user": USER, "group": pwd.getpwnam(USER).pw_gid} if os.geteuid() == 0 else {}
    done = subprocess.run(
        [program, *map(str, words)],
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=120,
        check=False,
        **user,  # type: ignore[arg-type]
    )
    assert done.returncode == 0, done.stderr
