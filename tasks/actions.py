"""An action: one Prefect task that submits one job and polls it to its end; each action of TAO has its own."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any

from prefect import Task, task
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext

from prefect_tao.jobs.outcome import Outcome
from prefect_tao.jobs.request import JobRequest
from prefect_tao.tasks.artifacts.pages import DRAW_SECONDS, note_task
from prefect_tao.tasks.launch import launched
from prefect_tao.tasks.targets.admission import WhyNot
from prefect_tao.tasks.targets.opening import canonical
from prefect_tao.tasks.task_ends import ends_visibly
from prefect_tao.tasks.watch import watched

Action = Task[..., Coroutine[Any, Any, Outcome | State[Any]]]


def _by_key(context: TaskRunContext, parameters: dict[str, Any]) -> str:
    """A step that is complete is never run again, in this run or in one that was given the same run_key.

    At another target it is another job. The action's own task plays no part: its request names the action already.
    """
    where = str(canonical(parameters["target"])).replace("/", "-")
    return f"tao-{parameters['key']}-{where}-{parameters['request'].digest}"


def _tag(words: Iterable[str]) -> None:
    """Tag this task run, from within: with tags of its own a task asks the server for room before it may start.

    That takes seconds on a busy server, and minutes without one; so the tags travel with the news of the task's end.
    """
    if context := TaskRunContext.get():
        context.task_run.tags = sorted({*context.task_run.tags, *words})


# Retries are left to our verdicts: they know whether another attempt can help, and resume where the job was.
@task(name="action", task_run_name="{label}", persist_result=True, result_serializer="json", cache_key_fn=_by_key)
@ends_visibly
async def run_action(
    request: JobRequest,
    target: str,
    key: str,
    label: str,
    minutes: float = 5.0,
    page_seconds: float = DRAW_SECONDS,
    why_not: WhyNot | None = None,
) -> Outcome:
    """Launch the job of `key` exactly once, watch it to its end and collect what it left.

    Its page is drawn every `page_seconds`; with 0 it has none: one of a thousand points is a row of a leaderboard.
    While it waits for room, `why_not` is asked whether it is still wanted.

    Raises JobFailed with cause, remedy and log excerpt; SubmitFailed; Unreachable. A job that was cancelled or left is
    a state of the task, which raises JobCanceled or Detached when its result is asked for.
    """
    _tag(word for word in (request.model, request.action, canonical(target).platform) if word)
    note_task(key)
    found = await launched(request, target, key, why_not)
    return await watched(found.request or request, found.handle, label, minutes, page_seconds)


def _named(action: str) -> Action:
    """The same task under the action's own name; what Prefect knows a task by is its key."""
    named = run_action.with_options(name=action)
    named.task_key = action
    return named


train = _named("train")
evaluate = _named("evaluate")
inference = _named("inference")
export = _named("export")
gen_trt_engine = _named("gen_trt_engine")
prune = _named("prune")
retrain = _named("retrain")
quantize = _named("quantize")
distill = _named("distill")
dataset_convert = _named("dataset_convert")
_ACTIONS = {
    one.name: one
    for one in (
        train,
        evaluate,
        inference,
        export,
        gen_trt_engine,
        prune,
        retrain,
        quantize,
        distill,
        dataset_convert,
    )
}


def task_of(request: JobRequest) -> Action:
    """The task of the request's action; that of any action where it has none of its own."""
    return _ACTIONS.get(request.action or "", run_action)
