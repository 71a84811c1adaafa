"""What a person finds under Artifacts when a job is over: how it ended, why, where its results are, its curves."""

from __future__ import annotations

from datetime import datetime

from prefect_tao.jobs.chain_outcome import gpu_hours, waited
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.quantities import format_seconds
from prefect_tao.tasks.artifacts.curves import curve_images


def outcome_markdown(
    outcome: Outcome, label: str, gpus: int = 0, begun_at: datetime | None = None, where: str = ""
) -> str:
    """The outcome as a page; `gpus` are those of all its nodes, `begun_at` is when it was launched from here."""
    queued = waited(begun_at, outcome)
    rows = {
        "job": f"`{outcome.handle.name}` on `{outcome.handle.target}`",
        "state": f"**{outcome.state.value}**" + (f" (exit code {outcome.exit_code})" if outcome.exit_code else ""),
        "ran for": format_seconds(outcome.seconds) if outcome.seconds is not None else "",
        "waited": format_seconds(queued) if queued is not None else "",
        "GPU hours": f"{gpu_hours(outcome.total_seconds, gpus):.3f}" if gpus else "",
        "attempt": str(outcome.handle.attempt),
        "results": f"`{outcome.results}`",
        "checkpoints": str(len(outcome.checkpoints) or ""),
        "in Prefect": where,
        **{name: f"{value:.5g}" for name, value in sorted(outcome.metrics.items())},
    }
    lines = [f"## {label}", "", "| | |", "|---|---|", *(f"| {key} | {value} |" for key, value in rows.items() if value)]
    if outcome.verdict:
        verdict = outcome.verdict
        lines += ["", f"### Why: {verdict.category.value}", "", verdict.cause, "", f"**What to do:** {verdict.remedy}"]
        if verdict.log_excerpt:
            fence = "~" * 8
            lines += ["", fence, verdict.log_excerpt.rstrip(), fence]
    if outcome.progress:
        lines += [f"\n![{name}]({uri})" for name, uri in curve_images(outcome.progress).items()]
    lines += ["", f"Logs: `prefect-tao logs {outcome.handle.name} --target {outcome.handle.target}`"]
    return "\n".join(lines)
