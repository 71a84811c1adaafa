"""The flow `quickstart`: a real small training, then its evaluation and export, as three actions in a row."""

import shlex
import sys
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State

from prefect_tao.flows.steps import canceled, run_step
from prefect_tao.jobs.errors import JobCanceled
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.request import JobRequest
from prefect_tao.tasks.cancellation import cancel_jobs

LATEST = "tiny_model_latest.ckpt"
DATA = {"dataset": {"samples": 2400}}


def tiny(action: str, specs: dict[str, Any]) -> JobRequest:
    """An action of the tiny trainer, called the way TAO's models are: `tiny train -e spec.yaml`."""
    return JobRequest.build(
        command=f"{shlex.quote(sys.executable)} -m prefect_tao.examples.tiny_trainer {action} -e {{config_path}}",
        specs={"results_dir": "", **specs},
        inputs={f"{action}.checkpoint": {"type": "file"}} if action != "train" else {},
        outputs={"results_dir": {"type": "folder"}},
        model="tiny",
        action=action,
    )


@flow(name="quickstart", persist_result=True, result_serializer="json", on_cancellation=[cancel_jobs])
async def quickstart(
    epochs: int = 12, target: str = "process", run_key: str | None = None
) -> list[Outcome] | State[None]:
    """Train, evaluate and export the tiny model; each step gets the checkpoint that the training left."""
    train = tiny("train", {"train": {"num_epochs": epochs, "resume_training_checkpoint_path": ""}, **DATA})
    try:
        done = [await run_step(train, target, "train", run_key)]
        checkpoint = next(path for path in done[0].outcome.checkpoints if path.endswith(LATEST))
        for action in ("evaluate", "export"):
            request = tiny(action, {action: {"checkpoint": checkpoint}, **DATA})
            done.append(await run_step(request, target, action, run_key, after=[done[0].state]))
    except JobCanceled as error:
        return canceled(error)
    return [step.outcome for step in done]
