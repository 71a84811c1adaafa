"""S3 for the runner: downloads that are verified and can be taken up again, uploads that are never half.

It speaks through boto3 or, where an image has only that, through the aws command. It travels beside the program and is
loaded only by jobs that use S3; standard library only, Python 3.8 and newer.
"""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections import namedtuple
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import islice

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Any, Union

    Store = Union["BotoStore", "CliStore"]

Item = namedtuple("Item", "bucket key size modified etag")  # one object; `modified` in seconds since 1970

MIB = 1 << 20
LANES = 16  # transfers at once
RANGED = 32 * MIB  # larger objects come in pieces, side by side, and can be taken up where they broke off
PIECE = 16 * MIB
MOST_PARTS = 10_000
CHUNK = 256 * 1024
FEW, BULK = 4, MIB  # so many, and each at most so large, and the aws command moves them in bulk
BATCH = 2_000
TRIES = 6
LONGEST_PAUSE = 8.0
BEAT_SECONDS, STALE_SECONDS = 5.0, 30.0
TELL_SECONDS = 30.0
FULL = (errno.ENOSPC, errno.EDQUOT)
FINAL_ERRORS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG) + FULL
PASSING = "RequestTimeout SlowDown Throttling ThrottlingException TooManyRequests InternalError ServiceUnavailable"
PASSING += " BadDigest RequestTimeoutException OperationAborted ConditionalRequestConflict"

ROOM = "free space there, or give the job a larger disk (TAO_WORK_DIR)"
KEYS = "check ACCESS_KEY and SECRET_KEY, and that their owner may do this there"
REMEDIES = {
    "NoSuchBucket": "correct the bucket's name, or create it",
    "InvalidBucketName": "correct the bucket's name",
    "RequestTimeTooSkewed": "the clock of the machine that asks is wrong: set it, for example with NTP",
    "AuthorizationHeaderMalformed": "set CLOUD_REGION to the bucket's region",
    "PermanentRedirect": "set CLOUD_REGION to the bucket's region, or S3_ENDPOINT_URL to its endpoint",
    "SlowDown": "the storage is overloaded; launch again later",
    "ServiceUnavailable": "the storage is overloaded; launch again later",
    "NoSuchKey": "correct the path, or upload the data there",
    "NoSuchUpload": "something removed the unfinished upload; launch again",
    "EntityTooLarge": "the storage does not take files of this size",
    "InvalidObjectState": "the object is archived: restore it first",
}
for _code in ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "403"):
    REMEDIES[_code] = KEYS
PHRASES = (
    ("unable to locate credentials", "set ACCESS_KEY and SECRET_KEY among the job's secrets"),
    ("partial credentials", "set both ACCESS_KEY and SECRET_KEY"),
    ("could not connect", "check S3_ENDPOINT_URL, and the network of the machine that runs the job"),
    ("timeout", "check S3_ENDPOINT_URL, and the network of the machine that runs the job"),
    ("ssl", "check S3_ENDPOINT_URL and the certificates of the image (AWS_CA_BUNDLE)"),
    ("invalid endpoint", "write S3_ENDPOINT_URL as https://<host>"),
    ("invalid bucket name", "correct the bucket's name"),
)


class StorageError(Exception):
    """What could not be done and what to do about it; `final` when trying again is of no use.

    `code` is the store's own word for it, and none when it is the disk (`local`) or something that we found ourselves.
    """

    def __init__(self, text: str, final: bool = True, local: bool = False, what: str = "", code: str = "") -> None:
        super().__init__(text)
        self.final, self.local, self.what, self.code = final, local, what, code


class Missing(StorageError):
    """There is nothing at that place."""


class Changed(Exception):
    """The object is not any more what was listed."""


class Unsettled(Exception):
    """The file was written to while it was sent; what was sent of it is dropped."""


class CliError(Exception):
    """What the aws command wrote about its failure."""


# -- errors, for people ------------------------------------------------------------------------------------------------


def code_of(error: BaseException) -> str:
    """The store's own word for the error; boto3 and the aws command say it in one form."""
    found = re.search(r"An error occurred \((\w+)\)|\((\d{3})\) when calling", str(error))
    return (found.group(1) or found.group(2)) if found else ""


def status_of(error: BaseException) -> int:
    response = getattr(error, "response", None)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    code = code_of(error)
    return int(status or (code if code.isdigit() else 0))


def is_full(error: BaseException) -> bool:
    return (isinstance(error, OSError) and error.errno in FULL) or "No space left on device" in str(error)


def is_local(error: BaseException) -> bool:
    """Whether it is the disk, or a folder on it, and not the store."""
    return (isinstance(error, OSError) and error.errno in FINAL_ERRORS) or is_full(error)


def is_final(error: BaseException) -> bool:
    """Whether the store or the file system itself said no, so that asking again is of no use."""
    if isinstance(error, StorageError):
        return error.final
    if is_local(error) or isinstance(error, UnicodeError):
        return True
    code, status = code_of(error), status_of(error)
    if code in PASSING.split() or status in (408, 409, 429) or status >= 500:
        return False
    if code or 400 <= status < 500:
        return True
    text = str(error).lower()
    return any(phrase in text for phrase, _ in PHRASES if phrase.endswith(("credentials", "endpoint", "bucket name")))


def explained(what: str, error: BaseException) -> StorageError:
    """The error in words that say what to do."""
    text, remedy = str(error) or type(error).__name__, REMEDIES.get(code_of(error), "")
    if is_full(error):
        remedy = ROOM
    elif not remedy:
        remedy = next((advice for phrase, advice in PHRASES if phrase in text.lower()), "")
    text, local = "%s failed: %s%s" % (what, text, "; " + remedy if remedy else ""), is_local(error)
    code = "" if local else code_of(error) or type(error).__name__
    return StorageError(text, is_final(error), local, what, code)


