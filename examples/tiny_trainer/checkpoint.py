"""Saves and loads checkpoints: a zip archive, whose index comes last, so that a file cut short is noticed."""

import json
import os
import zipfile
from pathlib import Path
from typing import Any

from prefect_tao.examples.tiny_trainer.model import Network
from prefect_tao.examples.tiny_trainer.spec import TrainerError

FORMAT = "tiny-checkpoint"


def save(network: Network, epoch: int, kpi: dict[str, float], *paths: Path) -> None:
    weights = {
        "hidden": network.hidden,
        "output": network.output,
        "hidden_speed": network.hidden_speed,
        "output_speed": network.output_speed,
    }
    meta = {"format": FORMAT, "version": 1, "epoch": epoch, "classes": network.classes, "kpi": kpi}
    for path in paths:
        _write(path, {"weights.json": weights, "meta.json": meta})


def load(path: Path) -> tuple[Network, int]:
    """The network and the epoch it has finished."""
    if not path.is_file():
        raise TrainerError(f"the checkpoint does not exist: {path}")
    try:
        with zipfile.ZipFile(path) as archive:
            weights, meta = (json.loads(archive.read(name)) for name in ("weights.json", "meta.json"))
        if meta["format"] != FORMAT:
            raise ValueError(f"unknown format {meta['format']!r}")
        return Network(classes=meta["classes"], **weights), int(meta["epoch"])
    except (zipfile.BadZipFile, OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise TrainerError(f"the checkpoint is damaged or not one of this trainer: {path}: {error}") from error


def _write(path: Path, parts: dict[str, Any]) -> None:
    partial = path.with_name(path.name + ".partial")
    with zipfile.ZipFile(partial, "w") as archive:
        for name, part in parts.items():
            # Without a time of writing, equal trainings give equal files.
            archive.writestr(zipfile.ZipInfo(name), json.dumps(part), zipfile.ZIP_DEFLATED)
    os.replace(partial, path)
