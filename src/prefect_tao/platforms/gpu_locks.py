"""A lock per GPU that all jobs of a machine meet at, bare processes and containers alike.

Standard library only, Python 3.8 and newer: the starters of both import it without any package, one of them inside a
container. A lock is an flock that the job's processes hold open: the kernel lets go of it when the last of them is
gone, however it ended, so a GPU is never lost to a crash and never shared by two jobs. A GPU is locked by all its
names (number, UUID). All who have GPUs share the lock of every GPU, unless that is the one they want: who cannot know
which GPUs he gets has it alone.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

# For annotations only: to import it would cost each job's start some of its time.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

FOLDER = "/tmp/prefect-tao-gpus"  # noqa: S108 - all users of the machine must meet at one place
EVERY = "all"


def lock_folder() -> str:
    """Where the locks are: PREFECT_TAO_GPU_LOCKS, else the one place where all users of the machine meet."""
    return os.environ.get("PREFECT_TAO_GPU_LOCKS") or FOLDER


def prepare(folder: str) -> None:
    """Make the folder, for everybody. Raises OSError."""
    os.makedirs(folder, exist_ok=True)
    with suppress(PermissionError):  # another user made it, with these permissions
        os.chmod(folder, 0o1777)  # noqa: S103 - as /tmp itself: all may lock, none may remove another's lock


def take(devices: Mapping[str, Iterable[str]], count: int, folder: str) -> dict[str, list[int]] | None:
    """Lock `count` of `devices` now, all or none; returns {device: descriptors that hold its locks}.

    `devices` gives the further names of each. The first device of the answer holds the share of every GPU too.
    """
    every = _lock(folder, EVERY, fcntl.LOCK_SH)
    if every is None:
        return None
    held: dict[str, list[int]] = {}
    for device, others in devices.items():
        if len(held) == count:
            break
        if (locks := _lock_names(folder, [device, *others])) is not None:
            held[device] = locks
    if held and len(held) == count:
        held[next(iter(held))].append(every)
        return held
    _close([every, *(lock for locks in held.values() for lock in locks)])
    return None


def _lock_names(folder: str, names: Sequence[str]) -> list[int] | None:
    held: list[int] = []
    for name in sorted(set(names)):
        lock = _lock(folder, name, fcntl.LOCK_EX)
        if lock is None:
            _close(held)
            return None
        held.append(lock)
    return held


def wait_for(devices: Mapping[str, Iterable[str]], count: int, folder: str) -> dict[str, list[int]]:
    """Lock `count` of `devices`, waiting until so many are free at once."""
    import random
    import time

    prepare(folder)
    while True:
        held = take(devices, count, folder)
        if held is not None:
            return held
        # Uneven pauses keep two waiting jobs from taking half of what both need, again and again.
        time.sleep(random.uniform(0.2, 0.8))  # noqa: S311


def wait_for_names(folder: str, names: Iterable[str]) -> list[int]:
    """Wait until all of `names` are ours, in one order for everybody."""
    wanted, held = set(names), []
    for name in [EVERY, *sorted(wanted - {EVERY})]:
        how = fcntl.LOCK_EX if name in wanted else fcntl.LOCK_SH
        held.append(_open(os.path.join(folder, _file_name(name))))
        try:
            fcntl.flock(held[-1], how | fcntl.LOCK_NB)
        except BlockingIOError:
            os.write(1, f"[prefect-tao] waiting for GPU {name}\n".encode())
            fcntl.flock(held[-1], how)
    return held


def taken(devices: Mapping[str, Iterable[str]], folder: str) -> list[str]:
    """Those of `devices` that somebody has now, as far as the locks tell."""
    return [device for device, others in devices.items() if any(_is_held(folder, one) for one in (device, *others))]


def _is_held(folder: str, name: str) -> bool:
    try:
        descriptor = os.open(os.path.join(folder, _file_name(name)), os.O_RDWR)
    except OSError:  # it was never locked
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock(folder: str, name: str, how: int) -> int | None:
    descriptor = _open(os.path.join(folder, _file_name(name)))
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _close(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def _open(path: str) -> int:
    """The file of a lock, which users share; in a folder like /tmp not even root may ask for another's to be made."""
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.fchmod(descriptor, 0o666)
        return descriptor


def _file_name(name: str) -> str:
    return "".join(sign if sign.isalnum() or sign in "_-" else "_" for sign in name)
