"""The block of the process platform, for those who want other folders or only some GPUs."""

from __future__ import annotations

from typing import Any

from prefect.blocks.core import Block
from pydantic import Field


class TaoProcess(Block):
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
    _description = "Runs TAO jobs as process groups on the machine that runs the flow."

    root: str | None = Field(None, title="Root folder", description="Where job folders are kept.")
    results_root: str | None = Field(None, title="Results folder", description="Where results are kept.")
    gpu_ids: list[str] | None = Field(
        None, title="GPU ids", description="The GPUs that jobs may use; all of them when left out."
    )

    def settings(self) -> dict[str, Any]:
        """What the driver is made with."""
        return {"root": self.root, "results_root": self.results_root, "gpu_ids": self.gpu_ids}
