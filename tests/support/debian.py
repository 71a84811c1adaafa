"""Installs Debian packages that real services come from, once per machine, without starting anything by itself."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

LOCK = Path(tempfile.gettempdir()) / "prefect-tao-apt.lock"
POLICY = Path("/usr/sbin/policy-rc.d")
# Where daemons are installed to is not on everybody's PATH.
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin", "/usr/lib/postgresql/15/bin"])


class Missing(Exception):
    """A program that a service needs is not here and cannot be installed; the text says how to get it."""


def ensure(programs: Mapping[str, str]) -> None:
    """Have every program of `programs` (program or file -> package) on this machine. Raises Missing."""
    with open(LOCK, "w") as lock:  # while somebody installs it, a program may be there and not yet able to run
        fcntl.flock(lock, fcntl.LOCK_SH)
        lacking = _lacking(programs)
    if not lacking:
        return
    hint = f"install them with: apt-get install --no-install-recommends {' '.join(lacking)}"
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise Missing(f"these Debian packages are missing: {', '.join(lacking)}; {hint}")
    with open(LOCK, "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (lacking := _lacking(programs)):
            return
        with _nothing_starts():
            try:
                _install(lacking)
            except subprocess.CalledProcessError:  # the package lists may be too old, or missing on a new machine
                _apt("update")
                _install(lacking)
    if lacking := _lacking(programs):
        raise Missing(f"still missing after installation: {', '.join(lacking)}; {hint}, and look at what it says")


def _lacking(programs: Mapping[str, str]) -> list[str]:
    return sorted({package for program, package in programs.items() if not _there(program)})


def _there(program: str) -> bool:
    return Path(program).exists() if program.startswith("/") else shutil.which(program, path=PATH) is not None


def _install(packages: list[str]) -> None:
    _apt("install", "--no-install-recommends", "--yes", *packages)


def _apt(*words: str) -> None:
    subprocess.run(
        ["apt-get", "-qq", *words],
        check=True,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        timeout=600,
    )


@contextmanager
def _nothing_starts() -> Iterator[None]:
    """Packages that bring a daemon start it when they are installed, unless this file says no."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)
