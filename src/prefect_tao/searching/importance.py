"""Which parameters matter for the metric, as far as the trials of a search can tell."""

from __future__ import annotations

import warnings

import optuna
from optuna.importance import FanovaImportanceEvaluator, get_param_importances
from threadpoolctl import threadpool_limits

from prefect_tao.searching.study import Study
from prefect_tao.searching.suggesting import seen

FEWEST = 6  # scored trials before there is anything to say


def importances(study: Study) -> dict[str, float]:
    """By parameter its share of what moves the first metric, the largest first; empty with too few trials."""
    view = seen(study.plan, study.space, study.slots)
    scored = [one for one in view.get_trials(deepcopy=False) if one.state == optuna.trial.TrialState.COMPLETE]
    values = {one.values[0] for one in scored if one.values}
    if len(scored) < FEWEST or len(values) < 2:
        return {}
    with warnings.catch_warnings(), threadpool_limits(1):
        warnings.simplefilter("ignore")
        try:
            return get_param_importances(
                view, evaluator=FanovaImportanceEvaluator(n_trees=32, seed=0), target=lambda one: one.values[0]
            )
        except (RuntimeError, ValueError):  # values that do not differ enough to tell anything
            return {}
