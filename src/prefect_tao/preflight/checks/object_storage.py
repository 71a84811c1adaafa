"""What object storage answers before a launch: whether paths can be read, and whether results can be written.

Nothing stays behind: writing is tried with one small object that is deleted again. Values of credentials, the endpoint
among them, never get into a finding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from prefect_tao.jobs.errors import TaoError, Unreachable
from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.preflight.checks.credentials import is_set
from prefect_tao.storage.known_schemes import scheme_for
from prefect_tao.storage.objects import PROBE_NAME, Measured, NotThere, ObjectStore

P = ParamSpec("P")
T = TypeVar("T")

RESULTS_PREFIX = "results"
MAX_CALLS = 16


class StorageLooks:
    """Object storage as the supplied credentials see it. Its calls run in a few threads; they raise as those there."""

    def __init__(self, credentials: Mapping[str, str]) -> None:
        self._objects = ObjectStore(credentials)
        self._pool = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="storage-checks")

    async def __aenter__(self) -> StorageLooks:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def find(self, uri: str) -> str:
        """What is at `uri` and can be read: object or prefix."""
        return await self._call(self._objects.kind, uri)

    async def measure(self, uri: str, most: int) -> Measured:
        """How much is at `uri`, counted as far as `most` bytes."""
        return await self._call(self._objects.measure, uri, most)

    async def read(self, uri: str, limit: int) -> bytes:
        """The first `limit` bytes of an object."""
        return await self._call(self._objects.read, uri, limit)

    async def try_writing(self, uri: str) -> bool:
        """Put a small object below `uri` and delete it; false when it could be put but not deleted."""
        return await self._call(self._objects.try_writing, uri)

    async def _call(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, lambda: work(*args, **kwargs))


# -- findings ----------------------------------------------------------------------------------------------------------


def lacking(uri: str, credentials: Mapping[str, str]) -> str:
    """The names of the keys without which the storage of `uri` cannot be asked; nothing when all are there."""
    scheme = scheme_for(uri)
    return " and ".join(name for name in (scheme.keys if scheme else ()) if not is_set(credentials, name))


async def check_readable(store: StorageLooks, label: str, uri: str, *, optional: bool = False) -> Finding:
    """Whether what is at exactly `uri`, object or prefix, can be read."""
    try:
        kind = await store.find(uri)
    except NotThere as error:
        level = Level.WARN if optional else Level.FAIL
        return _failed(level, f"input {label}", f"{uri}: {error.cause}", error.remedy)
    except Unreachable as error:
        return _failed(Level.UNKNOWN, f"input {label}", f"{uri}: {error.cause}", error.remedy)
    except TaoError as error:
        return _failed(Level.FAIL, f"input {label}", f"{uri}: {error.cause}", error.remedy)
    return Finding(
        level=Level.OK, subject=f"input {label}", message=f"input {label}: {uri}", evidence=f"{kind} can be read"
    )


async def check_writable(store: StorageLooks, label: str, uri: str, shown: str) -> Finding:
    """Whether results can be written below `uri`, which is called `shown` in the finding."""
    try:
        deleted = await store.try_writing(uri)
    except TaoError as error:
        level = Level.UNKNOWN if isinstance(error, Unreachable) else Level.FAIL
        return _failed(level, f"results {label}", f"{shown}: {error.cause}", error.remedy)
    if not deleted:
        return _failed(
            Level.WARN,
            f"results {label}",
            f"{shown} can be written, but nothing can be deleted there; {PROBE_NAME} stays",
            f"delete {PROBE_NAME} there, or grant its deletion",
        )
    return Finding(level=Level.OK, subject=f"results {label}", message=f"results {label}: {shown} can be written")


def _failed(level: Level, subject: str, message: str, remedy: str) -> Finding:
    return Finding(level=level, subject=subject, message=f"{subject}: {message}", remedy=remedy)
