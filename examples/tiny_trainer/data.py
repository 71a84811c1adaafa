"""Points in the plane with a class each: three spiral arms drawn from a seed, or the rows of a CSV file."""

import csv
import math
import random
from dataclasses import dataclass
from pathlib import Path

from prefect_tao.examples.tiny_trainer.spec import Section, TrainerError

Sample = tuple[float, float, int]

ARMS = ("red", "green", "blue")
FEWEST = 20


@dataclass(frozen=True)
class Dataset:
    """The samples, parted once and for all by the dataset's seed."""

    classes: list[str]
    train: list[Sample]
    val: list[Sample]
    test: list[Sample]


def draws(seed: int, purpose: object) -> random.Random:
    """Chance that repeats itself: the same for the same seed and purpose, on every machine."""
    return random.Random(f"{seed}:{purpose}")  # noqa: S311


def load(section: Section) -> Dataset:
    path = section.path("path")
    seed = section.whole("seed", 7)
    if path is None:
        return _part(list(ARMS), _spirals(section.whole("samples", 600, FEWEST), seed), seed)
    classes, samples = _read(path)
    return _part(classes, samples, seed)


def _part(classes: list[str], samples: list[Sample], seed: int) -> Dataset:
    mixed = samples[:]
    draws(seed, "split").shuffle(mixed)
    val, test = len(mixed) * 70 // 100, len(mixed) * 85 // 100
    return Dataset(classes, mixed[:val], mixed[val:test], mixed[test:])


def _spirals(count: int, seed: int) -> list[Sample]:
    chance = draws(seed, "spirals")
    return [_on_arm(chance, number % len(ARMS)) for number in range(count)]


def _on_arm(chance: random.Random, arm: int) -> Sample:
    radius = math.sqrt(chance.uniform(0.02, 1))
    angle = 2 * math.pi * arm / len(ARMS) + 4.5 * radius + chance.gauss(0, 0.2)
    return radius * math.cos(angle), radius * math.sin(angle), arm


def _read(path: Path) -> tuple[list[str], list[Sample]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            rows = [(reader.line_num, row) for row in reader if row]
    except FileNotFoundError:
        raise TrainerError(f"dataset.path does not exist: {path}") from None
    except (OSError, ValueError, csv.Error) as error:
        raise TrainerError(f"dataset.path cannot be read: {path}: {error}") from error
    if rows and [cell.strip().lower() for cell in rows[0][1][:2]] == ["x", "y"]:
        rows = rows[1:]
    points = [_point(path, number, row) for number, row in rows]
    classes = sorted({label for _, _, label in points})
    if len(points) < FEWEST or len(classes) < 2:
        raise TrainerError(f"{path} needs at least {FEWEST} rows of at least 2 classes")
    return classes, [(x, y, classes.index(label)) for x, y, label in points]


def _point(path: Path, number: int, row: list[str]) -> tuple[float, float, str]:
    try:
        x, y, label = row
        return float(x), float(y), label.strip()
    except ValueError:
        raise TrainerError(f"{path} line {number}: expected x,y,label, found {','.join(row)!r}") from None