def persist(what: str, action: Callable[[], Any], position: Callable[[], int] = lambda: 0) -> Any:
    """Try `action` with pauses that grow, as long as trying helps; what moves `position` on counts as a new start."""
    tries, before = 0, position()
    while True:
        try:
            return action()
        except (StorageError, Changed):
            raise
        except Exception as error:
            if position() != before:
                tries, before = 0, position()
            tries += 1
            if is_final(error) or tries >= TRIES:
                raise explained(what, error)
            time.sleep(min(0.5 * 2**tries, LONGEST_PAUSE) * random.uniform(0.6, 1.1))


# -- the two ways to S3 ------------------------------------------------------------------------------------------------


def endpoint(env: Mapping[str, str]) -> str | None:
    return env.get("AWS_ENDPOINT_URL") or env.get("S3_ENDPOINT_URL") or None


def region(env: Mapping[str, str]) -> str:
    return env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or env.get("CLOUD_REGION") or "us-east-1"


def addressing(env: Mapping[str, str]) -> str:
    """Storage other than AWS seldom answers to a host name per bucket."""
    return env.get("S3_ADDRESSING_STYLE") or ("path" if endpoint(env) else "auto")


def _etag(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def _checksum(answer: Mapping[str, Any]) -> str:
    """The ETag where it says something about the content, else nothing: with a key of its own it does not."""
    hidden = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms") or answer.get("SSECustomerAlgorithm")
    return "" if hidden else _etag(answer)


class _Way:
    """What both ways have."""

    piece = 8 * MIB  # the length of a part that is uploaded

    def __init__(self, hands: int) -> None:
        self.hands = threading.BoundedSemaphore(hands)
        self.rooms: list[bytearray] = []
        self.sums: dict[Item, str] = {}  # what came although the ETag says otherwise
        self.tell: Callable[[str], None] = lambda text: None

    @contextmanager
    def room(self, length: int) -> Iterator[bytearray]:
        """Memory for a part. So many at once and no more, and used again: what is freed is not always given back."""
        if length <= MIB:
            yield bytearray(length)
            return
        with self.hands:
            room = self.rooms.pop() if self.rooms else bytearray()
            room = room if len(room) >= length else bytearray(max(length, self.piece))
            try:
                yield room
            finally:
                self.rooms.append(room)


class BotoStore(_Way):
    """S3 through boto3."""

    def __init__(self, boto3: Any, env: Mapping[str, str], connect_seconds: int = 10, read_seconds: int = 60) -> None:
        super().__init__(6)
        from botocore.config import Config  # type: ignore[import-untyped, unused-ignore]

        settings: dict[str, Any] = {
            "retries": {"max_attempts": 2, "mode": "standard"},
            "max_pool_connections": 2 * LANES,
            "connect_timeout": connect_seconds,
            "read_timeout": read_seconds,
            "s3": {"addressing_style": addressing(env)},
        }
        try:  # every part goes with its MD5, which older storage understands too
            config = Config(
                request_checksum_calculation="when_required", response_checksum_validation="when_required", **settings
            )
        except TypeError:  # a botocore that knows no other checksums
            config = Config(**settings)
        self.place = endpoint(env) or "aws"
        try:
            self.client = boto3.session.Session().client(
                "s3",
                endpoint_url=endpoint(env),
                region_name=region(env),
                aws_access_key_id=env.get("AWS_ACCESS_KEY_ID") or env.get("ACCESS_KEY") or None,
                aws_secret_access_key=env.get("AWS_SECRET_ACCESS_KEY") or env.get("SECRET_KEY") or None,
                aws_session_token=env.get("AWS_SESSION_TOKEN") or None,
                config=config,
            )
        except ValueError as error:
            raise explained("opening S3", error)

    def items(self, bucket: str, prefix: str, limit: int | None = None) -> list[Item]:
        pages = self.client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=prefix, PaginationConfig={"MaxItems": limit, "PageSize": limit}
        )
        return [
            Item(bucket, found["Key"], found["Size"], found["LastModified"].timestamp(), _etag(found))
            for page in pages
            for found in page.get("Contents", ())
        ]

    def head(self, bucket: str, key: str, **more: Any) -> Item:
        answer = self.client.head_object(Bucket=bucket, Key=key, **more)
        return Item(bucket, key, answer["ContentLength"], answer["LastModified"].timestamp(), _etag(answer))

    def read(self, item: Item, start: int, stop: int, scratch: str) -> tuple[str, Iterator[bytes]]:
        """A checksum of the object where there is one, and its bytes from `start` to `stop`. Raises Changed."""
        words = {"Bucket": item.bucket, "Key": item.key}
        if item.etag:  # there are stores without
            words["IfMatch"] = '"%s"' % item.etag
        if (start, stop) != (0, item.size):
            words["Range"] = "bytes=%d-%d" % (start, stop - 1)
        with _unchanged():
            answer = self.client.get_object(**words)
        if item.etag and _etag(answer) != item.etag:
            raise Changed
        return _checksum(answer), _chunks(answer["Body"])

    def put(self, bucket: str, key: str, data: Any, **more: Any) -> str:
        return _checksum(self.client.put_object(Bucket=bucket, Key=key, Body=data, **more))

    def begin(self, bucket: str, key: str) -> str:
        return str(self.client.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"])

    def put_part(self, bucket: str, key: str, upload: str, number: int, data: Any, **more: Any) -> str:
        words = {"Bucket": bucket, "Key": key, "UploadId": upload, "PartNumber": number}
        return _etag(self.client.upload_part(Body=data, **words, **more))

    def complete(self, bucket: str, key: str, upload: str, parts: list[dict[str, Any]]) -> str:
        words = {"Bucket": bucket, "Key": key, "UploadId": upload}
        return _checksum(self.client.complete_multipart_upload(MultipartUpload={"Parts": parts}, **words))

    def abort(self, bucket: str, key: str, upload: str) -> None:
        self.client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload)


