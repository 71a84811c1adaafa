"""The files of the machine that the engine runs on: here, over ssh, or through a helper container."""

from __future__ import annotations

import os
import posixpath
import shlex
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from fnmatch import fnmatch
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from prefect_tao.jobs.errors import InvalidInput, TaoError, Unreachable
from prefect_tao.jobs.locations import nearest
from prefect_tao.jobs.objects import NotThere, ObjectStore, split, typed
from prefect_tao.platforms.docker import helper
from prefect_tao.platforms.docker.client import NOT_FOUND, Engine, Refused
from prefect_tao.platforms.docker.render import VOLUME_SCHEME, bind, volume
from prefect_tao.platforms.docker.ssh import LOST, Login, lost
from prefect_tao.runner.inside.schemes import LOCAL_SCHEMES

T = TypeVar("T")
LOOK = "/look"
TOOLKIT = "nvidia-ctk --version 2>/dev/null || nvidia-container-cli --version"
NO_FOLDER = 3
LISTED = (0, 1)  # what ls ends with; 1 where a link among the entries leads nowhere
MOST_LISTED = 1000
STATUS = ("*/status.json", "*/*/status.json")


class User(NamedTuple):
    """Who owns what a job writes."""

    user: str
    groups: tuple[str, ...] = ()


class StatusFile(NamedTuple):
    """The newest status file of a job; the mark changes when it does."""

    mark: str
    path: str


class Host(ABC):
    """Files by absolute path. Everything raises Unreachable when the host does not answer.

    Status files are not asked for more often than every `progress_seconds`.
    """

    progress_seconds = 0.0

    @abstractmethod
    def exists(self, path: str) -> bool:
        """Whether there is something at `path`."""

    @abstractmethod
    def entries(self, path: str) -> list[str]:
        """The names in a folder, folders with a slash at the end. Raises InvalidInput when there is none."""

    @abstractmethod
    def read(self, path: str, limit: int) -> bytes | None:
        """The first `limit` bytes of a file; None when there is no such file."""

    @abstractmethod
    def free(self, path: str) -> int | None:
        """Free bytes where `path` is or will be; None when nobody can tell."""

    def names(self, folders: Sequence[str]) -> dict[str, list[str]]:
        """The names in each of some small folders that are there; left out is what positively is not there.

        Raises Unreachable, InvalidInput and MissingDependency when nobody can tell.
        """
        found = {}
        for folder in folders:
            with suppress(NotThere):
                found[folder] = [posixpath.basename(entry.rstrip("/")) for entry in self.entries(folder)]
        return found

    def writable(self, path: str) -> bool | None:
        """Whether the user may write there, found out without writing; None when nobody can tell."""
        return None

    def make(self, path: str) -> None:  # noqa: B027 - not everybody can
        """Make the results folder, as the user. Where nobody can, the engine says that it is missing."""

    def user(self) -> User | None:
        """Who jobs that write to the host run as; None when nobody can tell."""
        return None

    def run(self, command: str) -> str | None:
        """What a shell command there prints; None when it fails or cannot be run."""
        return None

    def toolkit(self) -> str:
        """The version of NVIDIA's container toolkit in its own words; empty when it is not there."""
        return self.run(TOOLKIT) or ""

    def statuses(self, folders: Sequence[str]) -> dict[str, StatusFile]:
        """The newest status file of each results folder that has one."""
        return {}


