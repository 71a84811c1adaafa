"""What object storage answers before a launch: whether paths can be read, and whether results can be written.

Nothing stays behind: writing is tried with one small object that is deleted again. Values of credentials, the endpoint
among them, never get into a finding.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from prefect_tao.jobs.errors import InvalidInput, MissingDependency, TaoError, Unreachable
from prefect_tao.jobs.finding import Finding, Level
from prefect_tao.preflight.credentials import S3_KEYS, is_set

T = TypeVar("T")

PROBE_NAME = ".prefect-tao-probe"
RESULTS_PREFIX = "results"
DEFAULT_REGION = "us-east-1"
CONNECT_SECONDS = 5
READ_SECONDS = 15
MAX_CALLS = 16
KEY_REMEDY = "check ACCESS_KEY and SECRET_KEY, and that their owner may {verb} there"


class Location(NamedTuple):
    """A bucket and a key in it; the empty key is the whole bucket."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, uri: str) -> Location:
        """Raises InvalidInput when `uri` names no bucket."""
        bucket, _, key = uri.removeprefix("s3://").partition("/")
        if not uri.startswith("s3://") or not bucket:
            raise InvalidInput(f"{uri} names no bucket", "write s3://<bucket>/<path>")
        return cls(bucket, key)


class NotThere(TaoError):
    """Storage says that there is nothing."""


class Denied(TaoError):
    """Storage says that these credentials may not."""


class Store:
    """Object storage as the supplied credentials see it. Its calls run in a few threads of their own."""

    def __init__(self, credentials: Mapping[str, str]) -> None:
        self._credentials = credentials
        self._pool = ThreadPoolExecutor(MAX_CALLS, thread_name_prefix="s3-checks")
        self._opening = asyncio.Lock()
        self._client: Any = None

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    async def find(self, uri: str) -> str:
        """What is at `uri` and can be read: object or prefix. Raises NotThere, Denied, Unreachable, InvalidInput."""
        return await self._call(_find, Location.parse(uri))

    async def read(self, uri: str, limit: int) -> bytes:
        """The first `limit` bytes of an object. Raises as `find` does."""
        return await self._call(_read, Location.parse(uri), limit)

    async def try_writing(self, uri: str) -> bool:
        """Put a small object below `uri` and delete it; false when it could be put but not deleted."""
        return await self._call(_try_writing, Location.parse(uri))

    async def _call(self, work: Callable[..., T], *arguments: Any) -> T:
        loop = asyncio.get_running_loop()
        async with self._opening:
            if self._client is None:
                self._client = await loop.run_in_executor(self._pool, open_client, self._credentials)
        return await loop.run_in_executor(self._pool, work, self._client, *arguments)


def open_client(credentials: Mapping[str, str]) -> Any:
    """boto3's client with the endpoint and region that were supplied. Raises MissingDependency, InvalidInput."""
    try:
        boto3, config = import_module("boto3"), import_module("botocore.config")
    except ModuleNotFoundError as error:
        raise MissingDependency(
            f"looking into S3 needs the package {error.name}", "pip install 'prefect-tao[aws]'"
        ) from None
    endpoint = credentials.get("S3_ENDPOINT_URL", "").strip() or None
    settings = config.Config(
        connect_timeout=CONNECT_SECONDS,
        read_timeout=READ_SECONDS,
        max_pool_connections=MAX_CALLS,
        retries={"total_max_attempts": 2, "mode": "standard"},
        # Storage other than AWS seldom answers to a host name per bucket.
        s3={"addressing_style": "path"} if endpoint else None,
    )
    try:
        return boto3.session.Session().client(
            "s3",
            endpoint_url=endpoint,
            region_name=credentials.get("CLOUD_REGION", "").strip() or DEFAULT_REGION,
            aws_access_key_id=credentials[S3_KEYS[0]].strip(),
            aws_secret_access_key=credentials[S3_KEYS[1]].strip(),
            config=settings,
        )
    except ValueError:
        raise InvalidInput(
            "S3_ENDPOINT_URL or CLOUD_REGION is not one that can be called",
            "write the endpoint as https://<host>, and the region as in us-east-1",
        ) from None


# -- single calls, in a thread -----------------------------------------------------------------------------------------


