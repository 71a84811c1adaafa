"""Files where jobs run: on this machine, over ssh, or in S3. A platform with another way in adds its own kind."""

from __future__ import annotations

import os
import posixpath
import shlex
import shutil
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from secrets import token_hex
from typing import NamedTuple, Self, TypeVar

from prefect_tao.jobs.errors import InvalidInput, Unreachable
from prefect_tao.platforms import gpu_locks
from prefect_tao.platforms.fields import RemoteFields
from prefect_tao.platforms.ssh.connection import Connection
from prefect_tao.runner.inside.paths import is_below
from prefect_tao.storage.locations import nearest
from prefect_tao.storage.objects import NotThere, ObjectStore, split

T = TypeVar("T")
TOOLKIT = "nvidia-ctk --version 2>/dev/null || nvidia-container-cli --version"
NO_FOLDER = 3
LISTED = (0, 1)  # what ls ends with; 1 where a link among the entries leads nowhere
MOST_LISTED = 1000
MOST_NAMED = 200  # paths in one command
QUESTIONS = 10  # to storage at a time, which is what its client keeps connections for
STATUS = ("*/status.json", "*/*/status.json")


class User(NamedTuple):
    """Who owns what a job writes."""

    user: str
    groups: tuple[str, ...] = ()


class StatusFile(NamedTuple):
    """The newest status file of a job; the mark changes when it does."""

    mark: str
    path: str


class Files(ABC):
    """Files by absolute path. Everything raises Unreachable when what holds them does not answer.

    `where` names that in messages. Status files are not asked for more often than every `progress_seconds`. Where it
    `keeps_notes`, several sites can meet, and small files are put there before a job begins.
    """

    where = "there"
    keeps_notes = False
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
        """Free bytes where `path` is or will be; None when that is not known."""

    def names(self, folders: Sequence[str]) -> dict[str, list[str]]:
        """The names in each of some small folders that are there; left out is what positively is not there.

        Raises Unreachable, InvalidInput and MissingDependency when that is not known.
        """
        found = {}
        for folder in folders:
            with suppress(NotThere):
                found[folder] = [posixpath.basename(entry.rstrip("/")) for entry in self.entries(folder)]
        return found

    def within(self, folder: str, paths: Sequence[str]) -> list[str]:
        """Those of `paths` that are below `folder` wherever links lead; storage has no links. Raises Unreachable."""
        return list(paths)

    def writable(self, path: str) -> bool | None:
        """Whether the user may write there, found out without writing; None when that is not known."""
        return None

    def make(self, path: str) -> None:  # noqa: B027 - not all can
        """Make the results folder, as the user. Where that is not possible, the platform says that it is missing."""

    def put_first(self, path: str, data: bytes) -> bytes:
        """Write a small file, with its folders, unless there is one; what it holds then."""
        return data

    def read_all(self, paths: Sequence[str], limit: int) -> list[bytes | None]:
        """The first bytes of each of some small files."""
        return [self.read(path, limit) for path in paths]

    def remove(self, path: str) -> None:  # noqa: B027 - not all can
        """Remove such a file, if it is there."""

    def remove_below(self, folder: str, endings: Sequence[str]) -> None:
        """Remove the files below a folder whose names end so. Raises Unreachable where that is not possible."""
        kinds = " -o ".join(f"-name {shlex.quote('*' + ending)}" for ending in endings)
        if self.run(f"find {shlex.quote(folder)} -type f '(' {kinds} ')' -delete") is None:
            raise Unreachable(f"files below {folder} cannot be removed on {self.where}", "check its permissions")

    def share(self, path: str) -> bool:
        """Make a folder that everybody may write in, as /tmp is; False where that is not possible from here."""
        return False

    def user(self) -> User | None:
        """Who jobs that write to the host run as; None when that is not known."""
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

    def missing(self, path: str) -> NotThere:
        """The error for what is not there."""
        return NotThere(f"{path} does not exist on {self.where}", "check the spelling of the path")


