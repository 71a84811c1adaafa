"""Typed errors. Each says what happened (cause), what to do next (remedy) and whether trying again can help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from prefect_tao.jobs.surface import worded

if TYPE_CHECKING:
    from prefect_tao.jobs.finding import Finding
    from prefect_tao.jobs.handle import JobHandle
    from prefect_tao.jobs.outcome import Outcome
    from prefect_tao.jobs.verdict import Verdict


def to_fix(count: int) -> str:
    """How many problems a person has to fix."""
    return f"fix {count} problem{'' if count == 1 else 's'}"


class TaoError(Exception):
    """Base of everything that prefect-tao raises on purpose."""

    retryable = False

    def __init__(self, cause: str, remedy: str = "") -> None:
        super().__init__(cause, remedy)
        self.cause = worded(cause)
        self.remedy = worded(remedy)

    def __str__(self) -> str:
        remedy = self.remedy.replace("\n", "\n  ")
        return f"{self.cause}\n  what to do: {remedy}" if remedy else self.cause


class InvalidInput(TaoError):
    """The caller gave something that cannot run; nothing was launched and nothing was written."""

    def __init__(self, cause: str, remedy: str = "", findings: Sequence[Finding] = ()) -> None:
        super().__init__(cause, remedy)
        self.findings = tuple(findings)

    @classmethod
    def of(cls, findings: Sequence[Finding], outcome: str = "nothing was launched") -> InvalidInput:
        """One error for all `findings` that fail a launch, worst first, so that a person can fix them in one go."""
        from prefect_tao.jobs.finding import worst_first

        return cls(*_together(findings, outcome), worst_first(findings))


def _together(findings: Sequence[Finding], outcome: str = "nothing was launched") -> tuple[str, str]:
    """Cause and remedy of all `findings`; what only follows from another one is not a problem of its own."""
    from prefect_tao.jobs.finding import causes

    own = causes(findings)
    if len(own) == 1:
        return own[0].message, own[0].remedy
    lines = [f"{outcome}; {to_fix(len(own))}:"]
    for finding in own:
        lines.append(f"  - {finding.message}")
        if finding.remedy:
            lines.append("    what to do: " + finding.remedy.replace("\n", "\n    "))
    return "\n".join(lines), ""


def refusal(findings: Sequence[Finding]) -> InvalidInput | Unreachable:
    """Why a launch does not begin. Where nothing is known to be wrong and something was not learned, that is no fault
    of the input: it may be otherwise in a while.
    """
    from prefect_tao.jobs.finding import Level

    if any(finding.level is Level.FAIL for finding in findings):
        return InvalidInput.of(findings)
    return Unreachable(*_together(findings))


class Elsewhere(InvalidInput):
    """The job belongs to another site: what is not seen of it here tells nothing. `handle` says where it is."""

    def __init__(self, handle: JobHandle, remedy: str) -> None:
        super().__init__(f"{handle.name} is elsewhere, on {handle.site} (target {handle.target})", remedy)
        self.handle = handle


class MissingDependency(TaoError):
    """A package or program that this operation needs is not installed."""


class Unreachable(TaoError):
    """The platform did not answer, so nothing is known; the job, if there is one, goes on.

    It may answer later, unless the fault is one that lasts until someone does something about it: a refused login, say.
    """

    def __init__(self, cause: str, remedy: str = "", retryable: bool = True) -> None:
        super().__init__(cause, remedy)
        self.retryable = retryable


class SubmitFailed(TaoError):
    """The platform positively refused the job, or its name belongs to something that is not ours and was left alone."""


class CancelUnconfirmed(TaoError):
    """The job was asked to end, but the platform did not say in time that it is over."""

    retryable = True


class JobFailed(TaoError):
    """The job ended in failure; `verdict` says why. Where it was one job, `outcome` is what there is of it."""

    def __init__(
        self, cause: str, remedy: str = "", verdict: Verdict | None = None, outcome: Outcome | None = None
    ) -> None:
        super().__init__(cause, remedy)
        self.verdict = verdict
        self.outcome = outcome

    def __str__(self) -> str:
        excerpt = self.verdict.log_excerpt.rstrip() if self.verdict else ""
        return f"{super().__str__()}\n  last log lines:\n{excerpt}" if excerpt else super().__str__()


class JobCanceled(TaoError):
    """A person cancelled the job, and the platform says that it is over.

    `begun` is false for one that was called off while it waited for room: there is no job under its name.
    """

    def __init__(self, cause: str, remedy: str = "", *, begun: bool = True) -> None:
        super().__init__(cause, remedy)
        self.begun = begun


class Detached(TaoError):
    """A person left the run that watched the job; the job goes on."""
