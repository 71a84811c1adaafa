"""A network with one tanh layer and a softmax on top, trained by mini-batches with momentum, in plain Python."""

import json
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from operator import mul
from pathlib import Path
from typing import Any

from prefect_tao.examples.tiny_trainer.data import Sample, draws
from prefect_tao.examples.tiny_trainer.spec import TrainerError

Rows = list[list[float]]

EXPORT_FORMAT = "tiny-mlp"
EXPORT_VERSION = 1
MOMENTUM = 0.9
WEIGHT_DECAY = 1e-3


@dataclass
class Network:
    """Two layers of rows, one row per neuron with its bias last, and the speed each weight moves with."""

    classes: list[str]
    hidden: Rows
    output: Rows
    hidden_speed: Rows
    output_speed: Rows

    @classmethod
    def fresh(cls, classes: list[str], width: int, seed: int) -> "Network":
        chance = draws(seed, "weights")
        hidden = [[chance.gauss(0, 2.5), chance.gauss(0, 2.5), chance.gauss(0, 1)] for _ in range(width)]
        output = [[chance.gauss(0, 1) / math.sqrt(width) for _ in range(width)] + [0.0] for _ in classes]
        return cls(classes, hidden, output, _zeros(hidden), _zeros(output))

    def probabilities(self, x: float, y: float) -> list[float]:
        return _softmax(self._scores(self._activations(x, y)))

    def predict(self, x: float, y: float) -> str:
        chances = self.probabilities(x, y)
        return self.classes[chances.index(max(chances))]

    def assess(self, samples: Sequence[Sample]) -> tuple[float, float]:
        """Mean loss and accuracy."""
        loss, right = 0.0, 0
        for x, y, label in samples:
            scores = self._scores(self._activations(x, y))
            loss += _loss(scores, label)
            right += scores[label] == max(scores)
        return loss / len(samples), right / len(samples)

    def train_epoch(self, samples: Sequence[Sample], batch_size: int, rate: float, chance: random.Random) -> float:
        """One pass in an order drawn from `chance`; the mean loss on the way."""
        order = list(samples)
        chance.shuffle(order)
        batches = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        return sum(self._train_batch(batch, rate) for batch in batches) / len(order)

    def _activations(self, x: float, y: float) -> list[float]:
        tanh = math.tanh
        return [*[tanh(across * x + up * y + bias) for across, up, bias in self.hidden], 1.0]

    def _scores(self, activations: list[float]) -> list[float]:
        return [sum(map(mul, row, activations)) for row in self.output]

    def _train_batch(self, batch: list[Sample], rate: float) -> float:
        hidden_slope, output_slope = _zeros(self.hidden), _zeros(self.output)
        loss = sum(self._add_slopes(sample, hidden_slope, output_slope) for sample in batch)
        _descend(self.hidden, self.hidden_speed, hidden_slope, rate, len(batch))
        _descend(self.output, self.output_speed, output_slope, rate, len(batch))
        return loss

    def _add_slopes(self, sample: Sample, hidden_slope: Rows, output_slope: Rows) -> float:
        x, y, label = sample
        active = self._activations(x, y)
        scores = self._scores(active)
        errors = _softmax(scores)
        errors[label] -= 1
        for error, slope in zip(errors, output_slope, strict=True):
            slope[:] = [old + error * value for old, value in zip(slope, active, strict=True)]
        for slope, value, *weights in zip(hidden_slope, active, *self.output, strict=False):
            back = sum(map(mul, errors, weights)) * (1 - value * value)
            slope[0] += back * x
            slope[1] += back * y
            slope[2] += back
        return _loss(scores, label)


def export(network: Network, path: Path) -> None:
    """Writes the trained network as JSON that any program can evaluate."""
    layers = [
        {"weights": [row[:-1] for row in rows], "bias": [row[-1] for row in rows]}
        for rows in (network.hidden, network.output)
    ]
    content = {
        "format": EXPORT_FORMAT,
        "version": EXPORT_VERSION,
        "classes": network.classes,
        "activation": "tanh",
        "output": "softmax",
        "layers": layers,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content) + "\n", encoding="utf-8")


def load_export(path: Path) -> Network:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if (content.get("format"), content.get("version")) != (EXPORT_FORMAT, EXPORT_VERSION):
        raise TrainerError(f"{path} is not a {EXPORT_FORMAT} file of version {EXPORT_VERSION}")
    hidden, output = (
        [[*row, bias] for row, bias in zip(layer["weights"], layer["bias"], strict=True)] for layer in content["layers"]
    )
    return Network(content["classes"], hidden, output, _zeros(hidden), _zeros(output))


def _zeros(rows: Rows) -> Rows:
    return [[0.0] * len(row) for row in rows]


def _loss(scores: list[float], label: int) -> float:
    top = max(scores)
    return top - scores[label] + math.log(sum(math.exp(score - top) for score in scores))


def _softmax(scores: list[float]) -> list[float]:
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    total = sum(powers)
    return [power / total for power in powers]


def _descend(rows: Rows, speeds: Rows, slopes: Rows, rate: float, count: int) -> None:
    for row, speed, slope in zip(rows, speeds, slopes, strict=True):
        speed[:] = [
            MOMENTUM * old - rate * (step / count + WEIGHT_DECAY * weight)
            for old, step, weight in zip(speed, slope, row, strict=True)
        ]
        row[:] = [weight + step for weight, step in zip(row, speed, strict=True)]
