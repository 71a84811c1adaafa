"""The S3 client: what boto3 and the aws command have in common, and boto3's way."""

from __future__ import annotations

import base64
import re
from abc import abstractmethod
from functools import partial

from ...failures import Changed, StorageError, is_local
from ...sizes import MIB
from ...transfers import LANES, md5
from .. import PIECE, Item, Parts, Store, split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import Any

CHUNK = 256 * 1024
DECIDING = ("ChecksumCRC32", "ChecksumSHA1", "ChecksumSHA256")  # which botocore compares itself, on every machine
PASSING = "RequestTimeout SlowDown Throttling ThrottlingException TooManyRequests InternalError ServiceUnavailable"
PASSING += " BadDigest RequestTimeoutException OperationAborted ConditionalRequestConflict"
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
    "FlexibleChecksumError": "the data was damaged in the storage or on its way; launch again, or upload it again",
}
for _code in ("AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken", "403"):
    REMEDIES[_code] = KEYS
PHRASES = (
    ("unable to locate credentials", "set ACCESS_KEY and SECRET_KEY"),
    ("partial credentials", "set both ACCESS_KEY and SECRET_KEY"),
    ("could not connect", "check S3_ENDPOINT_URL, and the network of the machine that asks"),
    ("timeout", "check S3_ENDPOINT_URL, and the network of the machine that asks"),
    ("ssl", "check S3_ENDPOINT_URL and the certificates of the image (AWS_CA_BUNDLE)"),
    ("invalid endpoint", "write S3_ENDPOINT_URL as https://<host>"),
    ("invalid bucket name", "correct the bucket's name"),
)


# -- what is asked, and what is answered -------------------------------------------------------------------------------


def endpoint(env: Mapping[str, str]) -> str | None:
    return env.get("AWS_ENDPOINT_URL") or env.get("S3_ENDPOINT_URL") or None


def region(env: Mapping[str, str]) -> str:
    return env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION") or env.get("CLOUD_REGION") or "us-east-1"


def addressing(env: Mapping[str, str]) -> str:
    """Storage other than AWS seldom answers to a host name per bucket."""
    return env.get("S3_ADDRESSING_STYLE") or ("path" if endpoint(env) else "auto")


def etag_of(answer: Mapping[str, Any]) -> str:
    return str(answer.get("ETag", "")).strip('"')


def checksum_of(answer: Mapping[str, Any]) -> tuple[str, bool]:
    """The ETag where it says something about the content, and whether a checksum has decided already."""
    hidden = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms") or answer.get("SSECustomerAlgorithm")
    decided = any("-" not in answer.get(name, "-") for name in DECIDING)
    return "" if hidden else etag_of(answer), decided


def is_md5(etag: str) -> bool:
    return len(etag) == 32 and all(char in "0123456789abcdef" for char in etag)


def of_parts(digests: Sequence[bytes]) -> str:
    """The ETag of an object that was uploaded in parts of these MD5s."""
    return "%s-%d" % (md5(b"".join(digests)).hexdigest(), len(digests)) if all(digests) else ""


def content_md5(digest: Any) -> dict[str, str]:
    found = digest.digest() if digest else b""
    return {"ContentMD5": base64.b64encode(found).decode()} if found else {}


def code_of(error: BaseException) -> str:
    """The storage's own word for the error; boto3 and the aws command write it in one form."""
    found = re.search(r"An error occurred \((\w+)\)", str(error))
    return found.group(1) if found else ""


def _status_of(error: BaseException) -> int:
    response = getattr(error, "response", None)
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode") if isinstance(response, dict) else None
    code = code_of(error)
    return int(status or (code if code.isdigit() else 0))


def chunks_of(body: Any) -> Iterator[bytes]:
    try:
        yield from iter(partial(body.read, CHUNK), b"")
    finally:
        body.close()


# -- what both clients have --------------------------------------------------------------------------------------------


