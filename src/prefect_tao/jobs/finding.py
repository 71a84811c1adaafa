"""A finding: what was checked before a launch, from where, what was seen and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NewType

from pydantic import BaseModel, ConfigDict, field_validator

from prefect_tao.jobs.surface import worded

# The name of a gate as `preflight.gates` declares it; a type of its own, so that no other text passes for one.
GateName = NewType("GateName", str)
# The gates that a resolution or a driver's probe reports to. A gate puts its own name on what it finds itself.
PLATFORM = GateName("platform")
MODEL_CREDENTIALS = GateName("model_credentials")
IMAGE = GateName("image")
REACHABLE = GateName("reachable")
COMPUTE = GateName("compute")
NO_GATE = GateName("")


class Level(StrEnum):
    """How a check ended, worst first. `unknown` fails a real launch; `deferred` is checked again before the step."""

    FAIL = "fail"
    UNKNOWN = "unknown"
    WARN = "warn"
    DEFERRED = "deferred"
    OK = "ok"


class Finding(BaseModel):
    """The answer of one check: which gate it belongs to, what it is about, how it ended."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    gate: GateName = NO_GATE
    subject: str
    level: Level
    message: str
    checked_from: str = "here"
    evidence: str = ""
    remedy: str = ""
    # It says only that another finding stood in the way of this check.
    follows: bool = False

    @field_validator("message", "remedy")
    @classmethod
    def _worded(cls, text: str) -> str:
        return worded(text)

    @property
    def blocks(self) -> bool:
        """Whether a real launch must not go on."""
        return self.level in (Level.FAIL, Level.UNKNOWN)


def blocking(findings: Iterable[Finding]) -> list[Finding]:
    """Those of `findings` that forbid a launch."""
    return [finding for finding in findings if finding.blocks]


def causes(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that a person has to deal with, worst first; the others follow from them."""
    found = worst_first(findings)
    return [finding for finding in found if not finding.follows] or found


def exit_code(findings: Iterable[Finding]) -> int:
    """How a command ends that has found these: 2 for what is wrong, 1 for what could not be learned."""
    levels = {finding.level for finding in findings}
    return 2 if Level.FAIL in levels else 1 if Level.UNKNOWN in levels else 0


def worst_first(findings: Iterable[Finding]) -> list[Finding]:
    """The findings as they are shown: what forbids the launch before what is fine."""
    return sorted(findings, key=_rank)


def gates_worst_first(gates: Mapping[str, Sequence[Finding]]) -> list[tuple[str, Sequence[Finding]]]:
    """The gates as they are shown: those that forbid the launch first, the others in their order."""
    return sorted(gates.items(), key=lambda gate: not blocking(gate[1]))


def _rank(finding: Finding) -> int:
    return list(Level).index(finding.level)
