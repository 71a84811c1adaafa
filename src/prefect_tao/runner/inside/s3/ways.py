"""What the ways to S3 have in common, and what they speak of: objects."""

from __future__ import annotations

import threading
from collections import namedtuple
from contextlib import contextmanager
from functools import partial

from .errors import Changed, code_of
from .sizes import MIB

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

Item = namedtuple("Item", "bucket key size modified etag")  # one object; `modified` in seconds since 1970
LANES = 16  # transfers at once
CHUNK = 256 * 1024


def split(uri: str) -> tuple[str, str]:
    """Bucket and key; a slash at the end belongs to the key."""
    bucket, _, key = uri[len("s3://") :].partition("/")
    return bucket, key.lstrip("/")


def endpoint(env: Mapping[str, str]) -> str | None:
    return env.get("AWS_ENDPOINT_URL") or env.get("S3_ENDPOINT_URL") or None


def region(env: Mapping[str, str]) -> str:
    return env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or env.get("CLOUD_REGION") or "us-east-1"


def addressing(env: Mapping[str, str]) -> str:
    """Storage other than AWS seldom answers to a host name per bucket."""
    return env.get("S3_ADDRESSING_STYLE") or ("path" if endpoint(env) else "auto")


def etag_of(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def checksum_of(answer: Mapping[str, Any]) -> str:
    """The ETag where it says something about the content, else nothing: with a key of its own it does not."""
    hidden = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms") or answer.get("SSECustomerAlgorithm")
    return "" if hidden else etag_of(answer)


@contextmanager
def unchanged() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if code_of(error) in ("PreconditionFailed", "412", "InvalidRange", "416"):
            raise Changed
        raise


def chunks_of(body: Any) -> Iterator[bytes]:
    try:
        yield from iter(partial(body.read, CHUNK), b"")
    finally:
        body.close()


class Way:
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