class S3Store(Store):
    """S3: how it distinguishes one content from another, and what its errors mean."""

    scheme = "s3"

    def __init__(self, env: Mapping[str, str], hands: int) -> None:
        super().__init__(hands)
        self.place = endpoint(env) or "aws"
        self.has_true_etags = False  # whether the ETag of an object has been the MD5 of what came or went
        self.odd: dict[Item, str] = {}  # what came although the ETag says otherwise

    @abstractmethod
    def call(self, operation: str, **words: Any) -> Any:
        """Ask S3, in boto3's words; returns its answer."""

    def seconds(self, moment: Any) -> float:
        return float(moment.timestamp())

    def item(self, bucket: str, key: str, answer: Mapping[str, Any], size: str = "ContentLength") -> Item:
        return Item(bucket, key, answer[size], self.seconds(answer["LastModified"]), etag_of(answer))

    def head(self, bucket: str, key: str) -> Item:
        return self.item(bucket, key, self.call("head_object", Bucket=bucket, Key=key))

    def get(self, item: Item, start: int, stop: int, **words: Any) -> Any:
        """Ask for bytes of an object, as it was listed. Raises Changed."""
        if item.etag:  # there are stores without
            words["IfMatch"] = '"%s"' % item.etag
        if (start, stop) != (0, item.size):
            words["Range"] = "bytes=%d-%d" % (start, stop - 1)
        try:
            answer = self.call("get_object", Bucket=item.bucket, Key=item.key, **words)
        except Exception as error:
            if code_of(error) in ("PreconditionFailed", "412", "InvalidRange", "416"):
                raise Changed
            raise
        if item.etag and etag_of(answer) != item.etag:
            raise Changed
        return answer

    def put(self, bucket: str, key: str, data: Any, digest: Any = None) -> str:
        answer = self.call("put_object", Bucket=bucket, Key=key, Body=data, **content_md5(digest))
        if not self.received(answer, digest.hexdigest() if digest else ""):
            raise OSError("the storage has received something else")
        return str(answer.get("VersionId") or "")

    def claim(self, uri: str, text: str) -> str:
        from tempfile import TemporaryDirectory

        bucket, key = split(uri)
        if not self.retry("claiming %s" % uri, partial(self._put_new, bucket, key, text.encode())):
            return ""
        item = self.retry("reading %s" % uri, partial(self.head, bucket, key))
        with TemporaryDirectory(prefix="tao-") as folder:
            return b"".join(self.read(item, 0, item.size, folder + "/claim")[1]).decode()

    def _put_new(self, bucket: str, key: str, data: bytes) -> bool:
        """Store an object unless there is one; false where storage or its client cannot tell that."""
        try:
            self.put_if_new(bucket, key, data)
        except Exception as error:
            if code_of(error) in ("NotImplemented", "501") or "Unknown options" in str(error):
                return False
            if code_of(error) not in ("PreconditionFailed", "412"):
                raise
        return True

    def put_if_new(self, bucket: str, key: str, data: bytes) -> None:
        """Store an object; the storage refuses that where there is one."""
        self.call("put_object", Bucket=bucket, Key=key, Body=data, IfNoneMatch="*")

    def remove(self, bucket: str, key: str, version: str = "") -> None:
        """In a bucket with versions only the deletion of the very version leaves nothing."""
        self.call("delete_object", Bucket=bucket, Key=key, **({"VersionId": version} if version else {}))

    def begin(self, bucket: str, key: str) -> Parts:
        return S3Parts(self, bucket, key)

    def received(self, answer: Mapping[str, Any], expected: str) -> bool:
        """Whether the storage has received what was sent, as far as its ETag shows that."""
        etag = checksum_of(answer)[0]
        if not expected or ("-" not in etag if "-" in expected else not is_md5(etag)):
            return True
        self.has_true_etags = self.has_true_etags or etag == expected
        return etag == expected

    def step(self, item: Item) -> int:
        """That of the parts it was uploaded in, so that the ETag can be compared at the end."""
        if "-" not in item.etag:
            return PIECE
        first = partial(self.call, "head_object", Bucket=item.bucket, Key=item.key, PartNumber=1)
        try:
            length = int(self.retry("download of %s" % self.uri(*item[:2]), first)["ContentLength"])
        except StorageError:  # not every store knows of parts; if something else is wrong, the download will say so
            return PIECE
        return length if 5 * MIB <= length <= 128 * MIB else PIECE

    def check(self, item: Item, checksum: Any, md5: Callable[[], str], parts: Sequence[bytes] = ()) -> bool:
        """As the base. An ETag counts once another object of this storage had its own MD5 there: some look like it.

        What differs is fetched once more. If the same comes again, it is refused where ETags count, and otherwise
        taken with a warning. Raises StorageError.
        """
        etag, decided = checksum or ("", False)
        if decided:
            return True
        found = md5() if is_md5(etag) else of_parts(parts) if parts else ""
        if not found or found.partition("-")[2] != etag.partition("-")[2]:
            return True
        if found == etag:
            self.has_true_etags = True
            self.odd.pop(item, None)
            return True
        if self.odd.get(item) != found:
            self.odd[item] = found
            return False
        if self.has_true_etags:
            raise self.refutation(item)
        uri = self.uri(*item[:2])
        self.say("WARNING: %s came twice with the MD5 %s, and its ETag is %s; taken as it is" % (uri, found, etag))
        return True

    def is_refuted(self, item: Item) -> bool:
        return self.has_true_etags and item in self.odd

    def refutation(self, item: Item) -> StorageError:
        text = "%s does not have the checksum that the storage shows for it" % self.uri(*item[:2])
        return StorageError(text, final=False, remedy=REMEDIES["FlexibleChecksumError"])

    def is_final(self, error: Exception) -> bool:
        if isinstance(error, StorageError):
            return error.final
        if is_local(error) or isinstance(error, UnicodeError):
            return True
        code, status = code_of(error), _status_of(error)
        if code in PASSING.split() or status in (408, 409, 429) or (status >= 500 and status != 501):
            return False
        if code or 400 <= status < 500:
            return True
        text = str(error).lower()
        wrong = (phrase for phrase, _ in PHRASES if phrase.endswith(("credentials", "endpoint", "bucket name")))
        return any(phrase in text for phrase in wrong)

    def code(self, error: Exception) -> str:
        return code_of(error) or super().code(error)

    def remedy(self, code: str, text: str) -> str:
        return REMEDIES.get(code) or next((advice for phrase, advice in PHRASES if phrase in text.lower()), "")


