"""What the kernel knows of processes. Standard library only: the starter imports it without any package."""

from __future__ import annotations

import os

# For annotations only: to import it would cost each job's start some of its time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


# Not a NamedTuple: to import typing or collections takes longer than all the rest that a job's start does here.
class Ident:
    """A process beyond doubt: a number can be reused, a number with its start, its boot and its place cannot."""

    __slots__ = ("boot", "pid", "place", "ticks")

    def __init__(self, pid: int, ticks: int, boot: str, place: str = "") -> None:
        self.pid, self.ticks, self.boot, self.place = pid, ticks, boot, place

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ident) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __str__(self) -> str:
        return f"{self.pid}.{self.ticks}.{self.boot}.{self.place}"

    @classmethod
    def parse(cls, text: str) -> Ident | None:
        """The identity in `text`, or None."""
        parts = text.split(".", 3)  # a place may be named after a host, with dots
        if len(parts) < 3 or not (parts[0].isdigit() and parts[1].isdigit()):
            return None
        # Who wrote it without a place could only mean this one.
        return cls(int(parts[0]), int(parts[1]), parts[2], parts[3] if len(parts) > 3 else place())


NOBODY = Ident(0, 0, "")


def place() -> str:
    """Where process numbers mean what they mean to us: this machine, and on it this pid namespace."""
    try:
        namespace = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        namespace = 0
    return f"{machine()}-{namespace}"


def site(ident: Ident | None = None) -> str:
    """The machine of a process, or this one, as a site: its own id, which no reboot changes. Raises OSError."""
    return f"machine {ident.place.rpartition('-')[0] if ident else machine()}"


def machine() -> str:
    """This machine's id. Raises OSError for one that cannot be read, because then nothing tells which it is."""
    try:
        with open("/etc/machine-id", encoding="ascii") as file:
            text = file.read().strip()
    except (FileNotFoundError, ValueError):
        text = ""
    # Images ship it empty or "uninitialized"; then the host's name must do.
    return text[:12] if len(text) == 32 else os.uname().nodename


def is_here(ident: Ident) -> bool:
    """Whether we can say anything of this process: the same number elsewhere is another process."""
    return ident is NOBODY or ident.place == place()


def boot_id() -> str:
    """This boot of the machine, shortened."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read()[:8]


def _stat(pid: int) -> tuple[str, int, int] | None:
    """State letter, start time and session of `pid`, or None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return fields[0].decode(), int(fields[19]), int(fields[3])


def identify(pid: int, at: str | None = None) -> Ident | None:
    """The identity of a living process; `at` is our place, where that is known."""
    facts = _stat(pid)
    return Ident(pid, facts[1], boot_id(), at or place()) if facts else None


def life(ident: Ident) -> str | None:
    """The state letter of the process, or None when it is over. A zombie is over: it only waits to be counted."""
    if ident.boot != boot_id() or not is_here(ident):
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
    for pid in _pids():
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                marks = [line for line in file.read().split(b"\0") if line.startswith(wanted)]
        except OSError:
            continue
        ident = identify(pid) if marks else None
        if ident and life(ident):
            found.setdefault(os.fsdecode(marks[0].partition(b"=")[2]), []).append(ident)
    return {folder: sorted(idents, key=lambda ident: ident.ticks) for folder, idents in found.items()}


def sessions(leaders: Iterable[Ident]) -> dict[Ident, list[Ident]]:
    """Living processes by the leader of their session, for those of `leaders` that began one.

    This finds what the environment does not: commands that cleared theirs, overwrote it or run as another user. A
    process group never spans two sessions, so the whole group of the job's command is among them.
    """
    boot = boot_id()
    wanted = {leader.pid: leader for leader in leaders if leader.pid and leader.boot == boot and is_here(leader)}
    found: dict[Ident, list[Ident]] = {leader: [] for leader in wanted.values()}
    for pid in _pids() if wanted else ():
        facts = _stat(pid)
        leader = wanted.get(facts[2]) if facts else None
        if facts and leader and facts[0] not in "ZX" and facts[1] >= leader.ticks:
            found[leader].append(Ident(pid, facts[1], leader.boot, leader.place))
    return {leader: idents for leader, idents in found.items() if idents and not _is_reused(leader)}


def _is_reused(leader: Ident) -> bool:
    """Whether another process has the leader's number: the kernel gives it away only when the session is empty."""
    facts = _stat(leader.pid)
    return facts is not None and facts[1] != leader.ticks


def _pids() -> Iterator[int]:
    return map(int, filter(str.isdigit, os.listdir("/proc")))


def members(folder: str, leader: Ident | None = None) -> list[Ident]:
    """Every living process of the job in `folder`, whose first process was `leader`; oldest first.

    None is said only after two looks: what forks and ends during the first one hides its child from it.
    """
    return _members(folder, leader) or _members(folder, leader)


def _members(folder: str, leader: Ident | None) -> list[Ident]:
    found = {*carriers(folder).get(folder, [])}
    if leader:
        found.update(sessions([leader]).get(leader, []))
    return sorted(found, key=lambda ident: ident.ticks)


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
