"""The processes of this machine, as anybody may see them: for the contract of platforms whose jobs run here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import is_our_name
from prefect_tao.jobs.platform import Platform
from prefect_tao.platforms.process import client

MARK = b"TAO_JOB_NAME="


def _processes() -> Iterator[Path]:
    return (Path("/proc") / entry for entry in os.listdir("/proc") if entry.isdigit())


def command_lines() -> list[str]:
    """What every process was started with."""
    lines = []
    for process in _processes():
        try:
            lines.append((process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines


def living(job: str) -> list[str]:
    """The processes of a job, recognized by the name in their environment."""
    return _living().get(job, [])


def living_jobs() -> list[str]:
    """The names of all jobs that have a process here."""
    return sorted(name for name in _living() if is_our_name(name))


def _living() -> dict[str, list[str]]:
    """The numbers of living processes by the name of their job."""
    found: dict[str, list[str]] = {}
    for process in _processes():
        try:
            lines = (process / "environ").read_bytes().split(b"\0")
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        names = [line.removeprefix(MARK).decode(errors="replace") for line in lines if line.startswith(MARK)]
        if names and state not in "ZX":
            found.setdefault(names[0], []).append(process.name)
    return found


class OnThisMachine:
    """For the contract of a platform whose jobs run on the machine of the tests: they look into its process table."""

    another: Callable[[Platform], Platform]

    @contextmanager
    def elsewhere(self, platform: Platform) -> Iterator[Platform]:
        """Meanwhile this machine is another one, which shares its disk."""
        with patch.object(client, "machine", lambda: "another-machine"):
            yield self.another(platform)

    def processes(self, platform: Platform, handle: JobHandle) -> list[str] | None:
        return living(handle.name)

    def command_lines(self, platform: Platform) -> list[str]:
        return command_lines()
