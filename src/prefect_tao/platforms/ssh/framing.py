"""How a command travels: what it prints lies between two marks, so that the noise of a login shell does not matter.

The command runs in a plain sh whatever the login shell is. Its input ends by its length and not by an EOF: one that
comes late makes sshd drop the whole connection. The end is known by the mark, not by the channel's end: what a command
has left running in the background keeps the channel open.
"""

from __future__ import annotations

import re
import shlex
from secrets import token_hex
from typing import NamedTuple

OUT, ERR = 1, 2
_SAY = """say() { printf '\\n%s\\n' "$1"; printf '\\n%s\\n' "$1" >&2; }; """


class CommandResult(NamedTuple):
    """How a command ended."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def words(self) -> str:
        """What it said about its failure."""
        said = self.stderr.decode(errors="replace").strip() or self.stdout.decode(errors="replace").strip()
        return said.splitlines()[-1] if said else f"exit code {self.code}"


class Framed:
    """One command on its way, and what has come of its answer."""

    def __init__(self, command: str, size: int = 0, is_stream: bool = False) -> None:
        self._mark = token_hex(8)
        self._said = {OUT: bytearray(), ERR: bytearray()}
        self._codes: dict[int, int] = {}
        inner = f"sh -c {shlex.quote(command)}"
        if is_stream:
            script = f"{_SAY}say begin-{self._mark}; exec {inner}"
        else:
            fed = f"head -c {size} | {inner}" if size else f"{inner} </dev/null"
            script = f'{_SAY}say begin-{self._mark}; {fed}; say "end-{self._mark} $?"'
        self.wire = f"exec sh -c {shlex.quote(script)}"
        self._end = re.compile(rf"\nend-{self._mark} (\d+)\n".encode())

    def take(self, stream: int, data: bytes) -> None:
        """Some more of the output, or of the error output."""
        said = self._said[stream]
        seen = max(0, len(said) - 64)
        said += data
        if stream not in self._codes and (end := self._end.search(said, seen)):
            self._codes[stream] = int(end[1])
            del said[end.start() :]

    @property
    def is_whole(self) -> bool:
        """Whether both have come to their end."""
        return len(self._codes) == 2

    @property
    def begun(self) -> bytes | None:
        """What came on the output after the command began; None before that."""
        _, mark, rest = bytes(self._said[OUT]).partition(self._begin)
        return rest if mark else None

    @property
    def answer(self) -> CommandResult:
        """The whole answer."""
        parts = [bytes(self._said[stream]).partition(self._begin)[2] for stream in (OUT, ERR)]
        return CommandResult(self._codes[OUT], *parts)

    @property
    def noise(self) -> str:
        """What was said by an answer that did not come to its end."""
        return " ".join(bytes(said).decode(errors="replace").strip()[-200:] for said in self._said.values()).strip()

    @property
    def _begin(self) -> bytes:
        return f"\nbegin-{self._mark}\n".encode()
