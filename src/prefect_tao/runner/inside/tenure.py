"""One start of a job at a time works in its folder: a platform may start a job again while its last start still lives.

The claim names the start that came last, by its number and a token of its own. Each start touches a file of its own as
long as it lives. One that takes the claim waits until the one before is gone, or has not touched its file for long; the
one before looks at the claim every few seconds, and stops. Where the storage cannot be read, it goes on.
"""

from __future__ import annotations

import _thread
import os
import time

from .atomic import discard, write_atomic
from .command import STOPS
from .failures import RunnerError
from .fast_imports import signal
from .log import say

BEAT_SECONDS, STALE_SECONDS = 10.0, 30.0


class Tenure:
    """The right of this start of the job to write. Without a `path` it is shared with no other start."""

    def __init__(self, path: str) -> None:
        rank = os.environ.get("NODE_RANK") or "0"  # each node of a job follows the same node of the start before
        self.path = path if rank == "0" else path and "%s.rank%s" % (path, rank)
        self.restarts = int(os.environ.get("TAO_RESTARTS") or 0)
        self.token = os.urandom(8).hex()
        self.beat = "%s.%s" % (self.path, self.token)
        self.is_over = not path
        self._is_lost = False

    def take(self) -> None:
        """Take the claim, and wait until the start before this one is surely over; the first one waits for nothing."""
        if not self.path:
            return
        restarts, token = self._claim() or (-1, "")
        if restarts > self.restarts:
            self._is_lost = True
            raise RunnerError("inputs", "a later start of this job has taken over")
        try:
            write_atomic(self.beat, b"")
            write_atomic(self.path, ("%d %s\n" % (self.restarts, self.token)).encode())
        except OSError as error:
            say("WARNING: no later start of this job could notice this one: %s" % error)
            self.leave()
            return
        _thread.start_new_thread(self._watch, (_thread.get_ident(),))
        if token:
            self._await("%s.%s" % (self.path, token))
            discard("%s.%s" % (self.path, token))

    def is_lost(self) -> bool:
        """Whether a later start has taken over: then nothing may be written any more."""
        claim = None if self._is_lost or self.is_over else self._claim()
        self._is_lost |= claim is not None and claim[1] != self.token
        return self._is_lost

    def leave(self) -> None:
        """This start writes nothing more."""
        self.is_over = True
        if self.path:
            discard(self.beat)

    def _claim(self) -> tuple[int, str] | None:
        """The number and the token of the start that came last; None when there was none, or that cannot be told."""
        try:
            with open(self.path, encoding="ascii") as file:
                restarts, token = file.read().split()
            return int(restarts), token
        except (OSError, ValueError):
            return None

    def _await(self, beat: str) -> None:
        """Wait for the end of another start. Ages are told by the storage's own clock, and else by what changes."""
        touched, since, has_spoken = 0, time.monotonic(), False
        while True:
            try:
                now = os.stat(beat).st_mtime_ns
                is_old = os.stat(self.beat).st_mtime_ns - now > STALE_SECONDS * 1e9
            except OSError:
                return
            if now != touched:
                touched, since = now, time.monotonic()
            if is_old or time.monotonic() - since > STALE_SECONDS:
                return
            if not has_spoken:
                say("an earlier start of this job may still run; waiting until it has stopped")
                has_spoken = True
            time.sleep(0.2)

    def _watch(self, main: int) -> None:
        """Show that this start lives, and stop it when another one has taken over."""
        has_spoken = False
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # they are for the thread that waits for the command
        while not self.is_over:
            time.sleep(BEAT_SECONDS)
            if self.is_lost() and not has_spoken:
                has_spoken = True
                say("a later start of this job has taken over; this one stops")
                signal.pthread_kill(main, signal.SIGTERM)
            try:
                if not self.is_over:
                    os.utime(self.beat)
            except OSError:
                pass
