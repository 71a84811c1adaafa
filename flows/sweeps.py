"""The flow `sweep`: one action with many combinations of values, as many jobs at once as the target takes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Unpack

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext
from prefect.runtime.flow_run import get_parameters as parameters
from prefect.states import Completed

from prefect_tao.flows.launch_flow import differing, launch_flow
from prefect_tao.flows.pool import Pool, Trial, TrialEnd
from prefect_tao.flows.steps import for_run, session_of, step_label, with_count, with_jobs
from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.errors import JobCanceled, JobFailed
from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.points import PointOutcome, SweepOutcome
from prefect_tao.jobs.request import masked
from prefect_tao.launch.parameters.declared import SweepParameters
from prefect_tao.launch.parameters.derived import takes
from prefect_tao.preflight.plans.sweep_plan import Point, plan_points, ranked_by, resolve_points, same_to_gates
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.translating import proofs_from
from prefect_tao.tasks.artifacts.job_page import JobPage
from prefect_tao.tasks.artifacts.leaderboard import Leaderboard
from prefect_tao.tasks.artifacts.pages import DRAW_SECONDS
from prefect_tao.tasks.cancellation import canceling, remember_target, root_id
from prefect_tao.tasks.gate_tasks import pass_gates
from prefect_tao.tasks.runkeys import known_key
from prefect_tao.tasks.targets.opening import canonical, catalog_of

PAGES, FAILURE_PAGES = 50, 20


def _run_name() -> str:
    given = parameters()
    what = " ".join(word for word in (given.get("model"), given.get("action")) if word) or str(given.get("command"))
    name = f"sweep: {masked(' '.join(what.split()))[:60]} on {given.get('target', 'process')}"
    over = ", ".join(key.rpartition(".")[2] for key in given.get("over") or ())
    values = ", ".join(word for word in (f"over {over}" if over else "", differing(given.get("overrides"))) if word)
    return f"{name}: {values}"[:120] if values else name


@launch_flow("sweep", _run_name)
@takes(SweepParameters)
async def sweep(**given: Unpack[SweepParameters]) -> SweepOutcome | State[SweepOutcome]:
    """Run one action once per point, and rank the points by a metric.

    The gates are passed once for all points that ask for the same. A retry runs only what is not complete; with the
    run_key of an earlier sweep, points that are complete there are taken over.
    """
    target, run_key = given["target"], await known_key(given["run_key"])
    planned = plan_points(given["over"], given["mode"], given["points"], given["samples"], given["seed"])
    counted = await with_count(given, target, run_key)
    resolved = await asyncio.to_thread(
        resolve_points, counted, planned, canonical(target).platform, await catalog_of(target)
    )
    launches = {
        point.name: for_run(one, run_key, point.name, point.label) for point, one in zip(planned, resolved, strict=True)
    }
    states = await _admitted(given, launches, run_key)
    metric, direction = ranked_by(given["metric"], given["direction"], resolved[0])
    board = Leaderboard(
        [_waiting(point, launches[point.name][0]) for point in planned],
        metric,
        direction,
        _run_name().removeprefix("sweep: "),
        job_key(run_key or root_id(), "sweep"),
        {name: key for name, (_, key) in launches.items()},
    )
    await board.open()
    try:
        await _Points(given, board, states).run(launches)
    finally:
        await board.close()
    return await _judged(board.outcome())


async def _admitted(
    given: Mapping[str, Any], launches: Mapping[str, tuple[Resolved, str]], run_key: str | None
) -> dict[str, State[Any]]:
    """Pass the gates once for all points that look alike to them; points that have a job already need none.

    By name of the point the last gate that it passed: what it is drawn after in the run graph. Seven edges to each of a
    thousand points would show no more, and Prefect needs milliseconds for each.
    """
    target = given["target"]
    waiting = dict(launches)
    if session := await session_of(target):
        await remember_target(target)
        keys = [key for _, key in launches.values()]
        there = await with_jobs(session.platform, keys, run_key, given["release_elsewhere"])
        waiting = {name: one for name, one in launches.items() if one[1] not in there}
    passed: dict[str, State[Any]] = {}
    states: dict[str, State[Any]] = {}
    for name, (resolved, key) in waiting.items():
        shape = same_to_gates(resolved)
        if shape not in passed:
            passed[shape] = (await pass_gates(resolved, target, key, proofs_from(given))).states[-1]
        states[name] = passed[shape]
    return states


def _waiting(point: Point, resolved: Resolved) -> PointOutcome:
    gpus = resolved.request.resources.total_gpus if resolved.request else 0
    return PointOutcome(name=point.name, label=point.label, overrides=dict(point.overrides), gpus=gpus)


class _Points:
    """The points as trials of a pool: where each of them stands is on the leaderboard."""

    def __init__(self, given: Mapping[str, Any], board: Leaderboard, states: Mapping[str, State[Any]]) -> None:
        self.target = str(given["target"])
        self.most: int | None = given["max_concurrent"]
        self.pool = Pool(self.target, self.note, float(given["status_interval_minutes"]), given["on_failure"])
        self.board = board
        self.states = states
        self.failures = 0

    async def run(self, launches: Mapping[str, tuple[Resolved, str]]) -> None:
        """All of them, each when there is room for it."""
        await self.pool.limit(self.most)
        requests = {name: (one.request, key) for name, (one, key) in launches.items() if one.request is not None}
        first, _ = next(iter(requests.values()))
        title = step_label(first, self.target)
        # All pages together are drawn about once a second, however many there are.
        seconds = max(DRAW_SECONDS, min(len(requests), PAGES))
        await self.pool.run_all(
            [
                Trial(
                    name,
                    request,
                    key,
                    f"{title}: {self.board[name].label}",
                    self._after(name),
                    seconds if number < PAGES else 0.0,
                )
                for number, (name, (request, key)) in enumerate(requests.items())
            ]
        )

    def _after(self, name: str) -> tuple[State[Any], ...]:
        return (self.states[name],) if name in self.states else ()

    async def note(self, trial: Trial, end: TrialEnd | None) -> None:
        """Bring the leaderboard up to date."""
        point = self.board[trial.name]
        if end is None:
            await self.board.note(point.running())
            return
        if end.state is StepState.ERROR and not trial.page_seconds:
            await self._show_failure(end.outcome, trial.label, point)
        await self.board.note(point.ended(end.state, end.message, end.outcome))

    async def _show_failure(self, outcome: Outcome | None, label: str, point: PointOutcome) -> None:
        """A page for each of the first failures beyond those that have one; a thousand pages would help no one."""
        self.failures += 1
        if outcome and point.begun_at and self.failures <= FAILURE_PAGES:
            await JobPage(label, outcome.handle.key).end(outcome, point.gpus, point.begun_at)


async def _judged(found: SweepOutcome) -> SweepOutcome | State[SweepOutcome]:
    """The outcome, unless the sweep was cancelled, stopped at a failure, or nothing came of it.

    Raises JobCanceled, JobFailed.
    """
    if (found.count(StepState.CANCELED) or found.count(StepState.SKIPPED)) and await canceling(root_id())():
        raise JobCanceled("the sweep was cancelled, and its jobs are over")
    failed = [point for point in found.points if point.state in (StepState.ERROR, StepState.CANCELED)]
    if failed and (found.count(StepState.SKIPPED) or not found.count(StepState.COMPLETE)):
        first = failed[0]
        raise JobFailed(
            f"{len(failed)} of {len(found.points)} points failed; the first was {first.label}: {first.message}",
            "fix it and retry the run: only what is not complete is run again",
        )
    return _partial(found, failed) if failed else found


def _partial(found: SweepOutcome, failed: Sequence[PointOutcome]) -> State[SweepOutcome]:
    """The end of a sweep of which some points failed: good, said to be so, and open to a retry of those."""
    for point in failed:
        get_run_logger().warning("%s failed: %s", point.label, point.message.splitlines()[0])
    if context := FlowRunContext.get():
        context.persist_result = False  # Prefect does not retry a complete run whose result it keeps
    done = found.count(StepState.COMPLETE)
    words = f"{done} of {len(found.points)} points complete, {len(failed)} failed; a retry runs only those"
    return Completed(message=words, data=found)
