"""A search: what its trials repeat and what they vary, what they are judged by, and what they may spend. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from prefect_tao.catalog.lookup import find_model
from prefect_tao.catalog.nouns import ActionEntry, Catalog, ModelEntry
from prefect_tao.jobs.errors import InvalidInput, MissingDependency
from prefect_tao.jobs.finding import COMPUTE, Finding, Level
from prefect_tao.jobs.outcome import Outcome
from prefect_tao.launch.parameters.declared import SearchParameters
from prefect_tao.launch.parameters.derived import completed, parameters
from prefect_tao.launch.parameters.search_declared import SearchingParameters
from prefect_tao.preflight.plans.search_limits import TRIALS, Budget, Objective, budget_of, objectives_of
from prefect_tao.preflight.plans.search_settings import settled, unused
from prefect_tao.preflight.plans.searched import Choose, parameters_of, ranges_of
from prefect_tao.preflight.plans.step import Step, filled
from prefect_tao.preflight.plans.sweep_plan import Point, fixed_outputs, resolve_points
from prefect_tao.preflight.resolve.ask import Resolved
from prefect_tao.preflight.resolve.translating import with_overrides
from prefect_tao.runner.inside.pointers import get_pointer, walk
from prefect_tao.runner.inside.resume import RESUME_LEAF

if TYPE_CHECKING:
    from prefect_tao.searching.search_plan import SearchPlan
    from prefect_tao.searching.space import Space
    from prefect_tao.searching.whole_trials import Schedule

EPOCHS = ("num_epochs", "epochs", "n_epochs", "max_epochs", "epoch")
EVALUATE = "evaluate"
SECTIONS = ("", "train.", "train_config.", "training_config.", "runner.")


@dataclass(frozen=True)
class PlannedSearch:
    """A search that fits together. `given` are the parameters of the launch that all trials repeat."""

    given: Mapping[str, Any]
    platform: str
    plan: SearchPlan
    objectives: tuple[Objective, ...]
    space: Space
    budget: Budget
    base: Resolved
    epoch_key: str | None
    most_jobs: int
    metric_file: str | None = None
    shorthand: Mapping[str, str] = field(default_factory=dict)

    @property
    def title(self) -> str:
        """What is searched, for people: dino train, or the first word of the command."""
        words = " ".join(word for word in (self.base.model, self.base.action) if word)
        return words or str(self.given["command"]).split()[0]

    @property
    def resume_key(self) -> str | None:
        """The spec key that takes the checkpoint to go on from, where the action has one."""
        keys = [key for key, _ in walk(self.base.spec)]
        return next((key for key in keys if key.rpartition(".")[2] == RESUME_LEAF), None)

    def beginning_with(self, values: Mapping[str, Any]) -> PlannedSearch:
        """The same search with these values in the place of the template's. Raises InvalidInput."""
        own = self.space.values(self.space.first)
        if values.keys() != own.keys():
            odd = ", ".join(sorted(values.keys() ^ own.keys()))
            raise InvalidInput(
                f"warm_start: the earlier search varied other parameters: {odd}", "name the same ones with --parameter"
            )
        return replace(self, space=replace(self.space, first=self.space.point(values)))

    def at_price(self, own: float | None) -> PlannedSearch:
        """The same search where a GPU costs this in an hour, unless a person has said. Raises InvalidInput."""
        price = self.budget.price or own
        if self.budget.cost and not price:
            raise InvalidInput(
                "max_cost is given, and what a GPU costs is not known",
                "give --gpu-hour-price too (gpu_hour_price), save it in the block, or give --max-gpu-hours instead",
            )
        return replace(self, budget=replace(self.budget, price=price))

    def most_gpu_hours(self) -> float | None:
        """The most that it may use; None where neither a time limit nor a budget bounds it."""
        request = self.base.request
        if request is None or not request.resources.total_gpus:
            return 0.0
        limit, gpus = request.resources.time_limit, request.resources.total_gpus
        bounds = [self.budget.gpu_hours]
        if self.budget.cost and self.budget.price:
            bounds.append(self.budget.cost / self.budget.price)
        if limit:
            jobs = self.most_jobs * (2 if self.given["evaluate_trials"] else 1)
            bounds.append(jobs * limit * gpus / 3600)
        return min((bound for bound in bounds if bound), default=None)


