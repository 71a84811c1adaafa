"""The job records of a search: what a study is rebuilt from where its storage is not, and what its trials have used."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from prefect_tao.jobs.categories import Category, ErrClass
from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import job_key, run_label
from prefect_tao.jobs.outcome import collect, judged
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.retrying import retry
from prefect_tao.jobs.scoring import Score, chosen, curve
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.preflight.plans.searches import PlannedSearch
from prefect_tao.tasks.artifacts.search_page import SearchPage
from prefect_tao.tasks.trial_scores import read_scores

if TYPE_CHECKING:
    from prefect_tao.searching.study import Study
    from prefect_tao.searching.trial_record import TrialRecord

# What a job's variables say of its trial, for the trainer.
RECORD = "PREFECT_TAO_TRIAL"
# The label with the same words, and when it was asked for: of a job that is over, a platform may keep nothing else.
LABEL = "trial"
NOT_ITS_FAULT = (ErrClass.ERR_INFRA, ErrClass.ERR_CREDENTIALS)
BATCH = 64  # trials whose jobs are asked for together


def trial_step(step: str, number: int) -> str:
    """The step of one trial of a search; its job's key follows from that."""
    return f"{step}-trial-{number:03}"


def written(number: int, configuration: int, values: Mapping[str, Any], **more: Any) -> str:
    """A trial as its job record has it."""
    told = {"number": number, "configuration": configuration, "values": dict(values), **more}
    return json.dumps(told, sort_keys=True)


async def take_over(board: SearchPage, study: Study, platform: Platform, run: str, step: str) -> None:
    """Show the trials that an earlier process has seen to their ends, with what they used."""
    ended = [one for one in study.history if one.is_told]
    if not ended:
        return
    keys = {job_key(run, trial_step(step, one.number)): one for one in ended}
    found = await retry(lambda: platform.find(list(keys)))
    last = {key: attempts[-1] for key, attempts in found.items() if attempts}
    seen = await retry(lambda: platform.observe(list(last.values()))) if last else {}
    request = board.search.base.request
    gpus = request.resources.total_gpus if request else 0
    for key, record in keys.items():
        handle = last.get(key)
        name = trial_step(step, record.number)
        board.take_over(record, name, handle, _seconds(seen.get(handle) if handle else None), gpus)


def _seconds(seen: Observation | None) -> float:
    return (seen.ended_at - seen.started_at).total_seconds() if seen and seen.started_at and seen.ended_at else 0.0


# -- trials that ended while nobody led the search ---------------------------------------------------------------------


async def tell_ended(study: Study, search: PlannedSearch, platform: Platform, run: str, step: str) -> None:
    """Tell the study of trials that ended badly while nobody led it: a launch would run them once more.

    Those that the machines ended, and that are worth another attempt, are left to be taken up.
    """
    running = {job_key(run, trial_step(step, one.number)): one.number for one in study.running}
    if not running:
        return
    found = await retry(lambda: platform.find(list(running)))
    last = {attempts[-1]: running[key] for key, attempts in found.items() if attempts}
    seen = await retry(lambda: platform.observe(list(last))) if last else {}
    for handle, number in last.items():
        end = seen.get(handle)
        if end is not None and end.state in (JobState.ERROR, JobState.CANCELED):
            await _tell_end(study, search, platform, handle, end, number)


async def _tell_end(
    study: Study, search: PlannedSearch, platform: Platform, handle: JobHandle, end: Observation, number: int
) -> None:
    verdict = await retry(lambda: platform.diagnose(handle))
    if verdict.category is Category.CANCELED:
        value = _value_when_stopped(study, search, end, number)
        study.tell(number, value, "" if value is not None else "cancelled by a person")
    elif verdict.err_class in NOT_ITS_FAULT and not verdict.retryable:
        study.withdraw(number, verdict.cause)
    elif not verdict.retryable:
        study.tell(number, None, verdict.cause)


def _value_when_stopped(study: Study, search: PlannedSearch, end: Observation, number: int) -> float | None:
    """The value of a trial that the search itself ended because it stayed behind; None for any other one."""
    first = search.objectives[0]
    for value, epoch in curve(end.progress, first.metric):
        if epoch is not None:
            study.report(number, epoch, value)
    record = study.history[number]
    if record.stop is None:
        return None
    scores = [Score(value, epoch) for epoch, value in sorted(record.curve.items())]
    counts = chosen(scores, first.direction, search.given["score_epoch"])
    return counts.value if counts else None


# -- the study from the records of its jobs ----------------------------------------------------------------------------


async def is_outdated(study: Study, platform: Platform, run: str, step: str) -> bool:
    """Whether the search has gone on elsewhere: there are jobs of trials that this study does not know, or knows
    otherwise."""
    jobs = await _trial_jobs(platform, run, step)
    if any(number >= len(study.history) for number in jobs):
        return True
    for one in study.running:
        own = await _own_words(platform, jobs[one.number]) if one.number in jobs else None
        if own is not None and own["values"] != json.loads(json.dumps(dict(one.values))):
            return True
    return False


