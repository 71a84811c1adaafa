"""Where the server of this machine keeps what it needs: below Prefect's home, so that it goes where that goes."""

from __future__ import annotations

import fcntl
import json
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

DATABASE_SETTING = re.compile(r"PREFECT_(API|SERVER)_DATABASE_(CONNECTION_URL|DRIVER|HOST|NAME|USER)")


@dataclass(frozen=True)
class ServerHome:
    """The files of one server. At most one runs per home: it holds `lock`; who uses it holds a share of `users`."""

    prefect: Path

    @classmethod
    def here(cls) -> ServerHome:
        """The one of this person: Prefect's home as Prefect finds it."""
        return cls(Path(os.environ.get("PREFECT_HOME") or "~/.prefect").expanduser().absolute())

    @property
    def folder(self) -> Path:
        return self.prefect / "prefect-tao"

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    @property
    def postgres(self) -> Path:
        return self.folder / "postgres"

    @property
    def sqlite(self) -> Path:
        """The database that Prefect makes by itself."""
        return self.prefect / "prefect.db"

    @property
    def _announcement(self) -> Path:
        return self.folder / "server.json"

    # -- who runs it, who uses it --------------------------------------------------------------------------------------

    def open(self, name: str) -> IO[str]:
        """A file to lock."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return open(self.folder / name, "a")

    @contextmanager
    def announced(self, url: str) -> Iterator[None]:
        """The address for all that look for it, as long as the block lasts."""
        fresh = self._announcement.with_suffix(".new")
        fresh.write_text(json.dumps({"url": url, "pid": os.getpid()}))
        fresh.replace(self._announcement)
        try:
            yield
        finally:
            self._announcement.unlink(missing_ok=True)

    def running(self) -> str | None:
        """The API's address of the server that runs here, if one does; what a killed one left behind counts nothing."""
        with suppress(OSError, ValueError, KeyError):
            return str(json.loads(self._announcement.read_text())["url"]) if self.is_served() else None
        return None

    def is_served(self) -> bool:
        """Whether a server runs here, or is about to."""
        if not self.folder.is_dir():
            return False
        with self.open("server.lock") as lock:
            return not take(lock, fcntl.LOCK_SH)

    def say(self, text: str) -> None:
        """What the server that is starting does now, for those who wait for it."""
        (self.folder / "doing").write_text(text)

    def doing(self) -> str:
        try:
            return (self.folder / "doing").read_text() if self.is_served() else ""
        except OSError:
            return ""

    # -- what a person has set -----------------------------------------------------------------------------------------

    def names_a_database(self) -> bool:
        """Whether the environment or Prefect's profile says which database to use."""
        return any(DATABASE_SETTING.fullmatch(name) for name in (*os.environ, *self._profile()))

    def _profile(self) -> dict[str, object]:
        file = Path(os.environ.get("PREFECT_PROFILES_PATH") or self.prefect / "profiles.toml")
        try:
            read = tomllib.loads(file.read_text())
        except (OSError, ValueError):
            return {}
        name = os.environ.get("PREFECT_PROFILE") or read.get("active")
        found = read.get("profiles", {}).get(name, {})
        return found if isinstance(found, dict) else {}


def take(lock: IO[str], kind: int) -> bool:
    """Whether the lock could be had at once; it is given back when the file is closed."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