def plan_search(given: Mapping[str, Any], platform: str, catalog: Catalog, at_most: int | None = None) -> PlannedSearch:
    """The search that the parameters of `automl` mean; the target takes `at_most` jobs at once.

    Raises InvalidInput with what is wrong with it, MissingDependency where Optuna is not installed.
    """
    ignored = unused(given)
    given, options = settled(given)
    launch = _spelled(
        {key: value for key, value in given.items() if key not in parameters(SearchingParameters)}, catalog
    )
    needed = _needed()
    base = _noting(_trial_launch(launch, {}, platform, catalog), ignored)
    model, action = _entries(launch, catalog)
    judge = _judge(given, model, action)
    objectives = objectives_of(given, model, judge)
    epoch_key = _epoch_key(model, base)
    spec = {key: value for key, value in _values(base).items() if value is not None}
    chosen = [one for one in parameters_of(given, model, action, needed.choose) if one.name != epoch_key]
    plan = _plan(given, options, objectives, needed, _whole(spec.get(epoch_key or "")))
    space = needed.space_of(chosen, spec, ranges_of(given, model))
    search = PlannedSearch(
        given={**launch, **{key: given[key] for key in _KEPT}},
        platform=platform,
        plan=plan,
        objectives=objectives,
        space=space,
        budget=budget_of({**given, "max_trials": plan.max_trials}, at_most),
        base=base,
        epoch_key=epoch_key,
        most_jobs=needed.schedule_of(plan, space).most_jobs,
        metric_file=given["metric_file"] or (judge.metric_file if judge else None),
        shorthand=model.shorthand if model else {},
    )
    if plan.schedule != "whole" and epoch_key is None:
        raise InvalidInput(
            f"{plan.algorithm} gives trials more and more epochs, and the spec has no key for them",
            "use bayesian, or add the key to the spec, for example train.num_epochs",
        )
    _check_first(search, catalog)
    return search


def _check_first(search: PlannedSearch, catalog: Catalog) -> None:
    """What is wrong with the first trial is wrong with all. Raises InvalidInput."""
    first = resolve_trial(search, search.space.values(search.space.first), catalog)
    for shared in fixed_outputs(first, catalog):
        raise InvalidInput(
            f"all trials would write to {shared}, and one would overwrite the other",
            "leave it out, so that each trial has a folder of its own ($TAO_RESULTS_DIR in a command)",
        )


def _noting(base: Resolved, ignored: Sequence[str]) -> Resolved:
    """With a word about settings that change nothing."""
    if not ignored:
        return base
    message = f"automl_settings: {', '.join(ignored)} has no effect here"
    note = Finding(level=Level.WARN, gate=COMPUTE, subject="automl_settings", message=message, remedy="leave it out")
    return base.model_copy(update={"findings": (*base.findings, note)})


def _plan(
    given: Mapping[str, Any],
    options: Mapping[str, Any],
    objectives: Sequence[Objective],
    needed: _Needed,
    epochs: int | None,
) -> SearchPlan:
    """How the study is led. Raises InvalidInput."""
    settings = {
        **options,
        "algorithm": given["algorithm"],
        "metrics": tuple(one.metric for one in objectives),
        "directions": tuple(one.direction for one in objectives),
        "max_trials": given["max_trials"],
        "max_epochs": given["max_epochs"],
        "max_failures": given["max_failures"],
        "seed": given["seed"],
    }
    plan = needed.plan_of(settings)
    if plan.schedule == "whole":
        return plan if plan.max_trials else needed.plan_of({**settings, "max_trials": TRIALS})
    is_said = plan.max_epochs or (plan.generations and plan.interval)
    return plan if is_said or not epochs else needed.plan_of({**settings, "max_epochs": epochs})


# What the flow asks a search for besides its launch.
_KEPT = (
    "storage",
    "warm_start",
    "baseline",
    "final_evaluation",
    "keep_checkpoints",
    "score_epoch",
    "evaluate_trials",
)


class _Needed(NamedTuple):
    """What a search takes from the room `searching`, which is entered late: it needs Optuna."""

    choose: Choose
    plan_of: Callable[[Mapping[str, Any]], SearchPlan]
    space_of: Callable[..., Space]
    schedule_of: Callable[[SearchPlan, Space], Schedule]