class LocalHost(Host):
    """This machine."""

    def exists(self, path: str) -> bool:
        return _answered(path, lambda: Path(path).exists())

    def entries(self, path: str) -> list[str]:
        return _answered(path, lambda: _local_entries(path))

    def read(self, path: str, limit: int) -> bytes | None:
        return _answered(path, lambda: _local_read(path, limit))

    def free(self, path: str) -> int | None:
        return shutil.disk_usage(nearest(Path(path))).free

    def writable(self, path: str) -> bool | None:
        there = nearest(Path(path))
        return there.is_dir() and os.access(there, os.W_OK | os.X_OK)

    def make(self, path: str) -> None:
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"{path} cannot be made: {error.strerror}", "choose another results folder") from error

    def user(self) -> User | None:
        groups = tuple(str(group) for group in sorted(set(os.getgroups()) - {os.getgid()}))
        return User(f"{os.getuid()}:{os.getgid()}", groups)

    def run(self, command: str) -> str | None:
        try:
            done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 else None

    def statuses(self, folders: Sequence[str]) -> dict[str, StatusFile]:
        found = {}
        for folder in folders:
            newest: tuple[int, int, str] | None = None
            for path in (path for pattern in STATUS for path in Path(folder).glob(pattern)):
                try:
                    facts = path.stat()
                except OSError:  # deleted under our eyes
                    continue
                newest = max(newest or (0, 0, ""), (facts.st_mtime_ns, facts.st_size, str(path)))
            if newest:
                found[folder] = StatusFile(f"{newest[0]} {newest[1]}", newest[2])
        return found


def _answered(path: str, look: Callable[[], T]) -> T:
    try:
        return look()
    except OSError as error:
        raise Unreachable(f"{path} cannot be read: {error.strerror}", "check its permissions") from error


def _local_entries(path: str) -> list[str]:
    folder = Path(path)
    if not folder.exists():
        raise _missing(path)
    inside = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    return [f"{entry}/" if entry.is_dir() else str(entry) for entry in inside]


def _local_read(path: str, limit: int) -> bytes | None:
    if not Path(path).is_file():
        return None
    with open(path, "rb") as file:
        return file.read(limit)


class SshHost(Host):
    """Another machine that the user can log in to."""

    progress_seconds = 5.0

    def __init__(self, login: Login) -> None:
        self.login = login

    def _try(self, command: str) -> tuple[int, bytes]:
        done = self.login.attempt(command)
        if done.returncode == LOST:
            raise lost(self.login.destination, done.stderr.decode(errors="replace"))
        return done.returncode, done.stdout

    def exists(self, path: str) -> bool:
        return self._try(f"test -e {shlex.quote(path)}")[0] == 0

    def entries(self, path: str) -> list[str]:
        quoted = shlex.quote(path)
        code, out = self._try(f"test -d {quoted} || exit {NO_FOLDER}; ls -1ALp {quoted}")
        if code == NO_FOLDER and self.exists(path):
            return [path]
        if code == NO_FOLDER:
            raise _missing(path)
        if code not in LISTED:
            raise Unreachable(f"{path} cannot be listed on {self.login.destination}", "check its permissions")
        return [posixpath.join(path, name) for name in out.decode(errors="surrogateescape").splitlines()]

    def names(self, folders: Sequence[str]) -> dict[str, list[str]]:
        """All of them in one go. What is in a folder that may not be entered is not known to be missing."""
        look = "; ".join(
            f"echo {number}/; LC_ALL=C ls -1A {shlex.quote(folder)} 2>&1" for number, folder in enumerate(folders)
        )
        found: dict[str, list[str]] = {}
        for line in self._try(look)[1].decode(errors="surrogateescape").splitlines():
            if line.endswith("/"):
                folder = folders[int(line[:-1])]
                found[folder] = []
            elif line.startswith("ls: "):
                if "No such file" not in line and "Not a directory" not in line:
                    raise Unreachable(f"{folder} cannot be listed: {line}", "check its permissions")
                found.pop(folder)
            else:
                found[folder].append(line)
        return found

    def read(self, path: str, limit: int) -> bytes | None:
        quoted = shlex.quote(path)
        code, out = self._try(f"test -f {quoted} && head -c {limit} {quoted}")
        return out if code == 0 else None

    def free(self, path: str) -> int | None:
        return _free(self.run(_upwards(path, "df -Pk")))

    def writable(self, path: str) -> bool | None:
        return self._try(_upwards(path, "test -d %s && test -w %s && test -x"))[0] == 0

    def make(self, path: str) -> None:
        self.login.run(f"mkdir -p {shlex.quote(path)}")

    def user(self) -> User | None:
        uid, gid, groups = self.login.run("id -u; id -g; id -G").decode().splitlines()
        return User(f"{uid}:{gid}", tuple(group for group in groups.split() if group != gid))

    def run(self, command: str) -> str | None:
        code, out = self._try(command)
        return out.decode(errors="replace") if code == 0 else None

    def statuses(self, folders: Sequence[str]) -> dict[str, StatusFile]:
        return _newest(self.run(_look_for_status(folders)), folders)


