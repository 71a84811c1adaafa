"""The page of a chain: its steps as a graph and as a table, drawn anew whenever one of them gets on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from prefect_tao.jobs.chain_outcome import ChainOutcome, StepOutcome
from prefect_tao.jobs.events import Event, StateChanged, StepChanged
from prefect_tao.jobs.listening import Listener
from prefect_tao.jobs.quantities import format_seconds
from prefect_tao.preflight.plans.step import Step
from prefect_tao.tasks.artifacts.pages import LivePage, links, page_key
from prefect_tao.tasks.artifacts.stepgraph import graph_image
from prefect_tao.tasks.reporting import everyone


class Summary(Listener):
    """The state of all steps, and its one artifact; `keys` are those of the steps' jobs, by name."""

    def __init__(self, steps: Sequence[Step], title: str, key: str, keys: Mapping[str, str]) -> None:
        self.steps = {step.name: StepOutcome(name=step.name, target=step.target, after=step.after) for step in steps}
        self._keys = keys
        self._title = title
        self._page = LivePage(page_key("chain", title, key))
        self._audience = everyone()

    async def hear(self, event: Event) -> None:
        """Draw anew when a job gets on: by now it may have a page to point to."""
        if isinstance(event, StateChanged):
            await self.publish()

    def __getitem__(self, name: str) -> StepOutcome:
        return self.steps[name]

    async def note(self, step: StepOutcome) -> None:
        """Take in how a step stands now."""
        self.steps[step.name] = step
        await self._audience.hear(StepChanged(step))
        await self.publish()

    def outcome(self) -> ChainOutcome:
        """All steps as they stand."""
        return ChainOutcome(steps=tuple(self.steps.values()))

    async def publish(self) -> None:
        """Draw the page."""
        where = {name: links(key) for name, key in self._keys.items()}
        await self._page.show(chain_markdown(list(self.steps.values()), where), self._title)


def chain_markdown(steps: Sequence[StepOutcome], where: Mapping[str, str]) -> str:
    """The steps as a page: a graph, a table, and why steps failed; `where` are links to what Prefect has of each."""
    lines = ["## Steps", "", f"![the steps and what they wait for]({graph_image(steps)})", ""]
    heads = ("step", "where", "state", "in Prefect", "waited", "ran for", "GPU hours")
    lines += [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    lines += [f"| {' | '.join(_cells(step, where.get(step.name, '')))} |" for step in steps]
    if cost := sum(step.gpu_hours for step in steps):
        lines += ["", f"{cost:.3f} GPU hours in all."]
    # Not in the table, which the UI cuts off where it is wide.
    if done := [f"- {step.name}: `{step.outcome.results}`" for step in steps if step.outcome]:
        lines += ["", "### Results", "", *done]
    for step in steps:
        if step.message:
            fence = "~" * 8
            lines += ["", f"### {step.name}: {step.state.value}", "", fence, step.message, fence]
    return "\n".join(lines)


def _cells(step: StepOutcome, where: str) -> tuple[str, ...]:
    outcome = step.outcome
    return (
        f"**{step.name}**",
        f"`{step.target}`",
        step.state.value,
        where,
        _seconds(step.waited),
        _seconds(outcome.seconds if outcome else None),
        f"{step.gpu_hours:.3f}" if step.gpus and outcome else "",
    )


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else format_seconds(seconds)
