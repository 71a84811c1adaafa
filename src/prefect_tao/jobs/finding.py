"""A finding: what was checked before a launch, from where, what was seen and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Level(StrEnum):
    """How a check ended. `unknown` fails a real launch; `deferred` is checked again just before the step."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    UNKNOWN = "unknown"
    DEFERRED = "deferred"


class Finding(BaseModel):
    """The answer of one check."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    level: Level
    check: str
    message: str
    checked_from: str = "here"
    evidence: str = ""
    remedy: str = ""

    @property
    def blocks(self) -> bool:
        """Whether a real launch must not go on."""
        return self.level in (Level.FAIL, Level.UNKNOWN)


def blocking(findings: Iterable[Finding]) -> list[Finding]:
    """Those of `findings` that forbid a launch."""
    return [finding for finding in findings if finding.blocks]
