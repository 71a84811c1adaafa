"""The settings of the process platform."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from prefect_tao.platforms.fields import FROZEN, LimitedFields, Variable, Words


class ProcessFields(LimitedFields):
    """Where jobs and results are kept on this machine, and which GPUs jobs may use."""

    root: Annotated[str | None, Variable("PREFECT_TAO_HOME")] = Field(
        None, title="Root folder", description="Where job folders are kept."
    )
    results_root: Annotated[str | None, Variable("TAO_RESULTS_ROOT")] = Field(
        None, title="Results folder", description="Where results are kept."
    )
    gpu_ids: Annotated[Words | None, Variable("PREFECT_TAO_GPUS")] = Field(
        None, title="GPU ids", description="The GPUs that jobs may use; all of them when left out."
    )


class ProcessSettings(ProcessFields):
    """What the driver takes."""

    model_config = FROZEN
