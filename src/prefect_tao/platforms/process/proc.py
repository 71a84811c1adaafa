"""What the kernel knows of processes. Standard library only: the starter imports it without any package."""

from __future__ import annotations

import os
from collections import namedtuple


# Not typing.NamedTuple: to import typing takes longer than all the rest that a job's start does here.
class Ident(namedtuple("Ident", ("pid", "ticks", "boot"))):
    """A process beyond doubt: a number can be reused, a number with its start and its boot cannot."""

    __slots__ = ()
    pid: int
    ticks: int
    boot: str

    def __str__(self) -> str:
        return f"{self.pid}.{self.ticks}.{self.boot}"

    @classmethod
    def parse(cls, text: str) -> Ident | None:
        """The identity in `text`, or None."""
        parts = text.split(".")
        if len(parts) != 3 or not (parts[0].isdigit() and parts[1].isdigit()):
            return None
        return cls(int(parts[0]), int(parts[1]), parts[2])


NOBODY = Ident(0, 0, "")


def boot_id() -> str:
    """This boot of the machine, shortened."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read()[:8]


def _stat(pid: int) -> tuple[str, int] | None:
    """State letter and start time of `pid`, or None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0].decode(), int(fields[19])


def identify(pid: int) -> Ident | None:
    """The identity of a living process."""
    facts = _stat(pid)
    return Ident(pid, facts[1], boot_id()) if facts else None


def life(ident: Ident) -> str | None:
    """The state letter of the process, or None when it is over. A zombie is over: it only waits to be counted."""
    if ident.boot != boot_id():
        return None
    facts = _stat(ident.pid)
    if facts is None or facts[1] != ident.ticks or facts[0] in "ZX":
        return None
    return facts[0]


def send(ident: Ident, number: int) -> bool:
    """Send a signal to exactly this process; False when it is over."""
    import signal

    try:
        descriptor = os.pidfd_open(ident.pid)
    except OSError:
        return False
    try:
        if life(ident) is None:
            return False
        signal.pidfd_send_signal(descriptor, number)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


def carriers(prefix: str) -> dict[str, list[Ident]]:
    """Living processes, oldest first, by the job folder in their environment, for folders that start with `prefix`.

    The environment is inherited, so this finds children that left the job's process group or session too.
    """
    wanted = b"TAO_WORK_DIR=" + os.fsencode(prefix)
    found: dict[str, list[Ident]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/environ", "rb") as file:
                marks = [line for line in file.read().split(b"\0") if line.startswith(wanted)]
        except OSError:
            continue
        ident = identify(int(entry)) if marks else None
        if ident and life(ident):
            found.setdefault(os.fsdecode(marks[0].partition(b"=")[2]), []).append(ident)
    return {folder: sorted(idents, key=lambda ident: ident.ticks) for folder, idents in found.items()}


def members(folder: str) -> list[Ident]:
    """Every living process of the job in `folder`, oldest first.

    None is said only after two looks: what forks and ends during the first one hides its child from it.
    """
    return carriers(folder).get(folder) or carriers(folder).get(folder, [])


def oom_kills() -> int:
    """How often the kernel killed a process for want of memory since this boot."""
    try:
        with open("/proc/vmstat", encoding="ascii") as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    except OSError:
        pass
    return 0
