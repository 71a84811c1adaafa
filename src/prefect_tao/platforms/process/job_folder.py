"""Where the process platform keeps its jobs: `jobs/<name>/` for one attempt, `results/<key>/` for what stays."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from prefect_tao.platforms.markers import read_object
from prefect_tao.platforms.process import process_starter

JOB, PLAN, LOG, END, STOP, SECRETS = "job.json", "plan.json", "log.txt", "end.json", "stop", "secrets-"
CLAIM, STARTED = process_starter.CLAIM, process_starter.STARTED


def read(path: Path) -> bytes | None:
    """The content of a file; None when there is none. Raises OSError when the disk does not answer."""
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def read_json(path: Path) -> dict[str, Any] | None:
    """The map in a file; None when there is no file, or when it is being lost under our eyes."""
    return read_object(read(path))


def stage(folder: Path, files: Mapping[str, bytes]) -> bool:
    """Make the job folder with all its files at once; False when a folder of that name is already there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.parent / f".staging-{folder.name}-{secrets.token_hex(4)}"
    temporary.mkdir(mode=0o700)
    try:
        for name, data in files.items():
            write_private(temporary / name, data)
        # After all are written: the first flush then carries most of the others, which makes them cheap.
        for name in files:
            process_starter.flush(str(temporary / name))
        with suppress(OSError):  # not every file system can flush a folder
            process_starter.flush(str(temporary))
        # rename(2) replaces an empty folder only, and ours never is: the first one to come stays.
        os.rename(temporary, folder)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if folder.is_dir():
            return False
        raise error
    return True


def is_damaged(folder: Path) -> bool:
    """Whether this is a job of ours whose claim or job file was lost, as a power cut may leave it."""
    claimed = (folder / CLAIM).exists()
    if claimed and read_json(folder / CLAIM) is None:
        return True
    return read_json(folder / JOB) is None and (claimed or (folder / PLAN).exists())


def names(folder: Path) -> list[str]:
    """What is in a folder, nothing when there is none. Raises OSError when the disk does not tell."""
    try:
        return os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return []


def secrets_in(folder: Path) -> list[Path]:
    """The files with secrets in a job's folder. Raises OSError when the disk does not tell."""
    return [folder / name for name in names(folder) if name.startswith(SECRETS)]


def replace(path: Path, data: bytes) -> None:
    """Write a whole file or nothing."""
    temporary = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    try:
        write_private(temporary, data)
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_private(path: Path, data: bytes) -> None:
    """Write a file that only its owner may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
