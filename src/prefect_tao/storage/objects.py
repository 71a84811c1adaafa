"""Object storage as the supplied credentials see it from here: what is there, how much, and what is in it.

A look is short and is not repeated: the caller can ask again. Values of credentials, the endpoint among them, never
get into an error. Everything here blocks; async callers use a thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import NamedTuple

from prefect_tao.jobs.errors import InvalidInput, MissingDependency, TaoError, Unreachable
from prefect_tao.runner.inside import stores
from prefect_tao.runner.inside.failures import Changed, Missing, StorageError
from prefect_tao.runner.inside.schemes import ALIASES, scheme_of
from prefect_tao.runner.inside.stores import Item, Scheme, Store
from prefect_tao.storage import known_schemes

MOST_OBJECTS = 100_000  # that are counted; to list more takes minutes
PROBE_NAME = ".prefect-tao-probe"
NOTHING = ("there is nothing at that path", "correct the path, or upload the data there")


class NotThere(InvalidInput):
    """There is nothing at the location."""


class Denied(InvalidInput):
    """Storage refuses these credentials, or what they are used for."""


class Measured(NamedTuple):
    """What lies at a location; not `whole` when the counting stopped before the end."""

    size: int
    objects: int
    whole: bool


class ObjectStore:
    """Looks into storage. The methods raise NotThere, Denied, Unreachable, InvalidInput, MissingDependency."""

    def __init__(self, credentials: Mapping[str, str] | None = None, quick: bool = True) -> None:
        self._credentials = credentials or {}
        self._quick = quick
        self._opening = threading.Lock()
        self._stores: dict[str, Store] = {}

    def store(self, uri: str) -> Store:
        """The connection for a location, opened when it is needed first."""
        name = scheme_of(uri)
        with self._opening:
            if name not in self._stores:
                self._stores[name] = connect(name, self._credentials, quick=self._quick)
            return self._stores[name]

    def kind(self, uri: str) -> str:
        """What is at `uri` and can be read: object or prefix."""
        bucket, key = split(uri)
        denied: Denied | None = None
        if key and not key.endswith("/"):
            try:
                self._head(uri)
                return "object"
            except NotThere:
                pass
            except Denied as error:  # also what storage says of a missing key to those who may not list
                denied = error
        below = self.items(uri, 1)
        if not below:
            raise denied or NotThere(*NOTHING)
        self._head(self.store(uri).uri(bucket, below[0].key))
        return "prefix"

    def exists(self, uri: str) -> bool:
        """Whether there is an object or a folder of them."""
        try:
            return bool(self.kind(uri))
        except NotThere:
            return False

    def items(self, uri: str, limit: int | None = None) -> list[Item]:
        """The first objects below `uri`."""
        bucket, key = split(uri)
        with typed(store := self.store(uri), "listing"):
            return store.items(bucket, folder_of(key), limit)

    def entries(self, uri: str) -> list[str]:
        """What is directly below `uri`, folders with a slash at the end; the location itself if it is an object."""
        bucket, key = split(uri)
        prefix, store, found = folder_of(key), self.store(uri), list[str]()
        with typed(store, "listing"):
            for items, folders in store.pages(bucket, prefix, "/"):
                found += [*folders, *(item.key for item in items)]
        if not found and (not key or key.endswith("/")):
            raise NotThere(*NOTHING)
        if not found:
            self._head(uri)
            return [uri]
        # What marks an empty folder is not an entry of it, and a folder without a name has no path.
        return sorted(store.uri(bucket, name) for name in found if name != prefix and not name.endswith("//"))

    def measure(self, uri: str, most: int) -> Measured:
        """How much is at `uri`; more than `most` bytes are not counted to the end."""
        bucket, key = split(uri)
        if self.kind(uri) == "object":
            return Measured(self._head(uri).size, 1, True)
        size = objects = 0
        with typed(store := self.store(uri), "listing"):
            for items, _ in store.pages(bucket, folder_of(key)):
                size += sum(item.size for item in items)
                objects += len(items)
                if size > most or objects > MOST_OBJECTS:
                    return Measured(size, objects, False)
        return Measured(size, objects, True)

    def read(self, uri: str, limit: int) -> bytes:
        """The first `limit` bytes of an object."""
        item = self._head(uri)
        with typed(store := self.store(uri), "reading"):
            return b"".join(store.read(item, 0, min(limit, item.size), "")[1])

    def write(self, uri: str, data: bytes) -> None:
        """Put a small object at `uri`."""
        with typed(store := self.store(uri), "writing"):
            store.put(*split(uri), data)

    def try_writing(self, uri: str) -> bool:
        """Put a small object below `uri` and delete it; false when it could be put but not deleted."""
        bucket, key = split(uri)
        store, name = self.store(uri), folder_of(key) + PROBE_NAME
        with typed(store, "writing"):
            version = store.put(bucket, name, b"")
        try:
            with typed(store, "deleting"):
                store.remove(bucket, name, version)
        except TaoError:
            return False
        return True

    def put_first(self, uri: str, data: bytes) -> bytes:
        """Put a small object unless there is one; what is there then. Storage that cannot tell that keeps nothing."""
        with typed(store := self.store(uri), "writing"):
            return store.claim(uri, data.decode()).encode() or data

    def remove(self, uri: str) -> None:
        """Delete an object."""
        with typed(store := self.store(uri), "deleting"):
            store.remove(*split(uri))

    def _head(self, uri: str) -> Item:
        with typed(store := self.store(uri), "reading"):
            return store.head(*split(uri))


def connect(name: str, credentials: Mapping[str, str] | None = None, *, quick: bool = False) -> Store:
    """A connection to a scheme's storage with these credentials, else with those around us.

    Raises MissingDependency, InvalidInput.
    """
    scheme = known_schemes.find(name)
    if scheme is None or not scheme.is_seen:
        raise InvalidInput(f"{name}:// locations cannot be looked into from here", "give a path, or an s3:// location")
    if scheme.package:
        try:
            import_module(scheme.package)
        except ModuleNotFoundError as error:
            cause = f"looking into {scheme.title} needs the package {error.name}"
            raise MissingDependency(cause, f"pip install 'prefect-tao[{scheme.extra}]'") from None
    environment = _environment(scheme, credentials or {})
    missing = [name for name in scheme.keys if not (environment.get(ALIASES.get(name, name)) or environment.get(name))]
    if 0 < len(missing) < len(scheme.keys):
        wanted = " and ".join(scheme.keys)
        raise InvalidInput(f"{missing[0]} is not set, and {scheme.title} needs {wanted}", f"set {missing[0]} too")
    try:
        made = scheme.connect(environment, lambda text: None, quick)
    except StorageError as error:
        raise _answered(scheme, error) from None
    assert isinstance(made, Store)  # noqa: S101 - only what tools fetch is not, and nothing can look into that
    return made


def _environment(scheme: Scheme, credentials: Mapping[str, str]) -> dict[str, str]:
    """What is supplied wins over what is around us, where secret and token belong to another key."""
    given = {ALIASES[name]: text.strip() for name, text in credentials.items() if name in ALIASES and text.strip()}
    supplied = any(credentials.get(name, "").strip() for name in scheme.keys[:1])
    around = {name: text for name, text in os.environ.items() if not supplied or name not in scheme.belonging}
    return {**around, **credentials, **given}


def split(uri: str) -> tuple[str, str]:
    """Bucket and key. Raises InvalidInput when `uri` names no bucket."""
    bucket, key = stores.split(uri)
    if not bucket:
        raise InvalidInput(f"{uri} names no bucket", f"write {scheme_of(uri)}://<bucket>/<path>")
    return bucket, key


def folder_of(key: str) -> str:
    return f"{key.rstrip('/')}/" if key else ""


@contextmanager
def typed(store: Store, what: str) -> Iterator[None]:
    """The errors of storage as ours; `what` was being done."""
    scheme = known_schemes.find(store.scheme)
    assert scheme is not None  # noqa: S101 - it has opened the store
    try:
        yield
    except TaoError:
        raise
    except Changed:
        raise Unreachable("an object changed while it was being read", "ask again") from None
    except StorageError as error:
        raise _answered(scheme, error) from None
    except Exception as error:
        raise _answered(scheme, store.explained(what, error)) from None


def _answered(scheme: Scheme, error: StorageError) -> TaoError:
    """Storage's own words are left out where it was storage that spoke: they can repeat the endpoint or a key."""
    code = error.code
    if isinstance(error, Missing):
        return NotThere(*NOTHING)
    if code == "NoSuchBucket":
        return NotThere("the bucket does not exist", error.remedy)
    if code == "ParamValidationError":
        form = f"write {scheme.name}://<bucket>/<path>"
        return InvalidInput("the bucket or the path is not a valid name", form)
    if not code:  # the disk, or something that we found ourselves
        kind = InvalidInput if error.final else Unreachable
        return kind(error.cause, error.remedy or "try again in a while")
    names = ", ".join((*scheme.settings[:2], *scheme.keys)) or "the address"
    if error.final:
        return Denied(f"storage refused {error.what} ({code})", error.remedy or f"check {names}")
    network = f"check {', '.join(scheme.settings[:2]) or 'the address'} and the network from here"
    return Unreachable(f"{error.what}: object storage did not answer ({code})", error.remedy or network)
