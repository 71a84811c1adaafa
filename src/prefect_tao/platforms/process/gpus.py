"""Which GPUs this machine has, and a lock per GPU. Standard library only: the starter imports it without any package.

A lock is an flock that the job's processes hold open: the kernel lets go of it when the last of them is gone, however
it ended, so a GPU is never lost to a crash and never shared by two jobs.
"""

from __future__ import annotations

import fcntl
import os
import random
import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

LOCKS = "/tmp/prefect-tao-gpus"  # noqa: S108 - all users of the machine must meet at one place


def lock_folder() -> str:
    """Where the locks are: PREFECT_TAO_GPU_LOCKS, else the one place where all users of the machine meet."""
    return os.environ.get("PREFECT_TAO_GPU_LOCKS") or LOCKS


def inventory() -> list[str]:
    """The GPUs' ids: from PREFECT_TAO_GPUS, else as nvidia-smi lists them."""
    given = os.environ.get("PREFECT_TAO_GPUS")
    if given is not None:
        return [part.strip() for part in given.split(",") if part.strip()]
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return re.findall(r"^GPU (\d+):", done.stdout, re.MULTILINE)


def take(devices: Sequence[str], count: int, folder: str) -> dict[str, int] | None:
    """Lock `count` of `devices` now, all or none; returns {device: descriptor that holds the lock}."""
    os.makedirs(folder, exist_ok=True)
    with suppress(PermissionError):  # another user made it, with these permissions
        os.chmod(folder, 0o1777)  # noqa: S103 - as /tmp itself: everybody may lock, nobody may remove another's lock
    held: dict[str, int] = {}
    for device in devices:
        if len(held) == count:
            break
        descriptor = _open(os.path.join(folder, re.sub(r"[^\w-]", "_", device)))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
        else:
            held[device] = descriptor
    if len(held) == count:
        return held
    for descriptor in held.values():
        os.close(descriptor)
    return None


def wait_for(devices: Sequence[str], count: int, folder: str) -> dict[str, int]:
    """Lock `count` of `devices`, waiting until so many are free at once."""
    while True:
        held = take(devices, count, folder)
        if held is not None:
            return held
        # Uneven pauses keep two waiting jobs from taking half of what both need, again and again.
        time.sleep(random.uniform(0.2, 0.8))  # noqa: S311


def _open(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR)
    except FileNotFoundError:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        os.fchmod(descriptor, 0o666)
        return descriptor