def _find(client: Any, place: Location) -> str:
    denied: Denied | None = None
    if place.key and not place.key.endswith("/"):
        try:
            with _typed("read"):
                client.head_object(Bucket=place.bucket, Key=place.key)
            return "object"
        except NotThere:
            pass
        except Denied as error:  # also what storage says of a missing key to those who may not list
            denied = error
    first = _first_below(client, place)
    if first is None:
        raise denied or NotThere("there is nothing at that path", "correct the path, or upload the data there")
    with _typed("read"):
        client.head_object(Bucket=place.bucket, Key=first)
    return "prefix"


def _first_below(client: Any, place: Location) -> str | None:
    prefix = f"{place.key.rstrip('/')}/" if place.key else ""
    with _typed("list"):
        answer = client.list_objects_v2(Bucket=place.bucket, Prefix=prefix, MaxKeys=1)
    found = answer.get("Contents") or []
    return str(found[0]["Key"]) if found else None


def _read(client: Any, place: Location, limit: int) -> bytes:
    with _typed("read"):
        if not client.head_object(Bucket=place.bucket, Key=place.key)["ContentLength"]:
            return b""  # no range of an empty object can be asked for
        answer = client.get_object(Bucket=place.bucket, Key=place.key, Range=f"bytes=0-{limit - 1}")
        return bytes(answer["Body"].read())


def _try_writing(client: Any, place: Location) -> bool:
    key = f"{place.key.rstrip('/')}/{PROBE_NAME}" if place.key else PROBE_NAME
    with _typed("write"):
        put = client.put_object(Bucket=place.bucket, Key=key, Body=b"")
    # In a bucket with versions only the deletion of the very version leaves nothing.
    version = {"VersionId": put["VersionId"]} if put.get("VersionId") else {}
    try:
        with _typed("delete"):
            client.delete_object(Bucket=place.bucket, Key=key, **version)
    except TaoError:
        return False
    return True


@contextmanager
def _typed(verb: str) -> Iterator[None]:
    """boto3's errors as ours. Their texts are left out, because they can repeat the endpoint or the key."""
    errors = import_module("botocore.exceptions")
    try:
        yield
    except errors.ClientError as error:
        raise _answered(error.response, verb) from None
    except errors.ParamValidationError:
        raise InvalidInput("the bucket or the path is not a valid name", "write s3://<bucket>/<path>") from None
    except errors.BotoCoreError as error:
        raise Unreachable(
            f"object storage did not answer ({type(error).__name__})",
            "check S3_ENDPOINT_URL, CLOUD_REGION and the network from here",
        ) from None


def _answered(response: Mapping[str, Any], verb: str) -> TaoError:
    code = str(response.get("Error", {}).get("Code", ""))
    status = int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    if code == "NoSuchBucket":
        return NotThere("the bucket does not exist", "correct the bucket's name, or create it")
    if status == 404:
        return NotThere("there is nothing at that path", "correct the path, or upload the data there")
    if status in (401, 403):
        return Denied(f"storage refused to {verb} ({code})", KEY_REMEDY.format(verb=verb))
    if status in (301, 307, 400):
        return Denied(
            f"storage refused the request ({code})", "check CLOUD_REGION, S3_ENDPOINT_URL, ACCESS_KEY and SECRET_KEY"
        )
    return Unreachable(f"object storage could not answer ({code or status})", "try again in a while")


# -- findings ----------------------------------------------------------------------------------------------------------


def missing_keys(credentials: Mapping[str, str]) -> list[str]:
    """The names of the keys without which storage cannot be asked."""
    return [name for name in S3_KEYS if not is_set(credentials, name)]


async def check_readable(store: Store, label: str, uri: str, *, optional: bool = False) -> Finding:
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
        level=Level.OK, check=f"input {label}", message=f"input {label}: {uri}", evidence=f"{kind} can be read"
    )


async def check_writable(store: Store, label: str, uri: str, shown: str) -> Finding:
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
    return Finding(level=Level.OK, check=f"results {label}", message=f"results {label}: {shown} can be written")


def _failed(level: Level, check: str, message: str, remedy: str) -> Finding:
    return Finding(level=level, check=check, message=f"{check}: {message}", remedy=remedy)
