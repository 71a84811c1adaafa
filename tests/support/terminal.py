"""A program at a terminal of its own: what a person sees of it, and the keys that are pressed."""

from __future__ import annotations

import fcntl
import functools
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence

CTRL_C = b"\x03"
ROWS, COLUMNS = 40, 160
# Colours, cursor movements and the like: what a terminal obeys and does not show.
CONTROLS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r")


class Terminal:
    """One program with a real terminal: Ctrl-C comes as the kernel sends it, to all that is in the foreground."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str]) -> None:
        self._end, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = subprocess.Popen(
            words,
            env={**env, "TERM": "xterm-256color"},
            stdin=inside,
            stdout=inside,
            stderr=inside,
            start_new_session=True,
            preexec_fn=functools.partial(fcntl.ioctl, 0, termios.TIOCSCTTY, 0),
        )
        os.close(inside)
        self.shown = ""

    def _read(self, seconds: float) -> bool:
        """Whether something new was shown; False also when the program has let go of the terminal."""
        if not select.select([self._end], [], [], seconds)[0]:
            return False
        try:
            new = os.read(self._end, 65536)
        except OSError:
            return False
        self.shown += CONTROLS.sub("", new.decode(errors="replace"))
        return bool(new)

    def sees(self, *words: str, seconds: float = 90.0) -> None:
        """Wait until the program has shown lines with all `words`, which are patterns; an AssertionError with what it
        showed when it has not.
        """
        deadline = time.monotonic() + seconds
        while missing := [word for word in words if not re.search(word, self.shown)]:
            assert time.monotonic() < deadline, f"the terminal does not show {missing}: {self.shown[-4000:]}"
            if not self._read(1.0) and self.process.poll() is not None and not self._read(0.1):
                assert all(re.search(word, self.shown) for word in words), f"no {missing}: {self.shown[-4000:]}"

    def press(self, keys: bytes) -> None:
        """Press keys, as a person does."""
        os.write(self._end, keys)

    def ends(self, seconds: float = 60.0) -> int:
        """The exit code, once the program has ended."""
        deadline = time.monotonic() + seconds
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it did not end: {self.shown[-4000:]}"
            self._read(0.2)
        while self._read(0.1):
            pass
        return int(self.process.returncode)

    def close(self) -> None:
        """End the program, should it still run, and its terminal."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._end)
