"""The block of the process platform, for those who want other folders or only some GPUs."""

from __future__ import annotations

from typing import Annotated

from prefect.blocks.core import Block
from pydantic import Field, HttpUrl

from prefect_tao.blocks.base import LimitedBlock, Variable, Words


class TaoProcess(LimitedBlock, Block):
    """Jobs as processes on the machine that runs the flow. The target `process` works without a block.

    Example:
        Save one under a name and launch on it:

        ```python
        from prefect_tao.blocks import TaoProcess

        TaoProcess(root="/data/tao", gpu_ids=["0", "1"]).save("workstation")
        # then: prefect-tao run --target process/workstation --gpus 1 -- python train.py
        ```
    """

    _block_type_name = "TAO Process"
    _block_type_slug = "tao-process"
    _logo_url = HttpUrl("https://github.com/NVIDIA.png")
    _description = "Runs TAO jobs as process groups on the machine that runs the flow."

    root: Annotated[str | None, Variable("PREFECT_TAO_HOME")] = Field(
        None, title="Root folder", description="Where job folders are kept."
    )
    results_root: Annotated[str | None, Variable("TAO_RESULTS_ROOT")] = Field(
        None, title="Results folder", description="Where results are kept."
    )
    gpu_ids: Annotated[Words | None, Variable("PREFECT_TAO_GPUS")] = Field(
        None, title="GPU ids", description="The GPUs that jobs may use; all of them when left out."
    )
