"""The job records of a search: what a study is rebuilt from where its storage is not, and what its trials have used."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from prefect_tao.jobs.categories import ErrClass
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import job_key, run_label
from prefect_tao.jobs.outcome import collect
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.retrying import retry
from prefect_tao.jobs.scoring import curve
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.preflight.plans.searches import PlannedSearch
from prefect_tao.tasks.artifacts.search_page import SearchPage
from prefect_tao.tasks.trial_scores import read_scores

if TYPE_CHECKING:
    from prefect_tao.searching.study import Study
    from prefect_tao.searching.trial_record import TrialRecord

# What a job's variables say of its trial, also for the trainer.
RECORD = "PREFECT_TAO_TRIAL"
NOT_ITS_FAULT = (ErrClass.ERR_INFRA, ErrClass.ERR_CREDENTIALS)


def written(number: int, configuration: int, values: Mapping[str, Any], **more: Any) -> str:
    """A trial as its job record has it."""
    told = {"number": number, "configuration": configuration, "values": dict(values), **more}
    return json.dumps(told, sort_keys=True)


async def take_over(
    board: SearchPage, study: Study, platform: Platform, run: str, step_of: Callable[[int], str]
) -> None:
    """Show the trials that an earlier process has seen to their ends, with what they used."""
    ended = [one for one in study.history if one.is_told]
    if not ended:
        return
    keys = {job_key(run, step_of(one.number)): one for one in ended}
    found = await retry(lambda: platform.find(list(keys)))
    last = {key: attempts[-1] for key, attempts in found.items() if attempts}
    seen = await retry(lambda: platform.observe(list(last.values()))) if last else {}
    request = board.search.base.request
    gpus = request.resources.total_gpus if request else 0
    for key, record in keys.items():
        handle = last.get(key)
        board.take_over(record, step_of(record.number), handle, _seconds(seen.get(handle) if handle else None), gpus)


def _seconds(seen: Observation | None) -> float:
    return (seen.ended_at - seen.started_at).total_seconds() if seen and seen.started_at and seen.ended_at else 0.0


async def rebuilt(study: Study, storage: str, search: PlannedSearch, platform: Platform, run: str, step: str) -> Study:
    """The study as the jobs on the platform tell it; the same one where there are none."""
    handles = await retry(lambda: platform.jobs({"run": run_label(run)}))
    newest: dict[str, JobHandle] = {}
    for handle in sorted(handles, key=lambda one: one.attempt):
        if handle.labels.get("step", "").startswith(f"{step}-trial-"):
            newest[handle.key] = handle
    if not newest:
        return study
    seen = await retry(lambda: platform.observe(list(newest.values())))
    found = await asyncio.gather(*(_record(search, platform, one, seen.get(one)) for one in newest.values()))
    records = {one.number: one for one in found if one is not None}
    return await asyncio.to_thread(_complete, study, storage, records)


def _complete(study: Study, storage: str, records: dict[int, TrialRecord]) -> Study:
    """The study of these records. A number without a job was asked for and never launched: it is asked for again."""
    from dataclasses import replace

    from prefect_tao.searching.study import Study
    from prefect_tao.searching.trial_record import TrialRecord

    for number in range(max(records, default=-1) + 1):
        if number not in records:
            known = [records[other] for other in range(number)]
            asked = Study.rebuild(None, study.name, study.plan, study.space, known).ask()
            if asked is None:
                break
            when = records[number - 1].asked if number else 0.0
            records[number] = replace(
                TrialRecord(number, asked.values, asked.configuration, rung=asked.rung, epochs=asked.epochs),
                parent=asked.parent,
                asked=when,
            )
    whole = [records[number] for number in range(len(records)) if number in records]
    return Study.rebuild(storage, study.name, study.plan, study.space, whole)


async def _record(
    search: PlannedSearch, platform: Platform, handle: JobHandle, seen: Observation | None
) -> TrialRecord | None:
    """What one job says of its trial; None for one that says nothing."""
    from prefect_tao.searching.trial_record import Standing, TrialRecord

    request = await platform.request_of(handle)
    try:
        own = json.loads(request.env[RECORD]) if request else None
    except (KeyError, ValueError):
        own = None
    if own is None or request is None:
        return None
    began = TrialRecord(
        number=own["number"],
        values=own["values"],
        configuration=own["configuration"],
        origin=own.get("origin", -1),
        rung=own["rung"],
        epochs=own["epochs"],
        parent=own["parent"],
        asked=float(request.labels.get("asked", 0.0)),
    )
    if seen is None or not seen.state.terminal or seen.ended_at is None:
        return began
    if search.given["evaluate_trials"] and seen.state is JobState.COMPLETE:
        return began  # its score is its evaluation's, which is taken up where it stands
    from dataclasses import replace

    told = replace(began, told=max(seen.ended_at.timestamp(), began.asked))
    if seen.state is not JobState.COMPLETE:
        verdict = await retry(lambda: platform.diagnose(handle))
        is_own = verdict.err_class not in NOT_ITS_FAULT and seen.state is not JobState.CANCELED
        return replace(told, end=Standing.FAILED if is_own else Standing.WITHDRAWN, failure=verdict.cause)
    outcome = await collect(platform, handle, seen)
    scores = await read_scores(platform, outcome, search)
    if any(score is None for score in scores.values()):
        return replace(told, end=Standing.FAILED, failure="it did not report its metric")
    values = tuple(score.value for score in scores.values() if score is not None)
    points = curve(outcome.progress, search.objectives[0].metric)
    is_last = began.epochs is None or began.epochs >= (search.plan.max_epochs or began.epochs)
    end = Standing.COMPLETE if is_last else Standing.PAUSED
    epochs = {one.epoch: one.value for one in points if one.epoch is not None}
    return replace(told, end=end, result=values, curve=epochs)
