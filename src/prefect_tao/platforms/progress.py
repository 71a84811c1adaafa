"""How far jobs are: their newest status files, read again only when they changed, and not too often from afar."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Sequence

from prefect_tao.jobs.statusfile import Progress, parse_status
from prefect_tao.platforms.files import Files

MAX_STATUS = 1 << 24


class ProgressReader:
    """Reads below results folders. Its methods block and raise what the files raise."""

    def __init__(self) -> None:
        self._read: dict[str, tuple[str, Progress | None]] = {}
        self._asked_at: dict[Files, float] = {}

    def refresh(self, files: Files, folders: Sequence[str], ended: Collection[str] = ()) -> None:
        """Look for news below `folders`; at folders of jobs that have `ended` however short ago the last look was."""
        if time.monotonic() - self._asked_at.get(files, -math.inf) > files.progress_seconds:
            self._asked_at[files] = time.monotonic()
        else:
            folders = [folder for folder in folders if folder in ended]
        for folder, status in files.statuses(folders).items() if folders else ():
            if self._read.get(folder, ("", None))[0] != status.mark:
                data = files.read(status.path, MAX_STATUS) or b""
                self._read[folder] = (status.mark, parse_status(data.decode(errors="replace")))

    def of(self, folder: str) -> Progress | None:
        """What was read last."""
        return self._read.get(folder, ("", None))[1]
