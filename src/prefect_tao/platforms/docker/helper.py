"""Short-lived containers that look at the engine's side: no network, an image that is there, removed at once.

Through them the files of the engine's host can be seen where nothing else leads there, and those of its volumes.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import groupby
from secrets import token_hex
from typing import Any, NamedTuple

from prefect_tao.jobs.errors import InvalidInput, TaoError, Unreachable
from prefect_tao.jobs.retrying import retry_blocking
from prefect_tao.platforms.docker.client import NOT_FOUND, Engine, log_entries
from prefect_tao.platforms.docker.render import PROBE, VOLUME_SCHEME, bind, volume
from prefect_tao.platforms.doubt import Refused, is_in_doubt
from prefect_tao.platforms.files import (
    LISTED,
    Files,
    StatusFile,
    free_bytes,
    look_for_status,
    newest_status,
    really_below,
)
from prefect_tao.runner.inside.schemes import LOCAL_SCHEMES

HOST = "the engine's host"
LOOK = "/look"
REMOVE_SECONDS = 5.0
EMPTY = bytes(10240)  # as an archive without a file


class Ran(NamedTuple):
    """How a helper ended and what it printed to standard output."""

    code: int
    text: str


def images(engine: Engine) -> list[str]:
    """Ids of the images that are there, the smallest first: it is the quickest to start."""
    found = sorted(engine.json("GET", "/images/json"), key=lambda image: int(image.get("Size") or 0))
    return [str(image["Id"]) for image in found]


@contextmanager
def any_image(engine: Engine) -> Iterator[str]:
    """An image for a helper that is never started: the smallest there is, else an empty one that goes again."""
    if there := images(engine):
        yield there[0]
        return
    told = engine.json("POST", "/images/create", params={"fromSrc": "-"}, data=EMPTY)
    made_id = str(told["status"])
    try:
        yield made_id
    finally:
        with suppress(Refused, Unreachable):
            engine.ask("DELETE", f"/images/{made_id}")


@contextmanager
def made(engine: Engine, image: str, words: Sequence[str] = ("true",), **host: Any) -> Iterator[str]:
    """The name of a helper that was created and not started; it is gone afterwards. Raises Refused, Unreachable."""
    body = {
        "Image": image,
        "Entrypoint": list(words[:1]),
        "Cmd": list(words[1:]),
        "Labels": {PROBE: ""},
        "User": "0",
        "HostConfig": {"NetworkMode": "none", **host},
    }
    name = f"tao-probe-{token_hex(8)}"  # so that one whose creation got no answer can be removed too
    try:
        try:
            engine.ask("POST", "/containers/create", params={"name": name}, body=body)
        except Refused as error:
            if not is_in_doubt(error) or not _is_there(engine, name):
                raise
        yield name
    finally:
        with suppress(Refused, Unreachable):
            retry_blocking(lambda: _remove(engine, name), REMOVE_SECONDS, is_in_doubt)


def _is_there(engine: Engine, name: str) -> bool:
    return bool(engine.json("GET", "/containers/json", params={"all": 1, "filters": json.dumps({"name": [name]})}))


def _remove(engine: Engine, name: str) -> None:
    engine.ask("DELETE", f"/containers/{name}", params={"force": 1, "v": 1})


def run(engine: Engine, image: str, words: Sequence[str], timeout: float = 60.0, **host: Any) -> Ran:
    """Run a helper to its end. Raises Refused when it cannot be started, Unreachable."""
    with made(engine, image, words, **host) as helper:
        engine.ask("POST", f"/containers/{helper}/start", timeout=timeout)
        code = int(engine.json("POST", f"/containers/{helper}/wait", timeout=timeout)["StatusCode"])
        shown = {"stdout": 1, "timestamps": 1}
        with engine.stream("GET", f"/containers/{helper}/logs", params=shown) as answer:
            text = b"".join(entry.data for entry in log_entries(answer)).decode(errors="replace")
    return Ran(code, text)


# -- files -------------------------------------------------------------------------------------------------------------


class HelperFiles(Files):
    """The engine's host through containers that mount what is asked for, read-only; also the engine's volumes."""

    where = HOST
    progress_seconds = 30.0

    def __init__(self, engine: Engine) -> None:
        self.engine = engine

    def exists(self, path: str) -> bool:
        with self._mounting(path) as (look, inside):
            return bool(look) and (inside == LOOK or self.engine.has(look, inside))

    @contextmanager
    def _mounting(self, path: str) -> Iterator[tuple[str, str]]:
        """A helper that mounts what holds `path`, and where that is in it; the id is empty when there is no such."""
        mount, inside = _mounted(path)
        if mount["Type"] == "volume" and not self._has_volume(mount["Source"]):
            yield "", inside
            return
        with ExitStack() as held:
            try:
                image = held.enter_context(any_image(self.engine))
                look = held.enter_context(made(self.engine, image, Mounts=[mount]))
            except Refused as error:
                if "does not exist" not in error.said:
                    raise _odd(path, error) from error
                look = ""
            yield look, inside

    def _has_volume(self, name: str) -> bool:
        """Whether there is such a volume; a look into it would make it."""
        try:
            self.engine.ask("GET", f"/volumes/{name}")
        except Refused as error:
            if error.status != NOT_FOUND:
                raise
            return False
        return True

    def names(self, folders: Sequence[str]) -> dict[str, list[str]]:
        """All folders that have one place two levels above in one helper."""
        found = {}
        for above, below in groupby(sorted(folders), key=lambda folder: folder.rsplit("/", 2)[0]):
            with self._mounting(above) as (look, inside):
                for folder in below if look else ():
                    if names := self.engine.names(look, inside + folder.removeprefix(above)):
                        found[folder] = names
        return found

    def entries(self, path: str) -> list[str]:
        mount, inside = _mounted(path)
        try:
            ran = self._ran(["ls", "-1ALp", inside], mount)
        except Refused as error:
            raise (self.missing(path) if "does not exist" in error.said else _odd(path, error)) from error
        if ran.code and not self.exists(path):
            raise self.missing(path)
        if ran.code not in LISTED:
            raise Unreachable(f"{path} cannot be listed on {self.where}", "look at it there")
        if ran.text.strip() == inside:
            return [path]
        return [f"{path.rstrip('/')}/{name}" for name in ran.text.splitlines()]

    def _ran(self, words: list[str], mount: dict[str, Any]) -> Ran:
        """Run where it works: the smallest image may be one without core tools."""
        last: Refused | None = None
        for image in images(self.engine)[:5]:
            try:
                return run(self.engine, image, words, Mounts=[mount])
            except Refused as error:
                if "executable file not found" not in error.said and "no such file" not in error.said:
                    raise
                last = error
        if last:
            raise last
        raise InvalidInput(
            f"paths on {self.engine.shown} cannot be looked at, because no image is there",
            "pull the image of the job on that engine first",
        )

    def read(self, path: str, limit: int) -> bytes | None:
        with self._mounting(path) as (look, inside):
            return self.engine.get(look, inside, limit) if look else None

    def within(self, folder: str, paths: Sequence[str]) -> list[str]:
        """As the helper sees links: one that names a path of the host leads out."""
        mount, inside = _mounted(folder)
        seen = {inside + path.removeprefix(folder): path for path in paths}
        try:
            kept = really_below(
                self.where, inside, list(seen), lambda command: self._ran(["/bin/sh", "-c", command], mount).text
            )
        except Refused as error:
            raise _odd(folder, error) from error
        return [seen[path] for path in kept]

    def free(self, path: str) -> int | None:
        mount, inside = _mounted(path)
        try:
            return free_bytes(self._ran(["df", "-Pk", inside], mount).text)
        except (Refused, TaoError):
            return None

    def statuses(self, folders: Sequence[str]) -> dict[str, StatusFile]:
        found: dict[str, StatusFile] = {}
        for above, group in groupby(sorted(folders), key=posixpath.dirname):
            below = list(group)
            mount, inside = _mounted(above)
            try:
                look = look_for_status([inside + folder.removeprefix(above) for folder in below])
                found |= newest_status(self._ran(["/bin/sh", "-c", look], mount).text, below)
            except (Refused, InvalidInput):
                continue
        return found

    def toolkit(self) -> str:
        try:
            ran = self._ran([f"{LOOK}/nvidia-ctk", "--version"], bind("/usr/bin", LOOK, read_only=True))
        except (Refused, TaoError):
            return ""
        return ran.text if ran.code == 0 else ""


def _mounted(path: str) -> tuple[dict[str, Any], str]:
    """The mount that shows `path`, and where it is then."""
    if not path.startswith(VOLUME_SCHEME):
        return bind(path, LOOK, read_only=True), LOOK
    name, _, rest = path.removeprefix(VOLUME_SCHEME).partition("/")
    return volume(name, LOOK, read_only=True), posixpath.join(LOOK, rest).rstrip("/")


def _odd(path: str, error: Refused) -> Unreachable:
    return Unreachable(f"{path} could not be looked at: {error.said}", "look at it on the engine's host")


def clean(uri: str) -> str:
    """The path on the engine's host that `uri` means. Raises InvalidInput for a location elsewhere."""
    scheme, marker, rest = uri.partition("://")
    if uri.startswith(VOLUME_SCHEME):
        return uri.rstrip("/")
    if marker and scheme not in LOCAL_SCHEMES:
        raise InvalidInput(f"{uri} is not on the engine's host", "give a path or a file:// location")
    path = "/" + rest.lstrip("/") if marker else uri
    if not path.startswith("/"):
        raise InvalidInput(f"{uri} is not an absolute path", "give the whole path, as the engine's host has it")
    return posixpath.normpath(path)