class S3Parts(Parts):
    """S3's multipart upload."""

    def __init__(self, store: S3Store, bucket: str, key: str) -> None:
        self.store, self.place = store, (bucket, key)
        self.words = {"Bucket": bucket, "Key": key}
        self.words["UploadId"] = store.call("create_multipart_upload", **self.words)["UploadId"]
        self.sent: dict[int, tuple[str, bytes]] = {}  # the ETag and the MD5 of each part

    def put(self, number: int, data: Any, digest: Any) -> None:
        words = {"PartNumber": number, **self.words, **content_md5(digest)}
        self.sent[number] = etag_of(self.store.call("upload_part", Body=data, **words)), digest.digest()

    def complete(self, size: int) -> None:
        sent = sorted(self.sent.items())
        parts = {"Parts": [{"PartNumber": number, "ETag": tag} for number, (tag, _) in sent]}
        expected = of_parts([digest for _, (_, digest) in sent])
        try:
            answer = self.store.call("complete_multipart_upload", MultipartUpload=parts, **self.words)
        except Exception as error:
            if code_of(error) != "NoSuchUpload":
                raise
            # The reply to an earlier try was lost, or somebody has removed the upload.
            there = self.store.head(*self.place)
            if there.size == size and there.etag == (expected or there.etag):
                return
            raise
        if not self.store.received(answer, expected):
            text = "saving %s failed: the storage has something else" % self.store.uri(*self.place)
            raise StorageError(text, final=False, remedy="launch again")

    def abort(self) -> None:
        self.store.call("abort_multipart_upload", **self.words)


# -- boto3 -------------------------------------------------------------------------------------------------------------


class BotoStore(S3Store):
    """S3 through boto3."""

    def __init__(self, boto3: Any, env: Mapping[str, str], connect_seconds: int = 10, read_seconds: int = 60) -> None:
        super().__init__(env, 6)
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
        except Exception as error:  # an address, a region or keys that cannot be
            raise self._unusable(error)
        shape = self.client.meta.service_model.operation_model("GetObject").input_shape
        self.asking = {"ChecksumMode": "ENABLED"} if "ChecksumMode" in shape.members else {}

    def _unusable(self, error: Exception) -> StorageError:
        if "credentials" in str(error):
            return self.explained("opening S3", error)
        remedy = "write the endpoint as https://<host>, and the region as in us-east-1"
        return StorageError("S3_ENDPOINT_URL or CLOUD_REGION is not valid", remedy=remedy)

    def items(self, bucket: str, prefix: str, limit: int | None = None) -> list[Item]:
        return [item for found, _ in self.pages(bucket, prefix, limit=limit) for item in found]

    def pages(
        self, bucket: str, prefix: str, delimiter: str = "", limit: int | None = None
    ) -> Iterator[tuple[list[Item], list[str]]]:
        words = {"Delimiter": delimiter} if delimiter else {}
        for page in self.client.get_paginator("list_objects_v2").paginate(
            Bucket=bucket, Prefix=prefix, PaginationConfig={"MaxItems": limit, "PageSize": limit}, **words
        ):
            found = page.get("Contents", ())
            yield (
                [self.item(bucket, one["Key"], one, "Size") for one in found],
                [one["Prefix"] for one in page.get("CommonPrefixes", ())],
            )

    def call(self, operation: str, **words: Any) -> Any:
        return getattr(self.client, operation)(**words)

    def put_if_new(self, bucket: str, key: str, data: bytes) -> None:
        """As the base; the header is set by hand, because many images have a boto3 that does not know it."""

        def conditional(params: Any, **_: Any) -> None:
            params["headers"]["If-None-Match"] = "*"

        event = ("before-call.s3.PutObject", conditional)
        self.client.meta.events.register(*event)
        try:
            self.call("put_object", Bucket=bucket, Key=key, Body=data)
        finally:
            self.client.meta.events.unregister(*event)

    def read(self, item: Item, start: int, stop: int, scratch: str) -> tuple[Any, Iterator[bytes]]:
        """As the base; boto3 compares what comes with the checksum of the whole object, where it has one."""
        answer = self.get(item, start, stop, **(self.asking if (start, stop) == (0, item.size) else {}))
        return checksum_of(answer), chunks_of(answer["Body"])