class LocalFiles(Files):
    """Those of this machine."""

    keeps_notes = True

    def __init__(self, where: str = "this machine") -> None:
        self.where = where

    def exists(self, path: str) -> bool:
        return _answered(path, lambda: Path(path).exists())

    def entries(self, path: str) -> list[str]:
        return _answered(path, lambda: self._entries(path))

    def _entries(self, path: str) -> list[str]:
        folder = Path(path)
        if not folder.exists():
            raise self.missing(path)
        inside = sorted(folder.iterdir()) if folder.is_dir() else [folder]
        return [f"{entry}/" if entry.is_dir() else str(entry) for entry in inside]

    def read(self, path: str, limit: int) -> bytes | None:
        return _answered(path, lambda: _local_read(path, limit))

    def within(self, folder: str, paths: Sequence[str]) -> list[str]:
        root = os.path.realpath(folder)
        return [path for path in paths if is_below(os.path.realpath(path), root)]

    def free(self, path: str) -> int:
        return shutil.disk_usage(nearest(Path(path))).free

    def writable(self, path: str) -> bool | None:
        there = nearest(Path(path))
        return there.is_dir() and os.access(there, os.W_OK | os.X_OK)

    def make(self, path: str) -> None:
        try:
            Path(path).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"{path} cannot be made: {error.strerror}", "choose another results folder") from error

    def put_first(self, path: str, data: bytes) -> bytes:
        return _answered(path, lambda: _local_put_first(Path(path), data))

    def write(self, path: str, data: bytes) -> None:
        """Write a small file, with its folders, whole or not at all. Raises Unreachable."""
        _answered(path, lambda: _local_write(Path(path), data))

    def remove(self, path: str) -> None:
        _answered(path, lambda: Path(path).unlink(missing_ok=True))

    def share(self, path: str) -> bool:
        try:
            gpu_locks.prepare(path)
        except OSError:
            return False
        return True

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


def _local_put_first(path: Path, data: bytes) -> bytes:
    """Whole under another name first, then linked: a file that is there is never half of one."""
    if not path.parent.is_dir():
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        with suppress(PermissionError):  # another user made it, with these permissions
            path.parent.parent.chmod(0o1777)
        path.parent.mkdir(exist_ok=True)
        path.parent.chmod(0o755)
    own = path.with_name(f".{path.name}-{token_hex(4)}")
    own.write_bytes(data)
    own.chmod(0o644)
    try:
        os.link(own, path)
    except FileExistsError:
        return path.read_bytes()
    finally:
        own.unlink()
    return data


def _local_write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    own = path.with_name(f".{path.name}-{token_hex(4)}")
    own.write_bytes(data)
    own.replace(path)


def _local_read(path: str, limit: int) -> bytes | None:
    if not Path(path).is_file():
        return None
    with open(path, "rb") as file:
        return file.read(limit)


class SshFiles(Files):
    """Those of another machine. `shell` runs a command there: its exit code and output, or Unreachable."""

    progress_seconds = 5.0
    keeps_notes = True

    def __init__(self, there: Connection) -> None:
        self.there = there
        self.where = there.destination.host

    def _try(self, command: str) -> tuple[int, bytes]:
        answer = self.there.run(command)
        return answer.code, answer.stdout

    def exists(self, path: str) -> bool:
        return self._try(f"test -e {shlex.quote(path)}")[0] == 0

    def entries(self, path: str) -> list[str]:
        quoted = shlex.quote(path)
        code, out = self._try(f"test -d {quoted} || exit {NO_FOLDER}; ls -1ALp {quoted}")
        if code == NO_FOLDER and self.exists(path):
            return [path]
        if code == NO_FOLDER:
            raise self.missing(path)
        if code not in LISTED:
            raise Unreachable(f"{path} cannot be listed on {self.where}", "check its permissions")
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

    def within(self, folder: str, paths: Sequence[str]) -> list[str]:
        return really_below(self.where, folder, paths, lambda command: self.run(command) or "")

    def free(self, path: str) -> int | None:
        return free_bytes(self.run(_upwards(path, "df -Pk")))

    def writable(self, path: str) -> bool | None:
        return self._try(_upwards(path, "test -d %s && test -w %s && test -x"))[0] == 0

    def make(self, path: str) -> None:
        code, out = self._try(f"mkdir -p {shlex.quote(path)} 2>&1")
        if code:
            said = out.decode(errors="replace").strip()
            raise InvalidInput(f"{path} cannot be made on {self.where}: {said}", "choose another results folder")

    def put_first(self, path: str, data: bytes) -> bytes:
        shared, folder = (shlex.quote(str(above)) for above in (Path(path).parent.parent, Path(path).parent))
        quoted, own = shlex.quote(path), shlex.quote(f"{path}.{token_hex(4)}")
        code, out = self._try(
            f"test -d {folder} || {{ mkdir -p {shared}; chmod 1777 {shared} 2>/dev/null; mkdir -p -m 755 {folder}; }}; "
            "umask 022; "
            f"printf %s {shlex.quote(data.decode())} >{own} && ln {own} {quoted} 2>/dev/null; rm -f {own}; cat {quoted}"
        )
        if code:
            raise Unreachable(f"{path} cannot be written on {self.where}", "check its permissions")
        return out

    def remove(self, path: str) -> None:
        self._try(f"rm -f {shlex.quote(path)}")

    def share(self, path: str) -> bool:
        quoted = shlex.quote(path)
        return self._try(f"mkdir -p {quoted}; chmod 1777 {quoted} 2>/dev/null; test -d {quoted}")[0] == 0

    def user(self) -> User | None:
        uid, gid, groups = self._try("id -u; id -g; id -G")[1].decode().splitlines()
        return User(f"{uid}:{gid}", tuple(group for group in groups.split() if group != gid))

    def run(self, command: str) -> str | None:
        code, out = self._try(command)
        return out.decode(errors="replace") if code == 0 else None

    def statuses(self, folders: Sequence[str]) -> dict[str, StatusFile]:
        return newest_status(self.run(look_for_status(folders)), folders)


