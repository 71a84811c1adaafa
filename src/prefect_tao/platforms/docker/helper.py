"""Short-lived containers that look at the engine's side: no network, an image that is there, removed at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.platforms.docker.client import Engine, Refused
from prefect_tao.platforms.docker.logs import entries
from prefect_tao.platforms.docker.render import PROBE

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
    """The id of a helper that was created and not started; it is gone afterwards. Raises Refused, Unreachable."""
    body = {
        "Image": image,
        "Entrypoint": list(words[:1]),
        "Cmd": list(words[1:]),
        "Labels": {PROBE: ""},
        "User": "0",
        "HostConfig": {"NetworkMode": "none", **host},
    }
    made_id = str(engine.json("POST", "/containers/create", body=body)["Id"])
    try:
        yield made_id
    finally:
        with suppress(Refused, Unreachable):
            engine.ask("DELETE", f"/containers/{made_id}", params={"force": 1, "v": 1})


def run(engine: Engine, image: str, words: Sequence[str], timeout: float = 60.0, **host: Any) -> Ran:
    """Run a helper to its end. Raises Refused when it cannot be started, Unreachable."""
    with made(engine, image, words, **host) as helper:
        engine.ask("POST", f"/containers/{helper}/start", timeout=timeout)
        code = int(engine.json("POST", f"/containers/{helper}/wait", timeout=timeout)["StatusCode"])
        shown = {"stdout": 1, "timestamps": 1}
        with engine.typed(), engine.ask("GET", f"/containers/{helper}/logs", params=shown, stream=True) as answer:
            text = b"".join(entry.data for entry in entries(answer)).decode(errors="replace")
    return Ran(code, text)
