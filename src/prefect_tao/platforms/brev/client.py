"""The brev command as a child process: what it is asked, what it prints, and what its words mean.

It reads its input to the end, so it gets none; it may leave ssh processes behind, so it has a session of its own; it
ends with 1 whatever happened, so only its words tell. A secret never stands on its command line.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, NamedTuple

from prefect_tao.jobs.errors import InvalidInput, MissingDependency, Unreachable
from prefect_tao.platforms.brev.settings import BrevSettings
from prefect_tao.platforms.markers import read_object
from prefect_tao.platforms.ssh.destination import Destination

PROGRAM = "brev"
CALL_SECONDS = 90.0
LISTS_AS_JSON, READS_KEY = (0, 6, 317), (0, 6, 335)
API_KEY, ACCESS = "bak-", "eyJ"
TOKENS = ("BREV_API_TOKEN", "BREV_API_KEY")
LOG_IN = "log in once on this machine (brev login), or give the block a token (BREV_API_TOKEN)"
NEW_KEY = "make a new key in the settings of the Brev console, and save it in the block (BREV_API_TOKEN)"
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
# As words of their own: names of instances are full of such numbers.
_REFUSED = re.compile(r"\b401\b|\bunauthorized\b|\b(key|token|session|login)\b[^\n]{0,20}\bexpired\b", re.IGNORECASE)
_refreshing = threading.Lock()


class BrevAnswer(NamedTuple):
    """How the command ended, and its two streams."""

    code: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """The last line in which it says what went wrong."""
        lines = [line.strip() for line in f"{self.out}\n{self.err}".splitlines() if line.strip()]
        return lines[-1] if lines else f"it ended with {self.code} and no word"


@dataclass(frozen=True)
class RentedMachine:
    """A row of `brev ls`. Its status may lie both ways about whether it can be used."""

    name: str
    id: str
    status: str
    type: str
    gpu: str

    @property
    def runs(self) -> bool:
        """Whether a login may work; what is unhealthy by its own account often works."""
        return self.status in ("RUNNING", "UNHEALTHY")


@dataclass(frozen=True)
class TypeOffer:
    """A row of `brev search`."""

    type: str
    gpu_name: str
    gpu_count: int
    price: float
    disk: float


class BrevCommand:
    """One account. Methods block; they raise Unreachable, MissingDependency, InvalidInput."""

    def __init__(self, settings: BrevSettings) -> None:
        self.settings = settings
        self.token = ""

    # -- the account ---------------------------------------------------------------------------------------------------

    @property
    def home(self) -> Path:
        """Where the command keeps its state: with a token a place of its own, so that no other login is overwritten."""
        if not self.token:
            return Path(os.environ.get("HOME") or Path.home())
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return cache / "prefect-tao" / "brev" / hashlib.sha256(self.token.encode()).hexdigest()[:16]

    @property
    def organization(self) -> str:
        """The id of the organization whose instances `ls` lists; empty where only the token knows it."""
        if self.settings.org_id:
            return self.settings.org_id
        try:
            return str(json.loads((self.home / ".brev" / "active_org.json").read_bytes())["id"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def destination(self, name: str) -> Destination:
        """How ssh finds an instance: it looks in the home of the user database, and brev writes to $HOME."""
        own = self.home / ".ssh"
        is_usual = own == Path("~/.ssh").expanduser() == Path(_home_of_user()) / ".ssh"
        return Destination(name, folder=None if is_usual else str(own))

    def knows(self, name: str) -> bool:
        """Whether an alias of this name was written by the last refresh."""
        with suppress(OSError):
            return f"Host {name}" in (self.home / ".brev" / "ssh_config").read_text().splitlines()
        return False

    def _environment(self) -> dict[str, str]:
        given = {**os.environ, "NO_COLOR": "1", "HOME": str(self.home)}
        if not self.token:
            return given
        own = {"BREV_API_KEY": self.token} if self.token.startswith(API_KEY) else {}
        return {**{name: value for name, value in given.items() if name not in TOKENS}, **own}

    def _write_credentials(self, version: tuple[int, ...]) -> None:
        """A token that the environment does not carry goes into a file that only we can read."""
        if not self.token or (self.token.startswith(API_KEY) and version >= READS_KEY):
            return
        file, kept = self.home / ".brev" / "credentials.json", self._login()
        there = read_object(file.read_bytes()) if file.exists() else None
        # A token that the command renews is its own affair once it is there.
        is_renewed = kept.get("refresh_token") == self.token and bool(there and there.get("refresh_token"))
        if there != kept and not is_renewed:
            part = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
            part.touch(0o600)
            part.write_text(json.dumps(kept))
            part.replace(file)

    def _login(self) -> dict[str, str]:
        """What `brev login` would keep of the token: a key, a token that can be renewed, or one that cannot."""
        if self.token.startswith(API_KEY):
            if not self.settings.org_id:
                raise InvalidInput(
                    "an API key of Brev needs the id of its organization with this version of the brev command",
                    "set the block's organization id (BREV_ORG_ID), or update the command",
                )
            return {"api_key": self.token, "api_key_org_id": self.settings.org_id}
        if self.token.startswith(ACCESS) and self.token.count(".") == 2:  # as the console gives it out
            return {"access_token": self.token, "refresh_token": "auto-login"}
        return {"access_token": "auto-login", "refresh_token": self.token}

    # -- asking --------------------------------------------------------------------------------------------------------

    def run(self, *words: str, seconds: float = CALL_SECONDS) -> BrevAnswer:
        """What the command says, however it ends."""
        if self.token:
            (self.home / ".brev").mkdir(parents=True, exist_ok=True, mode=0o700)
            self.home.chmod(0o700)
        if words[0] != "--version":
            self._write_credentials(self.version)
        # Files, not pipes: an ssh process that it leaves behind would hold these open long after its own end.
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            child = self._started(words, out, err)
            try:
                child.wait(seconds)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):  # the ssh processes that it may have started too
                    os.killpg(child.pid, signal.SIGKILL)
                child.wait()
                cause = f"brev {words[0]} did not answer within {seconds:g} s"
                raise Unreachable(cause, "try again in a while") from None
            return BrevAnswer(child.returncode, _whole(out), _whole(err))

    def _started(self, words: Sequence[str], out: IO[bytes], err: IO[bytes]) -> subprocess.Popen[bytes]:
        try:
            return subprocess.Popen(
                [PROGRAM, *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=self._environment(),
                start_new_session=True,
            )
        except OSError as error:
            remedy = "install it as the documentation of NVIDIA Brev says, then run: brev login"
            is_missing = isinstance(error, FileNotFoundError)
            cause = "there is no brev command" if is_missing else f"the brev command cannot be run ({error.strerror})"
            raise MissingDependency(f"{cause} on this machine", remedy) from None

    @cached_property
    def version(self) -> tuple[int, ...]:
        """The command's version. Raises MissingDependency for one that cannot list instances as data."""
        said = self.run("--version", "--no-check-latest")
        found = _VERSION.search(said.out)
        if not found:
            raise Unreachable(f"the brev command does not say its version: {said.words}", "by hand: brev --version")
        numbers = tuple(map(int, found.groups()))
        if numbers < LISTS_AS_JSON:
            raise MissingDependency(
                f"the brev command on this machine is too old ({found[0]})",
                f"update it to v{'.'.join(map(str, LISTS_AS_JSON))} or newer, for example with: brev upgrade",
            )
        return numbers

    def ask(self, *words: str) -> str:
        """What the command prints where all is well. Raises Unreachable in its words."""
        said = self.run(*words)
        if said.code:
            raise self.unanswered(words[0], said)
        return said.out

    def unanswered(self, verb: str, said: BrevAnswer) -> Unreachable:
        """Why nothing was learned; a login that is missing or refused stays so until a person does something."""
        text = f"{said.out}\n{said.err}"
        if "logged out" in text or "declined to login" in text or "malformed refresh token" in text:
            return Unreachable("the brev command is not logged in", LOG_IN, retryable=False)
        if _REFUSED.search(text):
            remedy = NEW_KEY if self.token else "log in again: brev login"
            return Unreachable(
                f"Brev refuses the login, which is wrong or has expired: {said.words}", remedy, retryable=False
            )
        return Unreachable(f"brev {verb} failed: {said.words}", "try again in a while; by hand: brev ls")

    def instances(self) -> dict[str, RentedMachine]:
        """All instances that the login may see, by name, in one call."""
        text = self.ask("ls", "--json")
        try:
            told = json.loads(text)
            rows = told["workspaces"] if isinstance(told, dict) else told
            found = [_machine(row) for row in ([] if rows is None else rows) if row.get("name")]
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
        ):  # what cannot be read must never look like an account without machines
            remedy = "update the brev command, or prefect-tao; by hand: brev ls --json"
            raise Unreachable("brev ls printed no list that can be read", remedy) from None
        return {one.name: one for one in found}

    def offers(self) -> list[TypeOffer]:
        """What can be rented, and for how much an hour."""
        try:
            rows = json.loads(self.ask("search", "--json"))
            return [_offer(row) for row in rows if row.get("type")]
        except (ValueError, TypeError, AttributeError) as error:
            raise Unreachable(f"brev search printed what cannot be read: {error}", "update the brev command") from error

    def refresh(self) -> None:
        """Write keys and aliases of all instances that run; one at a time, because it rewrites whole files."""
        with _refreshing, self._alone():
            self.ask("refresh")
        with suppress(OSError):
            (self.home / ".brev" / "credentials.json").chmod(0o600)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        folder = self.home / ".brev"
        folder.mkdir(parents=True, exist_ok=True)
        with open(folder / "prefect-tao.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _whole(file: IO[bytes]) -> str:
    """All that was written to a file by somebody else."""
    file.seek(0)
    return file.read().decode(errors="replace")


def _home_of_user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_dir


def _machine(row: Mapping[str, Any]) -> RentedMachine:
    name, id, status, type, gpu = (str(row.get(key) or "") for key in ("name", "id", "status", "instance_type", "gpu"))
    return RentedMachine(name, id, status.upper(), type, gpu)


def _offer(row: Mapping[str, Any]) -> TypeOffer:
    price, disk = float(row.get("price_per_hour") or 0), float(row.get("disk_max_gb") or row.get("target_disk_gb") or 0)
    return TypeOffer(str(row["type"]), str(row.get("gpu_name") or ""), int(row.get("gpu_count") or 0), price, disk)