def _needed() -> _Needed:
    try:
        from prefect_tao.searching.parameter_choice import chosen_parameters
        from prefect_tao.searching.search_plan import SearchPlan
        from prefect_tao.searching.space import space_of
        from prefect_tao.searching.study import schedule_of
    except ImportError as error:
        raise MissingDependency(
            f"a search needs {error.name}, which is not installed", "pip install 'prefect-tao[automl]'"
        ) from None
    return _Needed(chosen_parameters, SearchPlan.of, space_of, schedule_of)


# -- what the trials repeat --------------------------------------------------------------------------------------------


def _spelled(launch: dict[str, Any], catalog: Catalog) -> dict[str, Any]:
    """The launch with whole keys in the place of short words, so that what a trial varies stands for what is shared."""
    names = find_model(catalog, str(launch["model"])) if launch["model"] else []
    if len(names) != 1 or not launch["overrides"]:
        return launch
    words = catalog.models[names[0]].shorthand
    return {**launch, "overrides": {words.get(key, key): value for key, value in launch["overrides"].items()}}


def _entries(given: Mapping[str, Any], catalog: Catalog) -> tuple[ModelEntry | None, ActionEntry | None]:
    if given.get("command") is not None:
        return None, None
    model = catalog.models[find_model(catalog, str(given["model"]))[0]]
    return model, model.actions[str(given["action"])]


def _judge(given: Mapping[str, Any], model: ModelEntry | None, action: ActionEntry | None) -> ActionEntry | None:
    """The action whose metric trials are judged by. Raises InvalidInput where each is to be evaluated and cannot be."""
    if not given["evaluate_trials"]:
        return action
    if model is None or EVALUATE not in model.actions or given["action"] == EVALUATE:
        what = f"{given['model']} {given['action']}" if model else "a command"
        raise InvalidInput(f"evaluate_trials: {what} has no evaluation of its own", "leave it out, or name a --metric")
    return model.actions[EVALUATE]


def _epoch_key(model: ModelEntry | None, base: Resolved) -> str | None:
    """The spec key that says for how long a trial trains, where there is one."""
    values = _values(base)
    usual = model.shorthand.get("num_epochs") if model else None
    candidates = [usual, *(f"{section}{name}" for section in SECTIONS for name in EPOCHS)]
    return next((key for key in candidates if key in values), None)


def _values(base: Resolved) -> dict[str, Any]:
    """Everything in the base spec by pointer, and lists whole too."""
    request = base.request
    tree = (request.specs if request and request.specs is not None else request.args if request else None) or base.spec
    found = dict(walk(tree))
    for key in list(found):
        head, bracket, _ = key.partition("[")
        if bracket:
            found.setdefault(head, get_pointer(tree, head))
    return found


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


# -- from a proposal to a launch ---------------------------------------------------------------------------------------


def search_given(step: Step, outcomes: Mapping[str, Outcome], resolved: Resolved) -> dict[str, Any]:
    """The parameters of the search that a step of a chain is, with what the steps before it hand over to its trials."""
    given = completed(SearchParameters, filled(step, outcomes))
    taken = {key: get_pointer(resolved.spec, key) for key in step.takes}
    handed = {key: value for key, value in taken.items() if value is not None}
    return {**given, "overrides": {**handed, **(given["overrides"] or {})}}


def resolve_trial(search: PlannedSearch, values: Mapping[str, Any], catalog: Catalog) -> Resolved:
    """What one trial means. Raises InvalidInput where the schema refuses its values."""
    return _trial_launch(search.given, values, search.platform, catalog)


def _trial_launch(given: Mapping[str, Any], values: Mapping[str, Any], platform: str, catalog: Catalog) -> Resolved:
    """A trial is a plain launch: the search is where its policy has led to."""
    point = Point(dict(values))
    (resolved,) = resolve_points({**given, "automl_policy": "off"}, [point], platform, catalog)
    trial = Finding(level=Level.OK, gate=COMPUTE, subject="automl", message="this is a trial of an AutoML search")
    findings = [one for one in resolved.findings if one.subject != "automl"]
    return resolved.model_copy(update={"findings": (*findings, trial)})


def best_spec(search: PlannedSearch, values: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of a trial as a person would write it: what all trials share, and its own values, without its length."""
    words = search.shorthand
    shared = {words.get(key, key): value for key, value in (search.given.get("overrides") or {}).items()}
    length = (search.epoch_key, search.resume_key)
    own = {key: value for key, value in {**shared, **values}.items() if key not in length}
    return with_overrides(search.given.get("specs") or search.given.get("args"), own) or {}
