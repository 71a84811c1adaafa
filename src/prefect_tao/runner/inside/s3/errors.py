"""What went wrong with S3, in words that say what to do about it."""

from __future__ import annotations

import re

from ..errors import FINAL_ERRORS, FULL, ROOM

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
    if code in PASSING.split() or status in (408, 409, 429) or (status >= 500 and status != 501):
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
