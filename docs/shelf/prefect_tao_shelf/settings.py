"""The settings of the shelf."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from prefect_tao.platforms.fields import FROZEN, LimitedFields, Variable


class ShelfFields(LimitedFields):
    """Where the shelf is."""

    root: Annotated[str, Variable("SHELF_ROOT")] = Field(
        title="Shelf folder", description="Where jobs and their results are kept."
    )


class ShelfSettings(ShelfFields):
    """What the driver takes."""

    model_config = FROZEN