class CliStore(_Way):
    """S3 through the aws command; each call is a process, so small files go in bulk and large ones in large parts."""

    piece = 32 * MIB

    def __init__(self, program: str, env: Mapping[str, str]) -> None:
        super().__init__(2)
        self.program = [program, "--region", region(env)]
        self.place = endpoint(env) or "aws"
        if endpoint(env):
            self.program += ["--endpoint-url", str(endpoint(env))]
        self.env = dict(os.environ, PYTHONUTF8="1", AWS_PAGER="", AWS_MAX_ATTEMPTS="3", AWS_RETRY_MODE="standard")
        own = os.path.expanduser("~/.aws/config")
        if addressing(env) != "auto" and not self.env.get("AWS_CONFIG_FILE") and not os.path.exists(own):
            # Some settings of the command can be given in a file only.
            handle, path = tempfile.mkstemp(prefix="tao-aws-")
            with os.fdopen(handle, "w") as file:
                file.write("[default]\ns3 =\n  max_concurrent_requests = %d\n" % LANES)
                file.write("  addressing_style = %s\n" % addressing(env))
            self.env["AWS_CONFIG_FILE"] = path

    def run(self, *words: str) -> bytes:
        done = subprocess.run(
            self.program + list(words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
        )
        if done.returncode:
            raise CliError(done.stderr.decode(errors="replace").strip() or "aws ended with %d" % done.returncode)
        return done.stdout

    def call(self, operation: str, *words: str, **fields: Any) -> dict[str, Any]:
        for name, value in fields.items():
            words += ("--" + name.replace("_", "-"), str(value))
        answer = json.loads(self.run("s3api", operation, "--output", "json", *words).strip() or b"{}")
        return dict(answer or {})

    def items(self, bucket: str, prefix: str, limit: int | None = None) -> list[Item]:
        more = {"max_items": limit} if limit else {}
        found = self.call("list-objects-v2", bucket=bucket, prefix=prefix, **more).get("Contents") or ()
        return [Item(bucket, one["Key"], one["Size"], _seconds(one["LastModified"]), _etag(one)) for one in found]

    def head(self, bucket: str, key: str, **more: Any) -> Item:
        more = {"part_number": more["PartNumber"]} if "PartNumber" in more else {}
        answer = self.call("head-object", bucket=bucket, key=key, **more)
        return Item(bucket, key, answer["ContentLength"], _seconds(answer["LastModified"]), _etag(answer))

    def read(self, item: Item, start: int, stop: int, scratch: str) -> tuple[str, Iterator[bytes]]:
        words = {"bucket": item.bucket, "key": item.key}
        if item.etag:
            words["if_match"] = '"%s"' % item.etag
        if (start, stop) != (0, item.size):
            words["range"] = "bytes=%d-%d" % (start, stop - 1)
        try:
            with _unchanged():
                answer = self.call("get-object", scratch, **words)
            if item.etag and _etag(answer) != item.etag:
                raise Changed
            return _checksum(answer), _chunks(open(scratch, "rb"))
        finally:
            discard(scratch)

    @contextmanager
    def _body(self, data: Any) -> Iterator[str]:
        handle, path = tempfile.mkstemp(prefix="tao-part-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            yield path
        finally:
            discard(path)

    def put(self, bucket: str, key: str, data: Any, **more: Any) -> str:
        with self._body(data) as path:
            return _checksum(self.call("put-object", bucket=bucket, key=key, body=path, **_option(more)))

    def begin(self, bucket: str, key: str) -> str:
        return str(self.call("create-multipart-upload", bucket=bucket, key=key)["UploadId"])

    def put_part(self, bucket: str, key: str, upload: str, number: int, data: Any, **more: Any) -> str:
        with self._body(data) as path:
            words = {"bucket": bucket, "key": key, "upload_id": upload, "part_number": number, "body": path}
            return _etag(self.call("upload-part", **words, **_option(more)))

    def complete(self, bucket: str, key: str, upload: str, parts: list[dict[str, Any]]) -> str:
        with self._body(json.dumps({"Parts": parts}).encode()) as path:
            words = {"bucket": bucket, "key": key, "upload_id": upload, "multipart_upload": "file://" + path}
            return _checksum(self.call("complete-multipart-upload", **words))

    def abort(self, bucket: str, key: str, upload: str) -> None:
        self.call("abort-multipart-upload", bucket=bucket, key=key, upload_id=upload)


@contextmanager
def _unchanged() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if code_of(error) in ("PreconditionFailed", "412", "InvalidRange", "416"):
            raise Changed
        raise


def _chunks(body: Any) -> Iterator[bytes]:
    try:
        yield from iter(partial(body.read, CHUNK), b"")
    finally:
        body.close()


def _option(more: Mapping[str, Any]) -> dict[str, Any]:
    return {"content_md5": more["ContentMD5"]} if "ContentMD5" in more else {}


def _seconds(text: str) -> float:
    """The aws command writes 2026-01-31T10:20:30+00:00 or, from a header, Sat, 31 Jan 2026 10:20:30 GMT."""
    from datetime import datetime
    from email.utils import parsedate_to_datetime

    if "," in text:
        return parsedate_to_datetime(text).timestamp()
    return datetime.strptime(text[:19] + "+0000", "%Y-%m-%dT%H:%M:%S%z").timestamp()


def connect(env: Mapping[str, str], tell: Callable[[str], None] = lambda text: None) -> Store:
    """The store, through whatever is there. Raises StorageError when nothing is."""
    boto3, aws = _boto3(), shutil.which("aws")
    if not boto3 and not aws:
        raise StorageError("s3:// needs boto3 or the aws command in the image, and it has neither; install one there")
    made: Store = BotoStore(boto3, env) if boto3 else CliStore(str(aws), env)
    made.tell = tell
    return made


def _boto3() -> Any:
    from importlib import import_module

    try:
        return import_module("boto3")
    except ImportError:
        if not sys.flags.no_site:
            return None
    import site

    site.main()  # we were started without site-packages, which is quicker; now they are needed
    try:
        return import_module("boto3")
    except ImportError:
        return None


def split(uri: str) -> tuple[str, str]:
    """Bucket and key; a slash at the end belongs to the key."""
    bucket, _, key = uri[len("s3://") :].partition("/")
    return bucket, key.lstrip("/")


# -- files -------------------------------------------------------------------------------------------------------------


def discard(path: str) -> None:
    try:
        os.unlink(path)
    except OSError:
        pass


def part_of(path: str) -> str:
    """A temporary name beside `path` for this writer alone."""
    return "%s.%s.part" % (path, os.urandom(4).hex())


def md5(data: Any = b"") -> Any:
    """MD5 as S3 uses it, against accidents; None where this Python is forbidden to."""
    words: dict[str, Any] = {"usedforsecurity": False} if sys.version_info[:2] > (3, 8) else {}
    try:
        return hashlib.md5(data, **words)
    except ValueError:
        return None


def md5_words(digest: Any) -> dict[str, str]:
    return {"ContentMD5": base64.b64encode(digest.digest()).decode()} if digest else {}


def file_md5(path: str) -> str:
    digest = md5()
    with open(path, "rb") as file:
        for chunk in iter(partial(file.read, MIB), b""):
            if digest:
                digest.update(chunk)
    return digest.hexdigest() if digest else ""


def is_md5(etag: str) -> bool:
    return len(etag) == 32 and all(char in "0123456789abcdef" for char in etag)


def of_parts(digests: Sequence[bytes]) -> str:
    """The ETag of an object that was uploaded in parts of these MD5s."""
    whole = md5(b"".join(digests))
    return "%s-%d" % (whole.hexdigest(), len(digests)) if whole else ""


def stamp_of(item: Item) -> int:
    """The time that a file of this content bears: when the object was made, and in its microseconds which it is."""
    return (int(item.modified) * 1_000_000 + zlib.crc32(item.etag.encode()) % 999_999 + 1) * 1000


def is_whole(path: str, item: Item) -> bool:
    """Whether the file is the object, downloaded whole and untouched since."""
    try:
        facts = os.stat(path)
    except OSError:
        return False
    # Some file systems keep whole seconds only.
    times = (stamp_of(item), int(item.modified) * 1_000_000_000)
    return facts.st_size == item.size and facts.st_mtime_ns in times


def give_name(temporary: str, path: str, item: Item) -> None:
    """The last act of a download: the file is whole, so it gets its time and its name."""
    os.utime(temporary, ns=(stamp_of(item),) * 2)
    os.replace(temporary, path)


def human(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return "%.3g %s" % (size, unit)
        size /= 1000
    return "%.3g TB" % size


# -- many transfers side by side ---------------------------------------------------------------------------------------


class Transfer:
    """One file on its way, in one piece or several: `start` lays them out, `finish` follows them, or else `drop`."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pieces: list[Callable[[], None]] = []
        self.left = 0
        self.error: Exception | None = None
        self.done: Callable[[], None] = lambda: None  # called when it is there

    def start(self) -> None:
        raise NotImplementedError

    def finish(self) -> None:
        pass

    def drop(self) -> None:
        pass


class Carrier:
    """Runs transfers side by side."""

    lanes = threading.BoundedSemaphore(LANES)  # for all carriers together

    def __init__(self, what: str, tell: Callable[[str], None]) -> None:
        self.what, self.tell = what, tell
        self.lock = threading.Lock()
        self.failed: list[Exception] = []
        self.moved = 0

    def carry(self, transfers: Iterable[Transfer]) -> None:
        """Returns when all have ended; then the first failure is raised. A signal does not wait for them."""
        waiting, started = iter(transfers), time.monotonic()
        batch = list(islice(waiting, BATCH))
        while batch:  # a million of them at once would take memory that the job needs
            self._carry(batch, started)
            batch = list(islice(waiting, BATCH))
        if self.failed:
            raise self.failed[0]

    def _carry(self, transfers: Sequence[Transfer], started: float) -> None:
        from concurrent.futures import ThreadPoolExecutor, wait

        pool, futures = ThreadPoolExecutor(LANES), []
        try:
            for begun in [pool.submit(self._begin, one) for one in transfers]:
                one = begun.result()
                futures += [pool.submit(self._piece, one, work) for work in one.pieces]
            while wait(futures, TELL_SECONDS).not_done:
                seconds = time.monotonic() - started
                self.tell("%s: %s after %d s" % (self.what, human(self.moved), seconds))
        finally:
            for future in futures:
                future.cancel()
            pool.shutdown(wait=False)

    def _begin(self, one: Transfer) -> Transfer:
        try:
            with self.lanes:
                one.start()
            one.left = len(one.pieces)
        except Exception as error:
            one.error, one.pieces = error, []
        if not one.pieces:
            self._end(one)
        return one

    def _piece(self, one: Transfer, work: Callable[[], None]) -> None:
        try:
            if one.error is None:
                with self.lanes:
                    work()
        except Exception as error:
            one.error = one.error or error
        with self.lock:
            one.left -= 1
            is_last = not one.left
            self.moved += one.size // len(one.pieces)
        if is_last:
            self._end(one)

    def _end(self, one: Transfer) -> None:
        try:
            if one.error is None:
                one.finish()
                one.done()
        except Exception as error:
            one.error = error
        if one.error is None:
            return
        one.drop()
        if isinstance(one.error, (StorageError, Changed)):
            self.failed.append(one.error)
        elif not isinstance(one.error, Unsettled):
            self.failed.append(explained(self.what, one.error))


# -- downloads ---------------------------------------------------------------------------------------------------------


class Download(Transfer):
    """An object in one go."""

    def __init__(self, store: Store, item: Item, target: str) -> None:
        super().__init__(item.size)
        self.store, self.item, self.target = store, item, target
        self.what = "download of s3://%s/%s" % item[:2]
        self.seen = ""

    def start(self) -> None:
        os.makedirs(os.path.dirname(self.target), exist_ok=True)
        self.pieces = [partial(persist, self.what, self._get)]

    def _get(self) -> None:
        temporary, digest, size = part_of(self.target), md5(), 0
        try:
            with open(temporary, "wb") as file:
                checksum, chunks = self.store.read(self.item, 0, self.size, temporary + ".body")
                for chunk in chunks:
                    file.write(chunk)
                    size += len(chunk)
                    if digest:
                        digest.update(chunk)
            if size != self.size:
                raise OSError("got %d of %d bytes" % (size, self.size))
            found = digest.hexdigest() if digest else ""
            # Bytes that come twice are what the store has: the ETags of some are no checksums.
            if found and is_md5(checksum) and found not in (checksum, self.seen):
                self.seen = found
                raise OSError("what came does not have the checksum %s" % checksum)
            give_name(temporary, self.target, self.item)
        finally:
            discard(temporary)


class LargeDownload(Transfer):
    """An object in pieces. They are kept under a name that tells the content, so that a later start goes on there.

    Two processes may work on one such file: what they write is the same.
    """

    def __init__(self, store: Store, item: Item, target: str) -> None:
        super().__init__(item.size)
        self.store, self.item, self.target = store, item, target
        self.what = "download of s3://%s/%s" % item[:2]
        self.part = "%s.%s.part" % (target, hashlib.sha256(repr(tuple(item)).encode()).hexdigest()[:12])
        self.log = self.part + "s"  # which pieces are there, and their MD5s
        self.file = -1
        self.checksum = ""
        self.digests: dict[int, bytes] = {}

    def start(self) -> None:
        os.makedirs(os.path.dirname(self.target), exist_ok=True)
        self.step = persist(self.what, self._step)
        self.file = os.open(self.part, os.O_RDWR | os.O_CREAT, 0o666)
        os.ftruncate(self.file, self.size)
        recorded, self.count = self._recorded(), -(-self.size // self.step)
        together = max(1, RANGED // self.step)  # a request for each part would be many
        self.pieces = [
            partial(self._piece, range(first, min(first + together, self.count)), recorded)
            for first in range(0, self.count, together)
        ]

    def _step(self) -> int:
        """The length of a piece: that of the parts it was uploaded in, so that the ETag can be compared at the end."""
        if "-" not in self.item.etag:
            return PIECE
        length = int(self.store.head(self.item.bucket, self.item.key, PartNumber=1).size)
        return length if 5 * MIB <= length <= 128 * MIB else PIECE

    def _recorded(self) -> dict[int, bytes]:
        try:
            with open(self.log, encoding="ascii") as file:
                lines = [line.split() for line in file if line.endswith("\n")]
            return {int(words[1]): bytes.fromhex(words[2]) for words in lines if words[0] == str(self.step)}
        except (OSError, ValueError, IndexError):
            return {}

    def _piece(self, numbers: Sequence[int], recorded: Mapping[int, bytes]) -> None:
        run: list[int] = []
        for number in numbers:
            if number in recorded and self._on_disk(number * self.step, self._stop(number)) == recorded[number]:
                self.digests[number] = recorded[number]
                self._get(run)
                run = []
            else:
                run.append(number)
        self._get(run)

    def _stop(self, number: int) -> int:
        return min((number + 1) * int(self.step), self.size)

    def _get(self, run: Sequence[int]) -> None:
        """Fetch parts that follow each other with one request, or with as many as it takes."""
        if not run:
            return
        at, number, digest = run[0] * self.step, run[0], md5()

        def get() -> None:
            nonlocal at, number, digest
            stop = self._stop(run[-1])
            self.checksum, chunks = self.store.read(self.item, at, stop, "%s.%d.body" % (self.part, number))
            for chunk in chunks:
                while chunk:
                    head = chunk[: self._stop(number) - at]
                    chunk = chunk[len(head) :]
                    os.pwrite(self.file, head, at)
                    at += len(head)
                    if digest:
                        digest.update(head)
                    if at == self._stop(number):
                        self._record(number, digest)
                        number, digest = number + 1, md5()
            if at != stop:
                raise OSError("the connection ended %d bytes early" % (stop - at))

        persist(self.what, get, lambda: at)

    def _record(self, number: int, digest: Any) -> None:
        if digest:
            self.digests[number] = digest.digest()
            # One short line at once, because another process may be writing its own there.
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.write(log, b"%d %d %s\n" % (self.step, number, digest.hexdigest().encode()))
            os.close(log)

    def _on_disk(self, start: int, stop: int) -> bytes:
        digest = md5()
        for at in range(start, stop, MIB):
            digest.update(os.pread(self.file, min(MIB, stop - at), at))
        return bytes(digest.digest())

    def _sum(self) -> str:
        """What the ETag would be if it is a checksum of these bytes; nothing where it cannot be told."""
        if len(self.digests) != self.count:
            return ""
        if is_md5(self.checksum):
            return self._on_disk(0, self.size).hex()
        parts = of_parts([self.digests[number] for number in range(self.count)])
        return parts if parts.partition("-")[2] == self.checksum.partition("-")[2] else ""

    def finish(self) -> None:
        found = self._sum()
        # As above: what comes twice is what the store has.
        if found and self.checksum and found not in (self.checksum, self.store.sums.get(self.item)):
            self.store.sums[self.item] = found
            raise Changed
        self._close()
        try:
            give_name(self.part, self.target, self.item)
        except FileNotFoundError:  # another process was quicker with the same content
            if not is_whole(self.target, self.item):
                raise
        discard(self.log)

    def drop(self) -> None:
        """The pieces stay for the next try, unless they are wrong or fill the disk."""
        self._close()
        if isinstance(self.error, Changed) or getattr(self.error, "local", False):
            discard(self.part)
            discard(self.log)

    def _close(self) -> None:
        if self.file >= 0:
            os.close(self.file)
            self.file = -1


def find(store: Store, uri: str) -> dict[str, Item]:
    """What is at `uri`: {path below it: object}; the path of an object itself is empty. Raises Missing."""
    bucket, key = split(uri)
    if key and not key.endswith("/"):
        # An object comes before all others whose names begin with its own.
        for item in persist("listing %s" % uri, partial(store.items, bucket, key, 1)):
            if item.key == key:
                return {"": item}
    prefix = key.rstrip("/") + "/" if key else ""
    items = persist("listing %s" % uri, partial(store.items, bucket, prefix))
    found = {item.key[len(prefix) :]: item for item in items if not item.key.endswith("/")}  # consoles mark folders so
    if not found:
        raise Missing("there is nothing at %s; correct the path, or upload the data there" % uri)
    return found


class Look(Transfer):
    """Asks what is at one place below another."""

    def __init__(self, store: Store, uri: str, name: str, found: dict[str, Item]) -> None:
        super().__init__(0)
        self.store, self.uri, self.name, self.found = store, uri, name, found

    def start(self) -> None:
        self.pieces = [self._look]

    def _look(self) -> None:
        for below, item in find(self.store, "%s/%s" % (self.uri, self.name)).items():
            self.found["/".join(filter(None, (self.name, below)))] = item


def find_named(store: Store, uri: str, names: Sequence[str]) -> dict[str, Item]:
    """The objects that `names` names below the folder `uri`. Raises Missing."""
    found: dict[str, Item] = {}
    if isinstance(store, CliStore) and len(names) >= FEW:  # one look at all instead of a process for each
        there, wanted = find(store, uri.rstrip("/") + "/"), set(names)
        found = {name: there[name] for name in wanted if name in there}
        names = [name for name in names if name not in found]
    looks = [Look(store, uri.rstrip("/"), name, found) for name in names]
    Carrier("looking for %d files below %s" % (len(names), uri), store.tell).carry(looks)
    return found


def fetch(
    store: Store,
    uri: str,
    target: str,
    cache: str | None = None,
    shared: bool = False,
    names: Sequence[str] | None = None,
) -> int:
    """Download the object or the folder of objects at `uri` to `target`, or of a folder only `names`; returns how many.

    `cache` is a folder that several jobs share; `shared` says that several nodes do this with one `target`.
    Raises Missing, StorageError.
    """
    for _ in range(TRIES):
        found = find(store, uri) if names is None else find_named(store, uri, names)
        try:
            _fetch(store, uri, found, target, cache, shared)
            return len(found)
        except Changed:
            store.tell("%s changes while it is being downloaded; looking again" % uri)
    raise StorageError("%s changes all the time while it is being downloaded; launch when it is complete" % uri)


def _fetch(store: Store, uri: str, found: dict[str, Item], target: str, cache: str | None, shared: bool) -> None:
    places = _places(uri, found, target)
    if cache:
        entries = {path: _entry(store, cache, item) for path, item in places.items()}
        try:
            with turn(cache, uri, store.tell):
                _download(store, uri, {entries[path]: item for path, item in places.items()}, cache)
        except (StorageError, OSError) as error:
            if isinstance(error, StorageError) and not error.local:
                raise
            store.tell("the cache cannot take %s (%s); downloading it for this job alone" % (uri, error))
        else:
            for path, entry in entries.items():
                _link(entry, path)
            return
    with turn(os.path.dirname(target), target, store.tell) if shared else nullcontext():
        _download(store, uri, places, os.path.dirname(target))


def _places(uri: str, found: dict[str, Item], target: str) -> dict[str, Item]:
    """Where each object goes. Raises StorageError for names that no folder can hold."""
    places: dict[str, Item] = {}
    for below, item in found.items():
        parts = [part for part in below.split("/") if part not in ("", ".")]
        if ".." in parts or "\0" in below or (below and not parts):
            raise StorageError("%s holds %r, which would leave its folder; refused" % (uri, below))
        path = os.path.join(target, *parts)
        if path in places:
            raise StorageError("%s holds %r and %r, which are one file here" % (uri, places[path].key, item.key))
        places[path] = item
    for path in places:
        above = os.path.dirname(path)
        if above != target and above in places:
            raise StorageError("%s holds %r both as a file and as a folder; refused" % (uri, places[above].key))
    return places


def download(
    store: Store, what: str, wanted: Mapping[str, Item], done: Callable[[str], None] = lambda path: None
) -> None:
    """Download each object to its path, the largest first, so that small ones fill the gaps at the end."""

    def transfer(path: str, item: Item) -> Transfer:
        one = (LargeDownload if item.size > RANGED else Download)(store, item, path)
        one.done = partial(done, path)
        return one

    largest_first = sorted(wanted.items(), key=lambda pair: -pair[1].size)
    Carrier("download of %s" % what, store.tell).carry(transfer(path, item) for path, item in largest_first)


def _download(store: Store, uri: str, places: dict[str, Item], beside: str) -> None:
    """Have every object at its place. What is there, whole and unchanged, stays."""
    wanted = {path: item for path, item in places.items() if not is_whole(path, item)}
    size, started = sum(item.size for item in wanted.values()), time.monotonic()
    os.makedirs(beside, exist_ok=True)
    free = os.statvfs(beside)
    if size > free.f_bavail * free.f_frsize:
        room = human(free.f_bavail * free.f_frsize)
        text = "%s needs %s, and the disk of %s has %s free; %s"
        raise StorageError(text % (uri, human(size), beside, room, ROOM), local=True)
    if isinstance(store, CliStore):
        wanted = _download_bulk(store, uri, wanted, places, beside)
    download(store, uri, wanted)
    seconds = time.monotonic() - started
    store.tell("%s: %d objects, %s new, in %.1f s" % (uri, len(places), human(size), seconds))


def _download_bulk(
    store: CliStore, uri: str, wanted: dict[str, Item], places: dict[str, Item], beside: str
) -> dict[str, Item]:
    """Fetch small objects with few processes; returns what is still to be fetched, one by one."""
    small = {item.key: path for path, item in wanted.items() if item.size <= RANGED}
    if len(small) < FEW:
        return wanted
    bucket, key = split(uri)
    base = key.rstrip("/") + "/" if key else ""
    others = [item.key for item in places.values() if item.key not in small]
    folder = tempfile.mkdtemp(prefix=".tao-", dir=beside)
    try:
        for words in _filters(base, list(small), others):
            words = ["s3", "cp", "--recursive", "--only-show-errors", "s3://%s/%s" % (bucket, base), folder, *words]
            persist("download of %s" % uri, partial(store.run, *words))
        return {
            path: item
            for path, item in wanted.items()
            if not _take(os.path.join(folder, item.key[len(base) :]), path, item)
        }
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _filters(base: str, keys: Sequence[str], others: Sequence[str]) -> list[list[str]]:
    """The options that make the aws command move `keys` and, as far as can be told, none of `others`."""
    if len(others) <= 100 and len(keys) > 100:
        return [[word for key in others for word in ("--exclude", _pattern(key[len(base) :]))]]
    names = [_pattern(key[len(base) :]) for key in keys]
    return [
        ["--exclude", "*", *(word for name in names[at : at + 100] for word in ("--include", name))]
        for at in range(0, len(names), 100)
    ]


def _take(source: str, path: str, item: Item) -> bool:
    """Give a file that came in bulk its place, if it is what was listed."""
    try:
        if os.path.getsize(source) != item.size or not is_md5(item.etag) or file_md5(source) != item.etag:
            return False
        os.makedirs(os.path.dirname(path), exist_ok=True)
        give_name(source, path, item)
        return True
    except OSError:
        return False


def _pattern(name: str) -> str:
    return name.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")


# -- a cache that jobs share -------------------------------------------------------------------------------------------


def _entry(store: Store, cache: str, item: Item) -> str:
    """Where the cache has an object. Its ETag is part of the name, so another content is another entry."""
    mark = hashlib.sha256(repr((store.place, tuple(item))).encode()).hexdigest()
    name = os.path.basename(item.key)
    return os.path.join(cache, mark[:2], mark[2:26] + "-" + name.encode()[-150:].decode(errors="ignore"))


def _link(entry: str, path: str) -> None:
    """Let `path` be the cached file, without a moment in which it is nothing."""
    if os.path.islink(path) and os.readlink(path) == entry:
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    temporary = part_of(path)
    os.symlink(entry, temporary)
    os.replace(temporary, path)


@contextmanager
def turn(folder: str, what: str, tell: Callable[[str], None]) -> Iterator[None]:
    """One process at a time, as far as a shared file system lets us: those who wait find the work done.

    A holder touches its file; one that has not been touched for a while belongs to nobody. Two holders do no harm.
    """
    path = os.path.join(folder, ".turn-%s" % hashlib.sha256(what.encode()).hexdigest()[:16])
    seen, since, told = 0, time.monotonic(), False
    os.makedirs(folder, exist_ok=True)
    while True:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
            break
        except FileExistsError:
            pass
        except OSError:  # cannot be written: whoever reads there needs no turn
            yield
            return
        try:
            touched = os.stat(path).st_mtime_ns
        except OSError:
            continue
        if touched != seen:
            seen, since = touched, time.monotonic()
        elif time.monotonic() - since > STALE_SECONDS:
            discard(path)
        if not told:
            tell("another process downloads %s; waiting for it" % what)
            told = True
        time.sleep(0.2)
    over = threading.Event()

    def beat() -> None:
        while not over.wait(BEAT_SECONDS):
            try:
                os.utime(path)
            except OSError:
                pass

    threading.Thread(target=beat, daemon=True).start()
    try:
        yield
    finally:
        over.set()
        discard(path)


# -- uploads -----------------------------------------------------------------------------------------------------------


class Upload(Transfer):
    """A file on its way to `uri`; under that name there is never half of it.

    A `steady` file must not change while it is sent, one that only grows is sent as far as it was at the start.
    """

    def __init__(self, store: Store, path: str, uri: str, steady: bool, done: Callable[[], None]) -> None:
        super().__init__(0)
        self.store, self.path, self.steady = store, path, steady
        self.done = done
        self.bucket, self.key = split(uri)
        self.what = "saving %s to %s" % (path, uri)
        self.upload = ""
        self.digests: dict[int, bytes] = {}
        self.tags: dict[int, str] = {}

    def start(self) -> None:
        try:
            self.facts = os.stat(self.path)
        except FileNotFoundError:
            raise Unsettled
        self.size = self.facts.st_size
        step = max(self.store.piece, self.size // MOST_PARTS + MIB if self.size > self.store.piece * MOST_PARTS else 0)
        if self.size <= self.store.piece:
            self.pieces = [self._whole]
            return
        self.upload = persist(self.what, partial(self.store.begin, self.bucket, self.key))
        self.pieces = [
            partial(self._part, number, start, min(step, self.size - start))
            for number, start in enumerate(range(0, self.size, step), 1)
        ]

    @contextmanager
    def _read(self, start: int, length: int) -> Iterator[Any]:
        """A part of the file as it is now: what is sent is what was looked at, whoever writes to the file."""
        with self.store.room(length) as room:
            view = memoryview(room)[:length]
            try:
                with open(self.path, "rb", buffering=0) as file:
                    file.seek(start)
                    done = 0
                    while done < length:
                        count = file.readinto(view[done:])
                        if not count:
                            raise Unsettled
                        done += count
            except FileNotFoundError:
                raise Unsettled
            yield room if len(room) == length else bytes(view)

    def _check(self) -> None:
        try:
            facts = os.stat(self.path)
        except OSError:
            raise Unsettled
        if self.steady and (facts.st_size, facts.st_mtime_ns) != (self.facts.st_size, self.facts.st_mtime_ns):
            raise Unsettled

    def _whole(self) -> None:
        with self._read(0, self.size) as data:
            self._check()
            digest = md5(data)
            found = digest.hexdigest() if digest else ""

            def put() -> None:
                etag = self.store.put(self.bucket, self.key, data, **md5_words(digest))
                if found and is_md5(etag) and etag != found:
                    raise OSError("the storage has received something else")

            persist(self.what, put)

    def _part(self, number: int, start: int, length: int) -> None:
        with self._read(start, length) as data:
            digest = md5(data)
            self.digests[number], words = digest.digest() if digest else b"", md5_words(digest)

            def put() -> None:
                self.tags[number] = self.store.put_part(self.bucket, self.key, self.upload, number, data, **words)

            persist(self.what, put)

    def finish(self) -> None:
        if self.upload:
            self._check()
            persist(self.what, self._complete)
            self.upload = ""

    def _complete(self) -> None:
        parts = [{"PartNumber": number, "ETag": self.tags[number]} for number in sorted(self.tags)]
        expected = of_parts([self.digests[number] for number in sorted(self.digests)])
        try:
            found = self.store.complete(self.bucket, self.key, self.upload, parts)
        except Exception as error:
            if code_of(error) != "NoSuchUpload":
                raise
            # The reply to an earlier try was lost, or somebody has removed the upload.
            there = self.store.head(self.bucket, self.key)
            if there.size != self.size or (expected and there.etag != expected):
                raise
            return
        if expected and "-" in found and found != expected:
            raise StorageError("%s failed: the storage has something else; launch again" % self.what, final=False)

    def drop(self) -> None:
        if self.upload:
            try:
                self.store.abort(self.bucket, self.key, self.upload)
            except Exception as error:
                self.store.tell("an unfinished upload stays at s3://%s/%s: %s" % (self.bucket, self.key, error))


def send(store: Store, files: Sequence[tuple[str, str, bool, Callable[[], None]]]) -> None:
    """Upload files: (path, uri, whether it must be steady, what to call when it is there). Raises StorageError."""
    if isinstance(store, CliStore):
        files = _send_bulk(store, files)
    Carrier("saving %d files" % len(files), store.tell).carry(Upload(store, *file) for file in files)


def _send_bulk(store: CliStore, files: Sequence[Any]) -> list[Any]:
    """Send small files with one process per bucket; returns what is still to be sent, one by one."""
    small = [file for file in files if _size(file[0]) <= BULK]
    if len(small) < FEW:
        return list(files)
    sent: set[str] = set()
    for bucket in {split(uri)[0] for _, uri, _, _ in small}:
        folder = tempfile.mkdtemp(prefix="tao-")
        try:
            sent |= _send_folder(store, bucket, [file for file in small if split(file[1])[0] == bucket], folder)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return [file for file in files if file[1] not in sent]


def _send_folder(store: CliStore, bucket: str, files: Sequence[Any], folder: str) -> set[str]:
    """One call for many files, by way of copies that nobody writes to; returns the URIs where they have arrived."""
    sums = {}
    for path, uri, steady, _ in files:
        copy = os.path.join(folder, split(uri)[1])
        try:
            before = os.stat(path)
            os.makedirs(os.path.dirname(copy), exist_ok=True)
            shutil.copyfile(path, copy)
            if steady and os.stat(path).st_mtime_ns != before.st_mtime_ns:
                os.unlink(copy)
            else:
                sums[uri] = file_md5(copy)
        except OSError:
            continue
    words = ["s3", "cp", "--recursive", "--only-show-errors", folder, "s3://%s/" % bucket]
    persist("saving %d files to s3://%s" % (len(files), bucket), partial(store.run, *words))
    prefix = os.path.commonpath([os.path.dirname("/" + split(uri)[1]) for uri in sums] or ["/"])[1:]
    there = persist("listing s3://%s/%s" % (bucket, prefix), partial(store.items, bucket, prefix))
    arrived = {"s3://%s/%s" % (bucket, item.key) for item in there if sums.get("s3://%s/%s" % item[:2]) == item.etag}
    for _, uri, _, done in files:
        if uri in arrived:
            done()
    return arrived


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return BULK + 1
