"""The way to S3 through the aws command."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from contextlib import contextmanager

from .errors import Changed
from .sizes import MIB
from .ways import LANES, Item, Way, addressing, checksum_of, chunks_of, endpoint, etag_of, region, unchanged
from .wholeness import discard

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any


class CliError(Exception):
    """What the aws command wrote about its failure."""


class CliStore(Way):
    """S3 through the aws command; each call is a process, so small files go in bulk and large ones in large parts."""

    piece = 32 * MIB

    def __init__(self, program: str, env: Mapping[str, str]) -> None:
        super().__init__(2)
        self.program = [program, "--region", region(env)]
        self.place = endpoint(env) or "aws"
        if endpoint(env):
            self.program += ["--endpoint-url", str(endpoint(env))]
        self.env = dict(os.environ, PYTHONUTF8="1", AWS_PAGER="", AWS_MAX_ATTEMPTS="3", AWS_RETRY_MODE="standard")
        for name in ("REQUEST_CHECKSUM_CALCULATION", "RESPONSE_CHECKSUM_VALIDATION"):
            self.env["AWS_" + name] = "when_required"  # as with boto3
        if addressing(env) != "auto":
            self.env["AWS_CONFIG_FILE"] = _configured(self.env, addressing(env))

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
        return [Item(bucket, one["Key"], one["Size"], _seconds(one["LastModified"]), etag_of(one)) for one in found]

    def head(self, bucket: str, key: str, **more: Any) -> Item:
        more = {"part_number": more["PartNumber"]} if "PartNumber" in more else {}
        answer = self.call("head-object", bucket=bucket, key=key, **more)
        return Item(bucket, key, answer["ContentLength"], _seconds(answer["LastModified"]), etag_of(answer))

    def read(self, item: Item, start: int, stop: int, scratch: str) -> tuple[str, Iterator[bytes]]:
        words = {"bucket": item.bucket, "key": item.key}
        if item.etag:
            words["if_match"] = '"%s"' % item.etag
        if (start, stop) != (0, item.size):
            words["range"] = "bytes=%d-%d" % (start, stop - 1)
        try:
            with unchanged():
                answer = self.call("get-object", scratch, **words)
            if item.etag and etag_of(answer) != item.etag:
                raise Changed
            return checksum_of(answer), chunks_of(open(scratch, "rb"))
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
            return checksum_of(self.call("put-object", bucket=bucket, key=key, body=path, **_option(more)))

    def begin(self, bucket: str, key: str) -> str:
        return str(self.call("create-multipart-upload", bucket=bucket, key=key)["UploadId"])

    def put_part(self, bucket: str, key: str, upload: str, number: int, data: Any, **more: Any) -> str:
        with self._body(data) as path:
            words = {"bucket": bucket, "key": key, "upload_id": upload, "part_number": number, "body": path}
            return etag_of(self.call("upload-part", **words, **_option(more)))

    def complete(self, bucket: str, key: str, upload: str, parts: list[dict[str, Any]]) -> str:
        with self._body(json.dumps({"Parts": parts}).encode()) as path:
            words = {"bucket": bucket, "key": key, "upload_id": upload, "multipart_upload": "file://" + path}
            return checksum_of(self.call("complete-multipart-upload", **words))

    def abort(self, bucket: str, key: str, upload: str) -> None:
        self.call("abort-multipart-upload", bucket=bucket, key=key, upload_id=upload)


def _configured(env: Mapping[str, str], style: str) -> str:
    """A copy of the image's own configuration with our settings: some can be given in a file only."""
    import configparser

    held = configparser.RawConfigParser(default_section="")
    held.optionxform = str  # type: ignore[assignment, method-assign]
    held.read(env.get("AWS_CONFIG_FILE") or os.path.expanduser("~/.aws/config"), encoding="utf-8")
    profile = env.get("AWS_PROFILE") or env.get("AWS_DEFAULT_PROFILE") or "default"
    section = profile if profile == "default" else "profile " + profile
    if not held.has_section(section):
        held.add_section(section)
    # What stands last counts.
    words = "\nmax_concurrent_requests = %d%s\naddressing_style = %s"
    held.set(section, "s3", words % (LANES, held.get(section, "s3", fallback=""), style))
    handle, path = tempfile.mkstemp(prefix="tao-aws-")
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        held.write(file)
    return path


def _option(more: Mapping[str, Any]) -> dict[str, Any]:
    return {"content_md5": more["ContentMD5"]} if "ContentMD5" in more else {}


def _seconds(text: str) -> float:
    """The aws command writes 2026-01-31T10:20:30+00:00 or, from a header, Sat, 31 Jan 2026 10:20:30 GMT."""
    from datetime import datetime
    from email.utils import parsedate_to_datetime

    if "," in text:
        return parsedate_to_datetime(text).timestamp()
    return datetime.strptime(text[:19] + "+0000", "%Y-%m-%dT%H:%M:%S%z").timestamp()
