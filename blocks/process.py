"""The block of the process platform, for those who want other folders or only some GPUs."""

from __future__ import annotations

from prefect.blocks.core import Block

from prefect_tao.blocks.tao_block import TaoBlock
from prefect_tao.platforms.process.settings import ProcessFields


class TaoProcess(ProcessFields, TaoBlock, Block):
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