def _look_for_status(folders: Sequence[str]) -> str:
    """A command that prints the number of each folder, and the newest status file in it."""
    look = "; ".join(
        f"cd {shlex.quote(folder)} 2>/dev/null && echo {number} "
        f"$(stat -Lc '%Y_%s %n' {' '.join(STATUS)} 2>/dev/null | sort -n | tail -n 1)"
        for number, folder in enumerate(folders)
    )
    return f"{look}; true"


def _newest(told: str | None, folders: Sequence[str]) -> dict[str, StatusFile]:
    """What such a command has found."""
    found = {}
    for line in (told or "").splitlines():
        number, _, rest = line.partition(" ")
        mark, _, name = rest.partition(" ")
        if name:
            folder = folders[int(number)]
            found[folder] = StatusFile(mark, posixpath.join(folder, name))
    return found


def _upwards(path: str, command: str) -> str:
    """A command about the nearest folder of `path` that is there."""
    told = command.replace("%s", '"$p"')
    return f'p={shlex.quote(path)}; while [ ! -e "$p" ]; do p=$(dirname "$p"); done; {told} "$p"'


def _free(told: str | None) -> int | None:
    try:
        return int((told or "").splitlines()[-1].split()[3]) * 1024
    except (IndexError, ValueError):
        return None


class HelperHost(Host):
    """The engine's host through containers that mount what is asked for, read-only; also the engine's volumes."""

    progress_seconds = 30.0

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def exists(self, path: str) -> bool:
        with self._mounting(path) as (look, inside):
            return bool(look) and (inside == LOOK or self.engine.has(look, inside))

    @contextmanager
    def _mounting(self, path: str) -> Iterator[tuple[str, str]]:
        """A helper that mounts what holds `path`, and where that is in it; the id is empty when there is no such."""
        mount, inside = _mounted(path)
        if mount["Type"] == "volume" and not self._has_volume(mount["Source"]):
            yield "", inside
            return
        with ExitStack() as held:
            try:
                image = held.enter_context(helper.any_image(self.engine))
                look = held.enter_context(helper.made(self.engine, image, Mounts=[mount]))
            except Refused as error:
                if "does not exist" not in error.said:
                    raise _odd(path, error) from error
                look = ""
            yield look, inside

    def _has_volume(self, name: str) -> bool:
        """Whether there is such a volume; a look into it would make it."""
        try:
            self.engine.ask("GET", f"/volumes/{name}")
        except Refused as error:
            if error.status != NOT_FOUND:
                raise
            return False
        return True

    def names(self, folders: Sequence[str]) -> dict[str, list[str]]:
        """All folders that have one place two levels above in one helper."""
        found = {}
        for above, below in groupby(sorted(folders), key=lambda folder: folder.rsplit("/", 2)[0]):
            with self._mounting(above) as (look, inside):
                for folder in below if look else ():
                    if names := self.engine.names(look, inside + folder.removeprefix(above)):
                        found[folder] = names
        return found

    def entries(self, path: str) -> list[str]:
        mount, inside = _mounted(path)
        try:
            ran = self._ran(["ls", "-1ALp", inside], mount)
        except Refused as error:
            raise (_missing(path) if "does not exist" in error.said else _odd(path, error)) from error
        if ran.code and not self.exists(path):
            raise _missing(path)
        if ran.code not in LISTED:
            raise Unreachable(f"{path} cannot be listed on the engine's host", "look at it there")
        if ran.text.strip() == inside:
            return [path]
        return [f"{path.rstrip('/')}/{name}" for name in ran.text.splitlines()]

    def _ran(self, words: list[str], mount: dict[str, Any]) -> helper.Ran:
        """Run where it works: the smallest image may be one without core tools."""
        last: Refused | None = None
        for image in helper.images(self.engine)[:5]:
            try:
                return helper.run(self.engine, image, words, Mounts=[mount])
            except Refused as error:
                if "executable file not found" not in error.said and "no such file" not in error.said:
                    raise
                last = error
        if last:
            raise last
        raise InvalidInput(
            f"paths on {self.engine.shown} cannot be looked at, because no image is there",
            "pull the image of the job on that engine first",
        )

    def read(self, path: str, limit: int) -> bytes | None:
        with self._mounting(path) as (look, inside):
            return self.engine.get(look, inside, limit) if look else None

    def free(self, path: str) -> int | None:
        mount, inside = _mounted(path)
        try:
            return _free(self._ran(["df", "-Pk", inside], mount).text)
        except (Refused, TaoError):
            return None

    def statuses(self, folders: Sequence[str]) -> dict[str, StatusFile]:
        found: dict[str, StatusFile] = {}
        for above, group in groupby(sorted(folders), key=posixpath.dirname):
            below = list(group)
            mount, inside = _mounted(above)
            try:
                look = _look_for_status([inside + folder.removeprefix(above) for folder in below])
                found |= _newest(self._ran(["/bin/sh", "-c", look], mount).text, below)
            except (Refused, InvalidInput):
                continue
        return found

    def toolkit(self) -> str:
        try:
            ran = self._ran([f"{LOOK}/nvidia-ctk", "--version"], bind("/usr/bin", LOOK, read_only=True))
        except (Refused, TaoError):
            return ""
        return ran.text if ran.code == 0 else ""


