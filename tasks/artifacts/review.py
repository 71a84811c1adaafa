"""The launch review: what will run, where, with which image and how that was found out, before anything is sent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from prefect_tao.jobs.finding import Finding, Level, gates_worst_first, worst_first
from prefect_tao.jobs.platform import Rendered
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.tasks.artifacts.pages import page_key, publish_page

# What a driver's probe may say besides what is wrong, by its subject.
ANSWERS = {"start": "estimated start", "gpus": "GPUs of the platform", "price": "price"}
LOUD = (Level.FAIL, Level.UNKNOWN)


def findings_markdown(gates: Mapping[str, Sequence[Finding]]) -> str:
    """All findings, gate by gate, what failed first; as lists, because the UI cuts off wide tables."""
    lines = []
    for gate, findings in gates_worst_first(gates):
        lines += [f"#### {gate.replace('_', ' ')}", ""]
        for finding in worst_first(findings):
            level = finding.level.value
            lines.append(
                f"- {f'**{level.upper()}**' if finding.level in LOUD else level}: {_indented(finding.message)}"
            )
            if finding.remedy and finding.level is not Level.OK:
                lines.append(f"    - what to do: {_indented(finding.remedy)}")
        lines.append("")
    return "\n".join(lines)


def _indented(text: str) -> str:
    """One line of Markdown; what stands in angle brackets would vanish as if it were markup."""
    return escape(text, quote=False).replace("\n", "<br>")


def review_markdown(resolved: Resolved, target: str, text: str, gates: Mapping[str, Sequence[Finding]]) -> str:
    """The review as a page. It holds names of secrets, never values."""
    request = resolved.request
    shape = request.resources if request else None
    rows = {
        "what": f"{resolved.model} {resolved.action}".strip(),
        "where": f"`{target}`",
        "image": f"`{resolved.image}` (from {resolved.image_source})" if resolved.image else "none",
        "GPUs and nodes": f"{shape.gpus_shown} x {shape.nodes}" if shape else "",
        "time limit": f"{shape.time_limit / 3600:g} h" if shape and shape.time_limit else "none",
        **{name: "; ".join(_said(gates, subject)) for subject, name in ANSWERS.items()},
        "secrets by name": ", ".join(request.secrets) if request else "",
    }
    lines = [f"## Launch review: {rows['what'] or 'command'} on {target}", "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in rows.items() if value]
    if resolved.datasets:
        lines += ["", "### Data", "", "| spec key | location |", "|---|---|"]
        lines += [f"| `{key}` | `{uri}` |" for key, uri in resolved.datasets.items()]
    lines += ["", "### Gates", "", findings_markdown(gates)]
    fence = "~" * 8
    return "\n".join([*lines, "", "### What will be sent", "", fence, text.rstrip(), fence])


def _said(gates: Mapping[str, Sequence[Finding]], subject: str) -> list[str]:
    """What the platform itself answered to one question; what stands before the answer is its label."""
    everything = (finding for findings in gates.values() for finding in findings)
    found = [one for one in everything if one.subject == subject and one.checked_from != "here"]
    return [one.message.removeprefix(f"{subject}: ").removeprefix(f"{ANSWERS[subject]} ") for one in found]


async def publish_review(
    target: str, resolved: Resolved, rendered: Rendered, gates: Mapping[str, Sequence[Finding]]
) -> None:
    """Put the review into Prefect before the launch."""
    what = f"{resolved.model} {resolved.action}".strip() or "command"
    page = review_markdown(resolved, target, rendered.text, gates)
    await publish_page(
        page_key("review", f"{what} on {target}", rendered.key), page, f"Launch review: {what} on {target}"
    )


async def publish_findings(title: str, key: str, gates: Mapping[str, Sequence[Finding]]) -> None:
    """Put the findings of failed gates into Prefect."""
    page = "## What stands in the way of the launch\n\n" + findings_markdown(gates)
    await publish_page(page_key("findings", title, key), page, f"Not launched: {title}")
