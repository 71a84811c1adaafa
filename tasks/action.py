"""An action: one Prefect task that submits one job and polls it to its end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from prefect import task
from prefect.context import TaskRunContext

from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.request import JobRequest
from prefect_tao.tasks.launch import launched
from prefect_tao.tasks.targets import canonical
from prefect_tao.tasks.watch import watched


def _by_key(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    """A step that is complete is never run again, in this run or in one that was given the same run_key."""
    return f"tao-{parameters['key']}-{parameters['request'].digest}"


def _tag(words: Iterable[str]) -> None:
    """Tag this task run, from within: with tags of its own a task asks the server for room before it may start.

    That takes seconds on a busy server, and minutes without one; so the tags travel with the news of the task's end.
    """
    if context := TaskRunContext.get():
        context.task_run.tags = sorted({*context.task_run.tags, *words})


# Retries are left to our verdicts: they know whether another attempt can help, and resume where the job was.
@task(name="action", task_run_name="{label}", persist_result=True, result_serializer="json", cache_key_fn=_by_key)
async def run_action(
    request: JobRequest, target: str, key: str, label: str, minutes: float = 5.0, pages: bool = True
) -> Outcome:
    """Launch the job of `key` exactly once, watch it to its end and collect what it left.

    Without `pages` it leaves no artifacts of its own: one of a thousand points is a row of a leaderboard.

    Raises JobFailed with cause, remedy and log excerpt; JobCanceled; SubmitFailed; Unreachable.
    """
    _tag(word for word in (request.model, request.action, canonical(target).platform) if word)
    handle = (await launched(request, target, key)).handle
    return await watched(request, handle, label, minutes, pages)
