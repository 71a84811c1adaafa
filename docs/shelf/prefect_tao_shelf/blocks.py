"""The block of the shelf: its settings, as a person saves them in Prefect."""

from __future__ import annotations

from prefect.blocks.core import Block

from prefect_tao.blocks.tao_block import TaoBlock
from prefect_tao_shelf.settings import ShelfFields


class TaoShelf(ShelfFields, TaoBlock, Block):
    """Jobs on a shelf of the machine that runs the flow."""

    _block_type_name = "TAO Shelf"
    _block_type_slug = "tao-shelf"
    _description = "Runs TAO jobs from a folder of the machine that runs the flow."
