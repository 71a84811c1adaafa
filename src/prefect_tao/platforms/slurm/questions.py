"""The bash files of `scripts/`: how values get into one, and how the answer to one is read.

A script is sent as text: the values that it declares as quoted assignments, then the file as it is. Names that begin
with TAO_ are the file names of `layout`; everything else it is given by name.
"""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.platforms.slurm import layout

# Up to so many names or ids go on a command line; beyond, everything of the user is asked for.
MANY = 100
Value = str | int | Iterable[str]

_DECLARED = re.compile(r"^declare (?:-a )?([a-z_ ]+?)(?: +#.*)?$", re.MULTILINE)
_DEMANDED = re.compile(r"\$\{([a-z_]+):\?\}")
_NAMED = re.compile(r"\$\{?TAO_([A-Z_]+)")


def program(*names: str, **given: Value) -> str:
    """The scripts of these names, one after the other, with the values that they declare."""
    text = "\n".join(source(name) for name in names)
    wanted = {word for line in _DECLARED.findall(text) for word in line.split()} | set(_DEMANDED.findall(text))
    if wanted != given.keys():
        raise TypeError(f"{' and '.join(names)}: {sorted(wanted ^ given.keys())} must be both declared and given")
    return assignments({**_constants(text), **given}) + "\n" + text


def question(*names: str, **given: Value) -> str:
    """Scripts for a login node, to be read by `read_answer`: what they say is all that they print."""
    return f"{{\n{program('common', *names, **given)}}} 3>&1 >/dev/null\n"


@cache
def source(name: str) -> str:
    """The text of one file."""
    return (files("prefect_tao.platforms.slurm") / "scripts" / f"{name}.sh").read_text()


def assignments(values: Mapping[str, Value]) -> str:
    """Lines that give variables of a shell these values, whatever is in them; lists become arrays."""
    return "".join(f"{name}={_quoted(value)}\n" for name, value in values.items())


def _quoted(value: Value) -> str:
    if isinstance(value, str | int):
        return shlex.quote(str(value))
    return f"({' '.join(map(shlex.quote, value))})"


def _constants(text: str) -> dict[str, Value]:
    known = {**vars(layout), "MANY": MANY}
    return {f"TAO_{name}": known[name] for name in dict.fromkeys(_NAMED.findall(text))}


class Answer:
    """What a script on a login node has said: records of a word and its fields, in their order."""

    def __init__(self, records: Iterable[tuple[str, ...]]) -> None:
        self.records = [(word, fields) for word, *fields in records]

    def __iter__(self) -> Iterator[tuple[str, list[str]]]:
        return iter(self.records)

    def __contains__(self, word: str) -> bool:
        return any(said == word for said, _ in self.records)

    def all(self, word: str) -> list[list[str]]:
        """The fields of every record of this word."""
        return [fields for said, fields in self.records if said == word]

    def text(self, word: str) -> str:
        """The last field of the last record of this word; empty where there is none."""
        return next((fields[-1] for said, fields in reversed(self.records) if said == word and fields), "")

    def data(self, word: str) -> bytes:
        """The same where it was sent in base64."""
        return base64.b64decode(self.text(word))


def read_answer(text: str) -> Answer:
    """The answer to a `question`. Raises Unreachable when it is not whole."""
    fields, records = text.split("\0"), []
    rest = fields.pop()
    position = 0
    while position < len(fields):
        count = int(fields[position]) if fields[position].isdigit() else 0
        record = tuple(fields[position + 1 : position + 1 + count])
        if not count or len(record) < count:
            break
        records.append(record)
        position += 1 + count
    if position < len(fields) or rest:
        raise Unreachable("the login node's answer is not whole", "the jobs go on; look again later")
    return Answer(records)
