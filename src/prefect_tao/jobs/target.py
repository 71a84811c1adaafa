"""A target says where: a platform, and the saved block that holds its settings, as `platform/block`."""

from __future__ import annotations

import re
from typing import NamedTuple

from prefect_tao.jobs.errors import InvalidInput

_BLOCK = re.compile(r"[a-z0-9][a-z0-9-]*")
_TARGET = re.compile(rf"[a-z0-9-]+(/{_BLOCK.pattern})?")


class Target(NamedTuple):
    """`process`, `slurm/polar`, `local-docker/workstation`."""

    platform: str
    block: str | None = None

    def __str__(self) -> str:
        return f"{self.platform}/{self.block}" if self.block else self.platform

    @staticmethod
    def is_one(text: str) -> bool:
        """Whether `text`, from wherever it comes, is a target as we write it."""
        return _TARGET.fullmatch(text) is not None

    @classmethod
    def parse(cls, text: str) -> Target:
        """The target in `text`; raises InvalidInput when it has another form. The platform is not looked up here."""
        # People's scripts come here too, and what they give may be of any type.
        platform, slash, block = text.strip().partition("/") if isinstance(text, str) else ("", "", "")
        if not platform or (slash and not _BLOCK.fullmatch(block)):
            raise InvalidInput(
                f"{text!r} is not a target",
                "write <platform>/<block name>, for example slurm/polar, or process for this machine",
            )
        return cls(platform, block or None)
