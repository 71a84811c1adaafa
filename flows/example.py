"""The flow `quickstart`: a real small training, then its evaluation and export, as three actions in a row.

Prefect builds the form of a deployment from the signature and the docstring, so annotations are not postponed here.
"""

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from prefect_tao.flows.launch_flow import launch_flow
from prefect_tao.flows.steps import Done, run_step
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.preflight.resolve.ask import Ask
from prefect_tao.preflight.resolve.resolving import resolve_ask

SAMPLES = 2400


@launch_flow("quickstart", "quickstart on {target}")
async def quickstart(
    epochs: Annotated[int, Field(ge=1)] = 20, target: str = "process", run_key: str | None = None
) -> list[Outcome]:
    """Train, evaluate and export the tiny model of the catalog; later steps get the checkpoint of the training.

    Args:
        epochs: Epochs to train.
        target: Where: process, or PLATFORM/BLOCK such as slurm/polar.
        run_key: Attach to the jobs of an earlier run with the same key.
    """

    async def step(action: str, overrides: dict[str, Any], *parents: Done) -> Done:
        outcomes = tuple(parent.outcome for parent in parents)
        given = {"dataset.samples": SAMPLES, **overrides}
        ask = Ask.of(model="tiny", action=action, target=target, overrides=given, automl_policy="off")
        resolved = resolve_ask(replace(ask, parents=outcomes))
        return await run_step(resolved, target, action, run_key, after=[one.state for one in parents])

    trained = await step("train", {"num_epochs": epochs})
    evaluated = await step("evaluate", {}, trained)
    exported = await step("export", {}, trained)
    return [trained.outcome, evaluated.outcome, exported.outcome]
