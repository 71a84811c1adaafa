"""S3 as the supplied credentials see it from here: what is there, how much, and what stands in it.

A look is short and is not repeated: the caller can ask again. Values of credentials, the endpoint among them, never
get into an error. Everything here blocks; async callers use a thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

from prefect_tao.jobs.errors import InvalidInput, MissingDependency, TaoError, Unreachable
from prefect_tao.runner.inside.s3 import ways
from prefect_tao.runner.inside.s3.boto import BotoStore
from prefect_tao.runner.inside.s3.errors import REMEDIES, Changed, Missing, StorageError, explained

LOOK_SECONDS = {"connect_seconds": 5, "read_seconds": 15}
MOST_OBJECTS = 100_000  # that are counted; to list more takes minutes
NAMES = {
    "ACCESS_KEY": "AWS_ACCESS_KEY_ID",
    "SECRET_KEY": "AWS_SECRET_ACCESS_KEY",
    "S3_ENDPOINT_URL": "AWS_ENDPOINT_URL",
    "CLOUD_REGION": "AWS_REGION",
}
KEYS = ("ACCESS_KEY", "SECRET_KEY")
NOTHING = ("there is nothing at that path", "correct the path, or upload the data there")


class NotThere(InvalidInput):
    """There is nothing at the location."""


class Denied(InvalidInput):
    """Storage refuses these credentials, or what they are used for."""


class Measured(NamedTuple):
    """What lies at a location; not `whole` when the counting was ended before the end."""

    size: int
    objects: int
    whole: bool


class ObjectStore:
    """Looks into S3. The methods raise NotThere, Denied, Unreachable, InvalidInput, MissingDependency."""

    def __init__(self, credentials: Mapping[str, str] | None = None) -> None:
        self._credentials = credentials
        self._opening = threading.Lock()
        self._way: BotoStore | None = None

    @property
    def way(self) -> BotoStore:
        """The connection, opened when it is needed first."""
        with self._opening:
            if self._way is None:
                self._way = open_way(self._credentials, **LOOK_SECONDS)
            return self._way

    def kind(self, uri: str) -> str:
        """What is at `uri` and can be read: object or prefix."""
        bucket, key = split(uri)
        denied: Denied | None = None
        if key and not key.endswith("/"):
            try:
                self._head(bucket, key)
                return "object"
            except NotThere:
                pass
            except Denied as error:  # also what storage says of a missing key to those who may not list
                denied = error
        with typed("listing"):
            below = self.way.items(bucket, _folder(key), 1)
        if not below:
            raise denied or NotThere(*NOTHING)
        self._head(bucket, below[0].key)
        return "prefix"

    def exists(self, uri: str) -> bool:
        """Whether there is an object or a folder of them."""
        try:
            return bool(self.kind(uri))
        except NotThere:
            return False

    def entries(self, uri: str) -> list[str]:
        """What is directly below `uri`, folders with a slash at the end; the location itself if it is an object."""
        bucket, key = split(uri)
        found: list[str] = []
        for page in self._pages(bucket, _folder(key), Delimiter="/"):
            found += [one["Prefix"] for one in page.get("CommonPrefixes", ())]
            found += [one["Key"] for one in page.get("Contents", ())]
        if not found and (not key or key.endswith("/")):
            raise NotThere(*NOTHING)
        if not found:
            self._head(bucket, key)
            return [uri]
        # What marks an empty folder is not an entry of it, and a folder without a name has no path.
        return sorted(f"s3://{bucket}/{name}" for name in found if name != _folder(key) and not name.endswith("//"))

    def measure(self, uri: str, most: int) -> Measured:
        """How much is at `uri`; more than `most` bytes are not counted to the end."""
        bucket, key = split(uri)
        if self.kind(uri) == "object":
            return Measured(self._head(bucket, key).size, 1, True)
        size = objects = 0
        for page in self._pages(bucket, _folder(key)):
            size += sum(one["Size"] for one in page.get("Contents", ()))
            objects += page.get("KeyCount", 0)
            if size > most or objects > MOST_OBJECTS:
                return Measured(size, objects, False)
        return Measured(size, objects, True)

    def read(self, uri: str, limit: int) -> bytes:
        """The first `limit` bytes of an object."""
        bucket, key = split(uri)
        item = self._head(bucket, key)
        with typed("reading"):
            return b"".join(self.way.read(item, 0, min(limit, item.size), "")[1])

    def _head(self, bucket: str, key: str) -> ways.Item:
        with typed("reading"):
            return self.way.head(bucket, key)

    def _pages(self, bucket: str, prefix: str, **words: str) -> Iterator[dict[str, Any]]:
        with typed("listing"):
            pages = self.way.client.get_paginator("list_objects_v2")
            yield from pages.paginate(Bucket=bucket, Prefix=prefix, **words)


def open_way(credentials: Mapping[str, str] | None = None, **patience: int) -> BotoStore:
    """S3 with these credentials (ACCESS_KEY, SECRET_KEY, S3_ENDPOINT_URL, CLOUD_REGION), else those around us.

    Raises MissingDependency, InvalidInput.
    """
    try:
        boto3 = import_module("boto3")
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"looking into S3 needs the package {error.name}", "pip install 'prefect-tao[aws]'"
        ) from None
    environment = _environment(credentials or {})
    missing = [name for name in KEYS if not (environment.get(NAMES[name]) or environment.get(name))]
    if len(missing) == 1:
        raise InvalidInput(f"{missing[0]} is not set, and S3 needs {' and '.join(KEYS)}", f"set {missing[0]} too")
    try:
        return BotoStore(boto3, environment, **patience)
    except StorageError:
        raise InvalidInput(
            "S3_ENDPOINT_URL or CLOUD_REGION is not one that can be called",
            "write the endpoint as https://<host>, and the region as in us-east-1",
        ) from None


def _environment(credentials: Mapping[str, str]) -> dict[str, str]:
    """What is supplied wins over what is around us, where secret and token belong to another key."""
    given = {theirs: credentials[ours].strip() for ours, theirs in NAMES.items() if credentials.get(ours, "").strip()}
    around = dict(os.environ)
    if NAMES["ACCESS_KEY"] in given:
        for name in (NAMES["SECRET_KEY"], "AWS_SESSION_TOKEN"):
            around.pop(name, None)
    return {**around, **credentials, **given}


def split(uri: str) -> tuple[str, str]:
    """Bucket and key. Raises InvalidInput when `uri` names no bucket."""
    bucket, key = ways.split(uri) if uri.startswith("s3://") else ("", "")
    if not bucket:
        raise InvalidInput(f"{uri} names no bucket", "write s3://<bucket>/<path>")
    return bucket, key


def _folder(key: str) -> str:
    return f"{key.rstrip('/')}/" if key else ""


@contextmanager
def typed(what: str) -> Iterator[None]:
    """The errors of storage as ours; `what` was being done."""
    try:
        yield
    except TaoError:
        raise
    except Changed:
        raise Unreachable("an object changed while it was being read", "ask again") from None
    except StorageError as error:
        raise _answered(error) from None
    except Exception as error:
        errors = import_module("botocore.exceptions")  # not before: it may be missing, which is told when S3 is opened
        if not isinstance(error, (errors.ClientError, errors.BotoCoreError)):
            raise
        raise _answered(explained(what, error)) from None


def _answered(error: StorageError) -> TaoError:
    """Storage's own words are left out where it was storage that spoke: they can repeat the endpoint or a key."""
    code = error.code
    if isinstance(error, Missing) or code in ("404", "NoSuchKey"):
        return NotThere(*NOTHING)
    if code == "NoSuchBucket":
        return NotThere("the bucket does not exist", REMEDIES[code])
    if code == "ParamValidationError":
        return InvalidInput("the bucket or the path is not a valid name", "write s3://<bucket>/<path>")
    if not code:  # the disk, or something that we found ourselves
        cause, _, remedy = str(error).rpartition("; ")
        kind = InvalidInput if error.final else Unreachable
        return kind(cause or remedy, remedy if cause else "try again in a while")
    if error.final:
        keys = "check CLOUD_REGION, S3_ENDPOINT_URL, ACCESS_KEY and SECRET_KEY"
        return Denied(f"storage refused {error.what} ({code})", REMEDIES.get(code, keys))
    network = "check S3_ENDPOINT_URL, CLOUD_REGION and the network from here"
    return Unreachable(f"{error.what}: object storage did not answer ({code})", REMEDIES.get(code, network))
