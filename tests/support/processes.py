"""The processes of this machine, as anybody may see them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import Platform


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
    """The processes of a job, told by the name in their environment."""
    found = []
    for process in _processes():
        try:
            is_marked = f"TAO_JOB_NAME={job}\0".encode() in (process / "environ").read_bytes()
            state = (process / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if is_marked and state not in "ZX":
            found.append(process.name)
    return found


class OnThisMachine:
    """For the contract of a platform whose jobs run on the machine of the tests: they look into its process table."""

    def processes(self, platform: Platform, handle: JobHandle) -> list[str] | None:
        return living(handle.name)

    def command_lines(self, platform: Platform) -> list[str]:
        return command_lines()
