"""What the trainer can be asked for: train, evaluate and export, each in its own folder below the results."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from prefect_tao.examples.tiny_trainer import checkpoint, data, model
from prefect_tao.examples.tiny_trainer.data import Dataset
from prefect_tao.examples.tiny_trainer.model import Network
from prefect_tao.examples.tiny_trainer.spec import Section, Spec, TrainerError
from prefect_tao.examples.tiny_trainer.status import StatusWriter

LATEST = "tiny_model_latest.ckpt"


@dataclass(frozen=True)
class Plan:
    """The settings of a training, all read before it starts so that a wrong one costs no time."""

    epochs: int
    batch_size: int
    rate: float
    hidden: int
    seed: int
    checkpoint_interval: int
    resume: Path | None
    epoch_seconds: float

    @classmethod
    def read(cls, section: Section) -> "Plan":
        return cls(
            epochs=section.whole("num_epochs", 12, 0),
            batch_size=section.whole("batch_size", 16, 1),
            rate=section.section("optim").number("lr", 0.1, 0),
            hidden=section.whole("hidden", 24, 1),
            seed=section.whole("seed", 1),
            checkpoint_interval=section.whole("checkpoint_interval", 1, 1),
            resume=section.path("resume_training_checkpoint_path"),
            epoch_seconds=section.number("epoch_seconds", 0, 0),
        )


def run(action: str, spec: Spec) -> None:
    """Runs one action between the opening and the closing line of its status file."""
    status = StatusWriter(spec.results_dir / action)
    status.write(f"Starting tiny {action}.", "STARTED")
    try:
        ACTIONS[action](spec, status)
    except Exception as error:
        status.write(str(error), "FAILURE", "ERROR")
        raise
    status.write(f"{action.capitalize()} finished successfully.")


def train(spec: Spec, status: StatusWriter) -> None:
    plan = Plan.read(spec.train)
    dataset = data.load(spec.dataset)
    network, done = _start(plan, dataset)
    status.write("Starting Training Loop.", "STARTED")
    for epoch in range(done + 1, plan.epochs + 1):
        started = time.monotonic()
        status.kpi = _train_epoch(plan, dataset, network, epoch)
        time.sleep(max(0.0, started + plan.epoch_seconds - time.monotonic()))
        if epoch % plan.checkpoint_interval == 0 or epoch == plan.epochs:
            folder = status.path.parent
            checkpoint.save(network, epoch, status.kpi, folder / f"model_epoch_{epoch:03d}.ckpt", folder / LATEST)
        status.write_epoch(epoch, plan.epochs, time.monotonic() - started)
        print(f"Epoch {epoch}/{plan.epochs}: {_show(status.kpi)}", flush=True)
    status.write("Training loop complete.")


def evaluate(spec: Spec, status: StatusWriter) -> None:
    dataset = data.load(spec.dataset)
    network, _ = checkpoint.load(_checkpoint(spec, spec.evaluate.path("checkpoint")))
    _match(network, dataset)
    loss, accuracy = network.assess(dataset.test)
    status.kpi = {"test_accuracy": accuracy, "test_loss": loss}
    status.path.with_name("metrics.json").write_text(json.dumps(status.kpi) + "\n", encoding="utf-8")
    status.write("Evaluation metrics generated.")
    print(f"Evaluated {len(dataset.test)} samples: {_show(status.kpi)}", flush=True)


def export(spec: Spec, status: StatusWriter) -> None:
    network, epoch = checkpoint.load(_checkpoint(spec, spec.export.path("checkpoint")))
    target = spec.export.path("file") or spec.results_dir / "export" / "model.json"
    model.export(network, target)
    status.write(f"Exported epoch {epoch}.")
    print(f"Exported epoch {epoch} to {target}", flush=True)


ACTIONS: dict[str, Callable[[Spec, StatusWriter], None]] = {"train": train, "evaluate": evaluate, "export": export}


def _start(plan: Plan, dataset: Dataset) -> tuple[Network, int]:
    """The network to go on with, and how many epochs it has behind it."""
    if plan.resume is None:
        return Network.fresh(dataset.classes, plan.hidden, plan.seed), 0
    network, done = checkpoint.load(plan.resume)
    _match(network, dataset)
    print(f"Resuming after epoch {done} from {plan.resume}", flush=True)
    return network, done


def _train_epoch(plan: Plan, dataset: Dataset, network: Network, epoch: int) -> dict[str, float]:
    # The order depends on seed and epoch only, so a resumed training takes the same steps as one never interrupted.
    train_loss = network.train_epoch(dataset.train, plan.batch_size, plan.rate, data.draws(plan.seed, epoch))
    val_loss, val_accuracy = network.assess(dataset.val)
    return {"train_loss": train_loss, "val_loss": val_loss, "val_accuracy": val_accuracy}


def _checkpoint(spec: Spec, chosen: Path | None) -> Path:
    return chosen or spec.results_dir / "train" / LATEST


def _match(network: Network, dataset: Dataset) -> None:
    if network.classes != dataset.classes:
        raise TrainerError(f"the checkpoint knows the classes {network.classes}, the dataset has {dataset.classes}")


def _show(kpi: dict[str, float]) -> str:
    return " ".join(f"{name}={value:.4g}" for name, value in kpi.items())
