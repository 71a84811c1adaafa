"""The parameters of a search, declared once: what it may spend, and what it takes besides the launch of its trials."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypedDict

from annotated_types import Ge, Gt

from prefect_tao.jobs.quantities import Direction
from prefect_tao.launch.parameters.parameter import Parameter

# Which checkpoints of a search stay: those of its best trials, or all of them.
Kept = Literal["best", "all"]
# Which epoch of a trial counts.
ScoreEpoch = Literal["best", "last"]


class BudgetParameters(TypedDict, total=False):
    """What a search may spend: whatever may become a search takes these, and a search needs one of them."""

    max_trials: Annotated[int | None, Ge(1), Parameter("resources", "Trials of an AutoML search; 20 when left out.")]
    max_concurrent: Annotated[int | None, Ge(1), Parameter("resources", "Trials of a search at once; 4 when left out.")]
    max_gpu_hours: Annotated[float | None, Gt(0), Parameter("resources", "GPU hours that a search may use.")]
    max_cost: Annotated[
        float | None, Gt(0), Parameter("resources", "Money that a search may use, where a price is known.")
    ]
    gpu_hour_price: Annotated[
        float | None, Gt(0), Parameter("resources", "What one GPU costs in an hour; the target's own when left out.")
    ]
    yes: Annotated[
        bool,
        Parameter("advanced", "Begin a search as planned, with its default budget, unasked.", default=False),
    ]
    automl_settings: Annotated[
        dict[str, Any] | None,
        Parameter(
            "advanced",
            "More about the search: any parameter of automl, or a setting of nvidia-tao-automl.",
            option="--automl-setting",
            metavar="<key=value>",
            word="algorithm=asha",
            example={"algorithm": "asha", "automl_max_epochs": 27},
        ),
    ]


class SearchingParameters(BudgetParameters, total=False):
    """What a search takes besides the launch that its trials repeat."""

    algorithm: Annotated[
        str, Parameter("what", "How trials are chosen: bayesian, tpe, random, asha, hyperband, ...", default="bayesian")
    ]
    parameters: Annotated[
        list[str] | None,
        Parameter(
            "what",
            "The spec keys or short words to search; those that the catalog enables when left out.",
            option="--parameter",
            metavar="<key>",
        ),
    ]
    custom_param_ranges: Annotated[
        dict[str, Any] | None,
        Parameter(
            "what",
            "By key its range: {valid_min, valid_max} or {valid_options, option_weights}.",
            option="--range",
            metavar="<key=range>",
            form="ranges",
            typed="KEY=MIN..MAX, or KEY=VALUE,VALUE,...; MIN above 0 with decades between is searched in decades.",
            word="learning_rate=0.001..0.5",
            example={"train.optim.lr": {"valid_min": 0.001, "valid_max": 0.5}},
        ),
    ]
    metric: Annotated[
        str | None, Parameter("what", "What trials are judged by; the catalog's for the action when left out.")
    ]
    direction: Annotated[Direction | None, Parameter("what", "minimize or maximize; the catalog's when left out.")]
    objectives: Annotated[
        list[dict[str, Any]] | None,
        Parameter(
            "what",
            "Several metrics at once instead of one, each {metric, direction}.",
            option=None,
            example={"metric": "val_loss", "direction": "minimize"},
        ),
    ]
    metric_file: Annotated[
        str | None,
        Parameter("what", "A JSON file below the results that holds the metric, where no status file does."),
    ]
    score_epoch: Annotated[
        ScoreEpoch,
        Parameter("what", "The epoch that counts, and whose checkpoint is handed on: best or last.", default="best"),
    ]
    evaluate_trials: Annotated[
        bool,
        Parameter("what", "Judge each trial by the model's evaluate action, not by its own report.", default=False),
    ]
    max_epochs: Annotated[
        int | None, Ge(1), Parameter("resources", "Epochs of a whole training, for algorithms that stop early.")
    ]
    max_hours: Annotated[float | None, Gt(0), Parameter("resources", "Wall time of the search, in hours.")]
    max_failures: Annotated[
        int | None,
        Ge(0),
        Parameter("resources", "Failed trials that a search bears; half of all when left out, but 3 at least."),
    ]
    seed: Annotated[int, Parameter("advanced", "Decides what is tried; the same one tries the same.", default=0)]
    baseline: Annotated[
        bool,
        Parameter(
            "advanced",
            "Evaluate the starting checkpoint first, where there is one.",
            default=True,
            option="--no-baseline",
            form="unset",
            typed="Do not evaluate the starting checkpoint first.",
        ),
    ]
    final_evaluation: Annotated[
        bool,
        Parameter(
            "advanced",
            "Evaluate the winner at the end.",
            default=True,
            option="--no-final-evaluation",
            form="unset",
            typed="Do not evaluate the winner at the end.",
        ),
    ]
    keep_checkpoints: Annotated[
        Kept,
        Parameter("advanced", "best removes the checkpoints of trials that lost, all removes none.", default="best"),
    ]
    storage: Annotated[
        str | None,
        Parameter("advanced", "The Optuna storage as a URL; a SQLite file of this machine's when left out."),
    ]
    warm_start: Annotated[
        str | None,
        Parameter("advanced", "Run key of an earlier search on this machine, whose best values are tried first."),
    ]