def really_below(where: str, folder: str, paths: Sequence[str], run: Callable[[str], str]) -> list[str]:
    """Those of `paths` that are below `folder` when links are followed, as `readlink` says; `run` runs a command."""
    found = []
    for some in (paths[start : start + MOST_NAMED] for start in range(0, len(paths), MOST_NAMED)):
        names = " ".join(shlex.quote(path) for path in (folder, *some))
        root, *real = run(f'for p in {names}; do readlink -f "$p" || echo; done').split("\n")[:-1] or [""]
        if not root:
            raise Unreachable(f"where links below {folder} lead cannot be seen on {where}", "look at it there")
        if len(real) == len(some):  # else a name has two lines, and nothing is sure
            found += [path for path, leads in zip(some, real, strict=True) if is_below(leads, root)]
    return found


def look_for_status(folders: Sequence[str]) -> str:
    """A command that prints the number of each folder, and the newest status file in it."""
    look = "; ".join(
        f"cd {shlex.quote(folder)} 2>/dev/null && echo {number} "
        f"$(stat -Lc '%Y_%s %n' {' '.join(STATUS)} 2>/dev/null | sort -n | tail -n 1)"
        for number, folder in enumerate(folders)
    )
    return f"{look}; true"


def newest_status(told: str | None, folders: Sequence[str]) -> dict[str, StatusFile]:
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


def free_bytes(told: str | None) -> int | None:
    """What df printed, in bytes; None when it printed something else."""
    try:
        return int((told or "").splitlines()[-1].split()[3]) * 1024
    except (IndexError, ValueError):
        return None


class BucketFiles(Files):
    """Object storage, asked from here with the keys that were supplied; paths are whole locations."""

    progress_seconds = 60.0  # so often do jobs put there what is new
    keeps_notes = True

    def __init__(self, credentials: Mapping[str, str] | None = None) -> None:
        self.objects = ObjectStore(credentials)

    @classmethod
    def named_by(cls, settings: RemoteFields, credentials: Mapping[str, str]) -> Self:
        """The store that a block names; what credentials say of it counts more."""
        own = {"S3_ENDPOINT_URL": settings.s3_endpoint_url, "CLOUD_REGION": settings.cloud_region}
        return cls({**{name: value for name, value in own.items() if value}, **credentials})

    def exists(self, path: str) -> bool:
        return self.objects.exists(path)

    def entries(self, path: str) -> list[str]:
        return self.objects.entries(path)

    def read(self, path: str, limit: int) -> bytes | None:
        try:
            return self.objects.read(path, limit)
        except NotThere:
            return None

    def names(self, folders: Sequence[str]) -> dict[str, list[str]]:
        found = self._at_once(lambda folder: super(BucketFiles, self).names([folder]), folders)
        return {folder: names for one in found for folder, names in one.items()}

    def read_all(self, paths: Sequence[str], limit: int) -> list[bytes | None]:
        return self._at_once(lambda path: self.read(path, limit), paths)

    @staticmethod
    def _at_once(question: Callable[[str], T], places: Sequence[str]) -> list[T]:
        """Each is a question of its own, and the points of a sweep are many."""
        if len(places) < 2:
            return [question(place) for place in places]
        with ThreadPoolExecutor(min(QUESTIONS, len(places))) as pool:
            return list(pool.map(question, places))

    def put_first(self, path: str, data: bytes) -> bytes:
        return self.objects.put_first(path, data)

    def remove(self, path: str) -> None:
        self.objects.remove(path)

    def remove_below(self, folder: str, endings: Sequence[str]) -> None:
        store = self.objects.store(folder)
        for one in self.objects.items(folder):
            if one.key.endswith(tuple(endings)):
                self.objects.remove(store.uri(one.bucket, one.key))

    def write(self, path: str, data: bytes) -> None:
        """Put a small object there. Raises as reading does, and Denied."""
        self.objects.write(path, data)

    def free(self, path: str) -> int | None:
        return None

    def statuses(self, folders: Sequence[str]) -> dict[str, StatusFile]:
        """By one page of each listing: among the objects of a training that is enough."""
        found = {}
        for folder in folders:
            key = split(folder)[1]
            items = self.objects.items(folder, MOST_LISTED)
            fit = [one for one in items if any(fnmatch(one.key.removeprefix(f"{key}/"), text) for text in STATUS)]
            if newest := max(fit, key=lambda one: one.modified, default=None):
                uri = self.objects.store(folder).uri(newest.bucket, newest.key)
                found[folder] = StatusFile(f"{newest.modified} {newest.size}", uri)
        return found
