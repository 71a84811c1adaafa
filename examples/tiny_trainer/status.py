"""Writes status.json the way TAO does: one JSON object per line, dates unpadded, the kpi repeated until replaced."""

import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any


class StatusWriter:
    """An appended status file; NaN is written as it is, like TAO's."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "status.json"
        self.kpi: dict[str, float] = {}

    def write(self, message: str, status: str = "RUNNING", verbosity: str = "INFO", **loop: Any) -> None:
        now = datetime.now()
        line = {
            **loop,
            "date": f"{now.month}/{now.day}/{now.year}",
            "time": f"{now.hour}:{now.minute}:{now.second}",
            "status": status,
            "verbosity": verbosity,
            "message": message,
        }
        if self.kpi:
            line["kpi"] = self.kpi
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def write_epoch(self, epoch: int, max_epoch: int, seconds: float) -> None:
        self.write(
            "Training loop in progress",
            epoch=epoch,
            max_epoch=max_epoch,
            time_per_epoch=str(timedelta(seconds=seconds)),
            eta=str(timedelta(seconds=(max_epoch - epoch) * seconds)),
        )
