"""S3 through the aws command: each call is a process, so many small files go with few of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from contextlib import ExitStack, contextmanager
from functools import partial

from ...atomic import discard
from ...scratch import scratch
from ...sizes import MIB
from ...transfers import LANES, md5
from ...transfers.downloads import RANGED, give_name
from .. import Item, split
from .client import S3Store, addressing, checksum_of, chunks_of, endpoint, is_md5, region

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from typing import Any

FEW, BULK = 4, MIB  # so many, and each at most so large, and the aws command moves them in bulk


class CliError(Exception):
    """What the aws command wrote about its failure."""


class CliStore(S3Store):
    """S3 through the aws command, large files in large parts."""

    piece = 32 * MIB
    few = FEW  # to look for that many objects by one listing is quicker than by a call for each

    def __init__(self, program: str, env: Mapping[str, str]) -> None:
        super().__init__(env, 2)
        self.program = [program, "--region", region(env)]
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

    def call(self, operation: str, scratch: str = "", **words: Any) -> Any:
        """As the base; an answer's body goes to the file `scratch`."""
        options = ["--output", "json", *([scratch] if scratch else [])]
        with ExitStack() as files:
            for name, value in words.items():
                if name == "Body":
                    value = files.enter_context(_written(value))
                elif isinstance(value, dict):
                    value = "file://" + files.enter_context(_written(json.dumps(value).encode()))
                # ContentMD5 is --content-md5 there.
                options += ["--" + re.sub("(?<=[a-z])(?=[A-Z])", "-", name).lower(), str(value)]
            return json.loads(self.run("s3api", operation.replace("_", "-"), *options).strip() or b"{}") or {}

    def seconds(self, moment: Any) -> float:
        """The aws command writes 2026-01-31T10:20:30+00:00 or, from a header, Sat, 31 Jan 2026 10:20:30 GMT."""
        from datetime import datetime
        from email.utils import parsedate_to_datetime

        if "," in moment:
            return parsedate_to_datetime(moment).timestamp()
        return datetime.strptime(moment[:19] + "+0000", "%Y-%m-%dT%H:%M:%S%z").timestamp()

    def items(self, bucket: str, prefix: str, limit: int | None = None) -> list[Item]:
        more: dict[str, Any] = {"MaxItems": limit} if limit else {}
        found = self.call("list_objects_v2", Bucket=bucket, Prefix=prefix, **more).get("Contents") or ()
        return [self.item(bucket, one["Key"], one, "Size") for one in found]

    def read(self, item: Item, start: int, stop: int, scratch: str) -> tuple[Any, Iterator[bytes]]:
        try:
            answer = self.get(item, start, stop, scratch=scratch)
            return checksum_of(answer), chunks_of(open(scratch, "rb"))
        finally:
            discard(scratch)

    # -- in bulk -------------------------------------------------------------------------------------------------------

    def download_bulk(
        self, uri: str, wanted: dict[str, Item], there: Sequence[Item] | None, beside: str
    ) -> dict[str, Item]:
        """As the base; `there` is all that is at `uri`, or None where only a part of it is known."""
        # What came in bulk can be compared with an MD5 only.
        small = {item.key for item in wanted.values() if item.size <= RANGED and is_md5(item.etag)}
        if len(small) < FEW:
            return wanted
        bucket, key = split(uri)
        base = key.rstrip("/") + "/" if key else ""
        others = None if there is None else [item.key for item in there if item.key not in small]
        folder = tempfile.mkdtemp(prefix=".tao-", dir=beside)
        try:
            for words in _filters(base, sorted(small), others):
                words = ["s3", "cp", "--recursive", "--only-show-errors", "s3://%s/%s" % (bucket, base), folder, *words]
                self.retry("download of %s" % uri, partial(self.run, *words))
            return {
                path: item
                for path, item in wanted.items()
                if not self._take(os.path.join(folder, item.key[len(base) :]), path, item)
            }
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _take(self, source: str, path: str, item: Item) -> bool:
        """Give a file that came in bulk its place, if it is what was listed."""
        try:
            if os.path.getsize(source) != item.size or file_md5(source) != item.etag:
                return False
            os.makedirs(os.path.dirname(path), exist_ok=True)
            give_name(source, path, item)
        except OSError:
            return False
        self.has_true_etags = True
        return True

    def send_bulk(self, files: Sequence[Any]) -> Sequence[Any]:
        small = [file for file in files if _size(file[0]) <= BULK and _is_path("/" + split(file[1])[1])]
        if len(small) < FEW:
            return files
        sent: set[str] = set()
        for bucket in {split(uri)[0] for _, uri, _, _ in small}:
            folder = tempfile.mkdtemp(dir=scratch())
            try:
                sent |= self._send_folder(bucket, [file for file in small if split(file[1])[0] == bucket], folder)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        return [file for file in files if file[1] not in sent]

    def _send_folder(self, bucket: str, files: Sequence[Any], folder: str) -> set[str]:
        """One call for many files, by way of copies that nothing writes to; returns the URIs that have arrived."""
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
            except OSError:  # a copy that is not whole must not go
                discard(copy)
        words = ["s3", "cp", "--recursive", "--only-show-errors", folder, "s3://%s/" % bucket]
        self.retry("saving %d files to s3://%s" % (len(files), bucket), partial(self.run, *words))
        prefix = os.path.commonpath([os.path.dirname("/" + split(uri)[1]) for uri in sums] or ["/"])[1:]
        there = self.retry("listing s3://%s/%s" % (bucket, prefix), partial(self.items, bucket, prefix))
        arrived = {self.uri(*item[:2]) for item in there if sums.get(self.uri(*item[:2])) == item.etag}
        for _, uri, _, done in files:
            if uri in arrived:
                done()
        return arrived


@contextmanager
def _written(data: Any) -> Iterator[str]:
    """A file with `data`, for as long as a call takes."""
    handle, path = tempfile.mkstemp(dir=scratch())
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        yield path
    finally:
        discard(path)


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
    handle, path = tempfile.mkstemp(dir=scratch())
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        held.write(file)
    return path


def file_md5(path: str) -> str:
    digest = md5()
    with open(path, "rb") as file:
        for chunk in iter(partial(file.read, MIB), b""):
            digest.update(chunk)
    return str(digest.hexdigest())


def _filters(base: str, keys: Sequence[str], others: Sequence[str] | None) -> list[list[str]]:
    """The options that make the aws command move `keys`; `others` are all that is there beside them, where known."""
    if others is not None and len(others) <= 100 and len(keys) > 100:
        return [[word for key in others for word in ("--exclude", _pattern(key[len(base) :]))]]
    names = [_pattern(key[len(base) :]) for key in keys]
    return [
        ["--exclude", "*", *(word for name in names[at : at + 100] for word in ("--include", name))]
        for at in range(0, len(names), 100)
    ]


def _pattern(name: str) -> str:
    return name.replace("[", "[[]").replace("*", "[*]").replace("?", "[?]")


def _is_path(key: str) -> bool:
    """Whether a file can have this very name: with `..` in it, it would be another one, anywhere."""
    return os.path.normpath(key) == key


def _size(path: str) -> int:
    try:
        return os.path.getsize(path)
    except OSError:
        return BULK + 1