async def rebuilt(study: Study, storage: str, search: PlannedSearch, platform: Platform, run: str, step: str) -> Study:
    """The study as the jobs on the platform tell it; the same one where there are none.

    Raises InvalidInput where it is not known any more what one of them has tried.
    """
    jobs = await _trial_jobs(platform, run, step)
    if not jobs:
        return study
    seen = await retry(lambda: platform.observe(list(jobs.values())))
    top = study.schedule.top
    asked = (_record(search, platform, top, number, one, seen.get(one)) for number, one in jobs.items())
    records = {one.number: one for one in await asyncio.gather(*asked) if one is not None}
    return await asyncio.to_thread(_complete, study, storage, records)


async def _trial_jobs(platform: Platform, run: str, step: str) -> dict[int, JobHandle]:
    """The newest job of each trial, by its number, with labels where the platform has them."""
    found: dict[int, JobHandle] = {}
    for first in itertools.count(0, BATCH):
        keys = {job_key(run, trial_step(step, number)): number for number in range(first, first + BATCH)}
        attempts = await retry(lambda: platform.find(list(keys)))  # noqa: B023 - awaited here
        known = {keys[key]: handles[-1] for key, handles in attempts.items() if handles}
        if not known:
            break
        found |= known
    far = await retry(lambda: platform.elsewhere(list(found.values())))  # which a launch refuses to attach to
    found = {number: one for number, one in found.items() if one not in far}
    if all(LABEL in one.labels for one in found.values()):
        return found
    listed = {one.name: one.labels for one in await retry(lambda: platform.jobs({"run": run_label(run)}))}
    labels = {number: one.labels or listed.get(one.name, {}) for number, one in found.items()}
    return {number: one.model_copy(update={"labels": labels[number]}) for number, one in found.items()}


def _complete(study: Study, storage: str, records: dict[int, TrialRecord]) -> Study:
    """The study of these records. A number without a job was asked for and never launched: it is asked for again."""
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


async def _own_words(platform: Platform, handle: JobHandle) -> dict[str, Any] | None:
    """What a job's record says of its trial; None where there is no such record any more."""
    text = handle.labels.get(LABEL)
    if text is None:
        request = await retry(lambda: platform.request_of(handle))
        text = request.env.get(RECORD) if request else None
    try:
        own: dict[str, Any] = json.loads(text or "")
    except ValueError:
        return None
    return own


async def _record(
    search: PlannedSearch, platform: Platform, top: int, number: int, handle: JobHandle, seen: Observation | None
) -> TrialRecord | None:
    """What one job says of its trial; None for one that was never begun, and says nothing."""
    from prefect_tao.searching.trial_record import TrialRecord

    own = await _own_words(platform, handle)
    if own is None:
        if seen is not None and seen.state in (JobState.RUNNING, JobState.COMPLETE):
            raise InvalidInput(
                f"{handle.name} is trial {number} of this search, and it is not known any more what it has tried",
                "name the storage that the search had (--storage), or begin a new search with another run key",
            )
        return None
    began = TrialRecord(
        number=number,
        values=own["values"],
        configuration=own["configuration"],
        origin=own.get("origin", -1),
        rung=own["rung"],
        epochs=own["epochs"],
        parent=own["parent"],
        asked=float(own.get("asked", 0.0)),
    )
    if seen is None or not seen.state.terminal or seen.ended_at is None:
        return began
    told = replace(began, told=max(seen.ended_at.timestamp(), began.asked))
    if seen.state is JobState.COMPLETE:
        # The score of one that is evaluated is its evaluation's, which is taken up where it stands.
        return began if search.given["evaluate_trials"] else await _scored(search, platform, top, handle, seen, told)
    return began  # how one counts that did not come to its end is told by `tell_ended`


async def _scored(
    search: PlannedSearch, platform: Platform, top: int, handle: JobHandle, seen: Observation, told: TrialRecord
) -> TrialRecord:
    """The record with the score that the job left."""
    from prefect_tao.searching.trial_record import Standing

    outcome = judged(await collect(platform, handle, seen), search.base.action)
    if outcome.verdict is not None:
        return replace(told, end=Standing.FAILED, failure=outcome.verdict.cause)
    scores = await read_scores(platform, outcome, search)
    values = tuple(score.value for score in scores.values() if score is not None and math.isfinite(score.value))
    if len(values) < len(scores):
        return replace(told, end=Standing.FAILED, failure="it did not report its metric")
    points = curve(outcome.progress, search.objectives[0].metric)
    epochs = {one.epoch: one.value for one in points if one.epoch is not None}
    return replace(told, end=Standing.COMPLETE if told.rung >= top else Standing.PAUSED, result=values, curve=epochs)
