"""Runs the server of this machine: its Postgres, Prefect's server on it, and its address for all that look for it."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from types import FrameType

from prefect_tao.jobs.errors import InvalidInput, MissingDependency, Unreachable
from prefect_tao.server.postgres import Postgres, PostgresFailed, end_with_parent
from prefect_tao.server.postgres_programs import find_programs
from prefect_tao.server.server_home import ServerHome, take
from prefect_tao.settings import PREFECT_DEFAULTS

Tell = Callable[[str], None]
START_SECONDS, STOP_SECONDS, LOOK_SECONDS = 300.0, 5.0, 0.25
STARTING = "starting Prefect's server"
INSTALL = "pip install 'prefect-tao[postgres]'"
ON_SQLITE = f"the server runs on SQLite, which is slow with many runs at once; {INSTALL} brings Postgres"
DATABASE = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
# Each unless the person has set it: pages that ask the server they came from, whatever its name and port.
SERVER_DEFAULTS = {
    **PREFECT_DEFAULTS,
    "PREFECT_SERVER_UI_API_URL": "/api",
    "PREFECT_SERVER_LOGGING_LEVEL": "WARNING",
}


# What the command that starts it may have silenced for its own terminal.
IN_ITS_LOG = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "WARNING"}


class AlreadyServed(Exception):
    """Another process runs the server of this home."""


class StopAsked(BaseException):
    """A signal asks the server to end."""


def serve(home: ServerHome, host: str, port: int, is_wanted: Callable[[], bool], tell: Tell) -> None:
    """Run the server until a signal comes or it is not wanted any more; what was started is stopped then.

    `tell` hears what goes on, and the address at last. Raises AlreadyServed, InvalidInput, MissingDependency, and
    Unreachable when it does not start, or ends by itself.
    """
    with ExitStack() as stack:
        lock = stack.enter_context(home.open("server.lock"))
        if not _locked(lock):
            raise AlreadyServed
        check_port(host, port)
        home.say("")  # what the one before did last is no news
        stack.enter_context(_signals())
        try:
            postgres = stack.enter_context(_database(home, tell))
            tell(STARTING)
            server = stack.enter_context(_prefect(home, host, port, postgres))
            url = f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{port}/api"  # noqa: S104
            _await_answer(home, server, url)
            stack.enter_context(home.announced(url))
            own = "Postgres" if postgres else "SQLite"
            database = "the database that is set" if home.names_a_database() else own
            tell(f"ready on {database}: {url.removesuffix('/api')}")
            while is_wanted():
                if server.poll() is not None or (postgres and not postgres.alive):
                    raise Unreachable(f"the server has ended: {_end_of(home.log)}", f"see {home.log}")
                time.sleep(LOOK_SECONDS)
        except StopAsked:
            tell("stopping")


def check_port(host: str, port: int) -> None:
    """Raises InvalidInput where the server could not listen there."""
    try:
        with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET):
            return
    except OSError as error:
        raise InvalidInput(
            f"the server cannot listen on {host}:{port}: {error.strerror or error}", "choose another with --port"
        ) from None


def _locked(lock: object) -> bool:
    """Those who only look hold a share of it for a moment."""
    for _ in range(20):
        if take(lock, fcntl.LOCK_EX):  # type: ignore[arg-type]
            return True
        time.sleep(0.05)
    return False


@contextmanager
def _signals() -> Iterator[None]:
    """The first SIGINT or SIGTERM raises StopAsked, wherever we are; the rest is heard after all has been stopped."""

    def asked(number: int, frame: FrameType | None) -> None:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise StopAsked

    before = {number: signal.signal(number, asked) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- its database ------------------------------------------------------------------------------------------------------


@contextmanager
def _database(home: ServerHome, tell: Tell) -> Iterator[Postgres | None]:
    """The Postgres that runs as long as the block lasts; None where another database is named, or SQLite has to do."""
    postgres = None if home.names_a_database() else _postgres(home, tell)
    try:
        yield postgres
    finally:
        if postgres:
            postgres.stop()


def _postgres(home: ServerHome, tell: Tell) -> Postgres | None:
    """Once there is one, nothing else will do: what people made is in it."""
    if not _made(home).exists():
        return _new_postgres(home, tell)
    major = (home.postgres / "data" / "PG_VERSION").read_text().strip()
    programs = find_programs(major)
    if programs is None:
        raise MissingDependency(
            f"the runs and blocks of this machine are in {home.postgres}, and there is no Postgres {major} to read it",
            INSTALL,
        )
    postgres = Postgres(home.postgres, programs)
    try:
        postgres.start()
    except PostgresFailed as error:
        raise Unreachable(f"Postgres does not start: {error}", f"see {home.postgres}/log") from None
    return postgres


def _new_postgres(home: ServerHome, tell: Tell) -> Postgres | None:
    """A new database with all that is in the SQLite file; where that fails, all stays in the file."""
    programs = find_programs()
    if programs is None:
        tell(ON_SQLITE)
        return None
    tell("making a Postgres database, once")
    postgres = None
    try:
        postgres = Postgres(home.postgres, programs)
        postgres.create()
        postgres.start()
        _take_over(home, postgres.address, tell)
    except BaseException as error:
        if postgres:
            postgres.stop()
        shutil.rmtree(home.postgres, ignore_errors=True)
        if not isinstance(error, PostgresFailed | OSError):
            raise
        tell(f"{ON_SQLITE}; here it could not be used: {error}")
        return None
    _made(home).touch()
    return postgres


def _made(home: ServerHome) -> Path:
    """There when the database is complete."""
    return home.postgres / "complete"


def _take_over(home: ServerHome, address: str, tell: Tell) -> None:
    words = [sys.executable, "-m", "prefect_tao.deployments.takeover"]
    if home.sqlite.exists():
        tell(f"taking over all runs, blocks and deployments from {home.sqlite}, which stays as it is")
        words.append(str(home.sqlite))
    env = {**os.environ, **_defaults(), DATABASE: address}
    done = subprocess.run(words, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PostgresFailed(done.stderr.strip()[-2000:])
    if done.stdout.strip():
        tell(done.stdout.strip())


# -- Prefect's server --------------------------------------------------------------------------------------------------


@contextmanager
def _prefect(home: ServerHome, host: str, port: int, postgres: Postgres | None) -> Iterator[subprocess.Popen[bytes]]:
    """Prefect's server, as its own `server start --background` starts it."""
    env = {**os.environ, **_defaults(), "PREFECT__SERVER_FINAL": "1", **IN_ITS_LOG}
    if postgres:
        env[DATABASE] = postgres.address
    words = ["-m", "uvicorn", "--factory", "prefect.server.api.server:create_app", "--log-level", "warning"]
    with open(home.log, "wb") as log:
        server = subprocess.Popen(
            [sys.executable, *words, "--host", host, "--port", str(port)],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            # Asked to end kindly, it would wait for a database that ends at the same moment.
            preexec_fn=partial(end_with_parent, signal.SIGKILL),
        )
    try:
        yield server
    finally:
        server.terminate()
        try:
            server.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:  # it waits for clients that stay; what it has answered is written down
            server.kill()
            server.wait()


def _defaults() -> dict[str, str]:
    return {name: value for name, value in SERVER_DEFAULTS.items() if name not in os.environ}


def _await_answer(home: ServerHome, server: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while server.poll() is None and time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=LOOK_SECONDS * 8):  # noqa: S310
                return
        except OSError:
            time.sleep(LOOK_SECONDS)
    raise Unreachable(f"Prefect's server did not start: {_end_of(home.log)}", f"see {home.log}")


def _end_of(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-2000:] or "it said nothing"
