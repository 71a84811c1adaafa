"""The command: a process group that ends when its time is over or when it is asked to."""

from __future__ import annotations

import os
import time

from .fast_imports import signal
from .log import say

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

STOPS = (signal.SIGTERM, signal.SIGINT, signal.SIGALRM)
LEFTOVER_SECONDS = 2
ENDINGS = ("cancel", "preempt", "time_limit")


class Stopped(BaseException):
    """A signal asked for the end before the command was started."""


def stop_reason() -> str:
    """Why we are being stopped: a cancel says so in a file first; a bare signal means that we must make room."""
    try:
        with open(os.environ["TAO_STOP_FILE"], encoding="utf-8") as file:
            said = file.read().strip()
    except (KeyError, OSError):
        return "preempt"
    return said if said in ENDINGS else "cancel"


class Command:
    """The user's command as its own process group, with the signals that reach us passed on to all of it."""

    def __init__(self, time_limit: float | None, grace: float) -> None:
        self.pid = 0  # until it is started
        self.ended_by = "none"
        self.time_limit = time_limit
        self.grace = grace
        self.kill_at: float | None = None
        self.stopping = False
        self.warned = False
        self.is_hurried = False  # we were asked to end
        signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.stop(stop_reason()))
        signal.signal(signal.SIGUSR1, lambda *_: self._near_the_wall())
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGALRM, lambda *_: self._alarm())

    def listen(self) -> None:
        """Let signals in, which have waited so far; the time limit begins."""
        signal.setitimer(signal.ITIMER_REAL, self.time_limit or 0)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def stop(self, reason: str) -> None:
        """Ask the command to end, once; raises Stopped when it has not been started yet."""
        self.is_hurried = True
        if self.stopping:
            return
        self.stopping = True
        self.ended_by = "time_limit" if self.warned and reason == "preempt" else reason
        if not self.pid:
            raise Stopped
        say("stopping the command (%s)" % self.ended_by)
        self.kill_at = time.monotonic() + self.grace
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)
        signal.setitimer(signal.ITIMER_REAL, max(self.grace, 0.001))

    def _near_the_wall(self) -> None:
        self.warned = True
        say("the time limit is near")

    def _alarm(self) -> None:
        if not self.stopping:
            self.stop("time_limit")
        elif self.pid:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except OSError:
            pass

    def run(self, argv: list[str], keep_fds: Sequence[int] = ()) -> int:
        """Run to the end; returns the exit code, 128+n where signal n ended it."""
        for descriptor in keep_fds:
            os.set_inheritable(descriptor, True)
        defaults = STOPS + (signal.SIGUSR1, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
            self.pid = os.posix_spawn(argv[0], argv, os.environ, setpgroup=0, setsigdef=defaults, setsigmask=[])
        finally:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        # The leader stays a zombie for now: as long as it does, nothing else can have the group's number.
        ended: Any = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        self.stopping = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        self._end_leftovers()
        return int(ended.si_status) + (0 if ended.si_code == os.CLD_EXITED else 128)

    def _end_leftovers(self) -> None:
        """What the command left in its group must not go on unwatched. Asked to stop, it has the whole grace."""
        deadline = self.kill_at
        if deadline is None:
            self._signal(signal.SIGTERM)
            deadline = time.monotonic() + LEFTOVER_SECONDS
        os.waitpid(self.pid, 0)
        while self._lives() and time.monotonic() < deadline + LEFTOVER_SECONDS:
            if time.monotonic() >= deadline:
                self._signal(signal.SIGKILL)
            time.sleep(0.02)

    def _lives(self) -> bool:
        """Whether anything of the group still runs; a zombie does not."""
        try:
            os.killpg(self.pid, 0)
        except OSError:
            return False
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open("/proc/%s/stat" % entry, "rb") as file:
                    state, _, group = file.read().rpartition(b")")[2].split()[:3]
            except OSError:
                continue
            if int(group) == self.pid and state not in (b"Z", b"X"):
                return True
        return False
