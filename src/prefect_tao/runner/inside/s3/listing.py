"""What is at a place in S3."""

from __future__ import annotations

from functools import partial

from .awscli import CliStore
from .bulk import FEW
from .errors import Missing
from .persistence import persist
from .transfers import Carrier, Transfer
from .ways import split

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .connecting import Store
    from .ways import Item


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
