"""toy://: a storage scheme as another distribution would add it. Its objects are the files below TOY_ROOT."""

from __future__ import annotations

import os

from prefect_tao.runner.inside.failures import Missing, StorageError
from prefect_tao.runner.inside.stores import Item, Scheme, Store

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any


class Toy(Scheme):
    name, title = "toy", "the toy box"
    keys, settings = ("TOY_KEY",), ("TOY_ROOT",)

    def connect(self, env: Mapping[str, str], say: Callable[[str], None], quick: bool = False) -> Store:
        if env.get("TOY_KEY") != "sesame":
            raise StorageError("the toy box stays closed", remedy="set TOY_KEY")
        made = ToyStore(env["TOY_ROOT"])
        made.say = say
        return made


class ToyStore(Store):
    scheme = "toy"

    def __init__(self, root: str) -> None:
        super().__init__()
        self.place = root

    def path(self, bucket: str, key: str) -> str:
        return os.path.join(self.place, bucket, key)

    def items(self, bucket: str, prefix: str, limit: int | None = None) -> list[Item]:
        top = os.path.join(self.place, bucket)
        paths = (os.path.join(base, name) for base, _, names in os.walk(top) for name in names)
        keys = sorted(os.path.relpath(path, top) for path in paths)
        return [self.head(bucket, key) for key in keys if key.startswith(prefix)][:limit]

    def head(self, bucket: str, key: str) -> Item:
        try:
            facts = os.stat(self.path(bucket, key))
        except OSError:
            raise Missing(f"there is no toy {key}") from None
        if os.path.isdir(self.path(bucket, key)):
            raise Missing(f"{key} is a box of toys")
        return Item(bucket, key, facts.st_size, facts.st_mtime, str(facts.st_mtime_ns))

    def read(self, item: Item, start: int, stop: int, scratch: str) -> tuple[Any, Iterator[bytes]]:
        with open(self.path(item.bucket, item.key), "rb") as file:
            file.seek(start)
            data = file.read(stop - start)
        return None, iter([data[:100], data[100:]])

    def put(self, bucket: str, key: str, data: Any, digest: Any = None) -> str:
        path = self.path(bucket, key)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)
        return ""

    def remove(self, bucket: str, key: str, version: str = "") -> None:
        os.unlink(self.path(bucket, key))


SCHEME = Toy()