class BucketHost(Host):
    """S3, asked from here with the keys that were supplied; paths are whole s3:// locations."""

    progress_seconds = 60.0  # so often do jobs put there what is new

    def __init__(self, credentials: Mapping[str, str] | None = None) -> None:
        self.objects = ObjectStore(credentials)

    def exists(self, path: str) -> bool:
        return self.objects.exists(path)

    def entries(self, path: str) -> list[str]:
        return self.objects.entries(path)

    def read(self, path: str, limit: int) -> bytes | None:
        try:
            return self.objects.read(path, limit)
        except NotThere:
            return None

    def free(self, path: str) -> int | None:
        return None

    def statuses(self, folders: Sequence[str]) -> dict[str, StatusFile]:
        """By one page of each listing: among the objects of a training that is enough."""
        found = {}
        for folder in folders:
            bucket, key = split(folder)
            with typed("listing"):
                items = self.objects.way.items(bucket, f"{key}/", MOST_LISTED)
            fit = [one for one in items if any(fnmatch(one.key.removeprefix(f"{key}/"), text) for text in STATUS)]
            if newest := max(fit, key=lambda one: one.modified, default=None):
                found[folder] = StatusFile(f"{newest.modified} {newest.size}", f"s3://{bucket}/{newest.key}")
        return found


def _mounted(path: str) -> tuple[dict[str, Any], str]:
    """The mount that shows `path`, and where it is then."""
    if not path.startswith(VOLUME_SCHEME):
        return bind(path, LOOK, read_only=True), LOOK
    name, _, rest = path.removeprefix(VOLUME_SCHEME).partition("/")
    return volume(name, LOOK, read_only=True), posixpath.join(LOOK, rest).rstrip("/")


def _missing(path: str) -> NotThere:
    return NotThere(f"{path} does not exist on the engine's host", "check the spelling of the path")


def _odd(path: str, error: Refused) -> Unreachable:
    return Unreachable(f"{path} could not be looked at: {error.said}", "look at it on the engine's host")


def clean(uri: str) -> str:
    """The path on the engine's host that `uri` means. Raises InvalidInput for a location elsewhere."""
    scheme, marker, rest = uri.partition("://")
    if uri.startswith(VOLUME_SCHEME):
        return uri.rstrip("/")
    if marker and scheme not in LOCAL_SCHEMES:
        raise InvalidInput(f"{uri} is not on the engine's host", "give a path or a file:// location")
    path = "/" + rest.lstrip("/") if marker else uri
    if not path.startswith("/"):
        raise InvalidInput(f"{uri} is not an absolute path", "give the whole path, as the engine's host has it")
    return posixpath.normpath(path)
