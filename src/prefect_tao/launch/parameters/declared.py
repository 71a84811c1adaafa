"""Every parameter of a launch, declared once: its name, type, limits, default, group and help.

Flow signatures, forms, options of the command line, the fields of a chain's step and the types of Python calls follow
from these classes. A flow takes what its class inherits and declares; `DIFFERENT` holds what it says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypedDict

from annotated_types import Ge, Gt

from prefect_tao.jobs.quantities import ALL_GPUS, Direction
from prefect_tao.launch.parameters.parameter import Parameter
from prefect_tao.launch.parameters.search_declared import BudgetParameters, SearchingParameters

AutoMLPolicy = Literal["on", "off"]
ConfigFormat = Literal["yaml", "toml", "json"]
Mode = Literal["grid", "zip", "random"]
# What a failure means for the others: nothing, no new one begins, or what failed is run once more at the end.
OnFailure = Literal["continue", "stop", "retry"]
Recipe = Literal["deploy", "convert", "prune", "quantize"]
Locations = str | list[str] | None


def _root(help: str) -> Parameter:
    return Parameter("data", help, metavar="<location>", only="action")


class SharedParameters(TypedDict, total=False):
    """What a launch is given, and a chain may say once for all of its steps."""

    model: Annotated[str | None, Parameter("what", "The model, by name, alias, arch or Hugging Face id.")]
    target: Annotated[
        str, Parameter("where", "Where: process, or PLATFORM/BLOCK such as slurm/polar.", default="process")
    ]
    image: Annotated[str | None, Parameter("where", "Container image; naming one confirms it.")]
    confirm_image: Annotated[bool, Parameter("where", "Accept the catalog's default image.", default=False)]
    train_root: Annotated[Locations, _root("Where the training data is; the catalog maps its files to spec keys.")]
    eval_root: Annotated[Locations, _root("Where the evaluation data is.")]
    inference_root: Annotated[Locations, _root("Where the data for inference is.")]
    calibration_root: Annotated[Locations, _root("Where the calibration data is.")]
    train_wds_root: Annotated[Locations, _root("Where training data in WebDataset shards is.")]
    data_format: Annotated[
        str | None,
        Parameter("data", "The form of the data below the roots, where a model knows several.", only="action"),
    ]
    overrides: Annotated[
        dict[str, Any] | None,
        Parameter(
            "data",
            "Single spec values by dotted key or short word such as num_epochs; dataset keys win over roots.",
            option="--set",
            metavar="<key=value>",
            example={"num_epochs": 10},
        ),
    ]
    gpus: Annotated[int | None, Ge(ALL_GPUS), Parameter("resources", "GPUs per node; -1 for all that a node has.")]
    nodes: Annotated[int | None, Ge(1), Parameter("resources", "Number of nodes.")]
    cpus: Annotated[int | None, Ge(1), Parameter("resources", "CPU cores per node.")]
    memory: Annotated[str | None, Parameter("resources", "Memory per node, for example 64G.")]
    time_limit: Annotated[str | None, Parameter("resources", "Wall time of one attempt, for example 4h.")]
    shm: Annotated[str | None, Parameter("resources", "Size of /dev/shm, for example 8G.")]
    env: Annotated[
        dict[str, str] | None,
        Parameter(
            "advanced",
            "Environment variables; never secrets.",
            metavar="<name=value>",
            example={"NCCL_DEBUG": "INFO"},
        ),
    ]
    secrets: Annotated[
        list[str] | None,
        Parameter("advanced", "Names of secrets, such as HF_TOKEN; never values.", option="--secret", metavar="<name>"),
    ]
    automl_policy: Annotated[
        AutoMLPolicy,
        Parameter("advanced", "on lets AutoML search where a model has it; off runs one plain training.", default="on"),
    ]
    allow_keys: Annotated[
        list[str] | None,
        Parameter(
            "advanced",
            "Spec keys to let through although the schema refuses the key or its value, for images newer than it.",
            option="--allow-key",
            metavar="<key>",
            only="action",
        ),
    ]
    mount_proof: Annotated[
        dict[str, str] | None,
        Parameter(
            "advanced",
            "By path, how it is mounted into the job, for platforms that cannot be asked.",
            metavar="<path=how>",
            word="/data=nfs",
        ),
    ]
    release_elsewhere: Annotated[
        bool,
        Parameter(
            "advanced",
            "Let go of jobs under this run key on an engine, cluster or machine that is gone for good.",
            default=False,
        ),
    ]


class _CommandParameter(TypedDict, total=False):
    """Apart from the others only because it comes first."""

    command: Annotated[
        str | None,
        Parameter(
            "what",
            "What to run, as a shell would; leave it out to run an action of a model from the catalog.",
            option=None,
        ),
    ]


class LaunchParameters(_CommandParameter, SharedParameters, total=False):
    """What belongs to one launch."""

    action: Annotated[
        str | None,
        Parameter("what", "The model's action, such as train or export; a train is checked for real progress."),
    ]
    specs: Annotated[
        dict[str, Any] | None,
        Parameter(
            "data",
            "The spec, nested; with a command it is written to the file that {config_path} names.",
            option="--spec",
            form="spec",
            typed="Spec file; {config_path} in a command names its copy.",
            example={"train": {"num_epochs": 10}},
        ),
    ]
    args: Annotated[
        dict[str, Any] | None,
        Parameter(
            "data",
            "Arguments of a command, appended as --key value.",
            option="--arg",
            metavar="<key=value>",
            only="command",
            example={"epochs": 10},
        ),
    ]
    flags: Annotated[
        list[str] | None,
        Parameter("data", "Flags of a command, appended as --flag.", option="--flag", metavar="<flag>", only="command"),
    ]
    inputs: Annotated[
        dict[str, Any] | None,
        Parameter(
            "data",
            "Declared inputs of a command by spec key, or {path: location}.",
            option="--input",
            metavar="<path=location>",
            form="inputs",
            typed="PATH=LOCATION; with a spec KEY[:file|folder].",
            only="command",
            example={"/data/train": "s3://bucket/train"},
        ),
    ]
    outputs: Annotated[
        dict[str, Any] | list[str] | None,
        Parameter(
            "data",
            "Declared outputs of a command by spec key, or a list of paths.",
            option="--output",
            metavar="<path>",
            form="outputs",
            typed="PATH to keep; with a spec KEY[:file|folder].",
            only="command",
        ),
    ]
    config_format: Annotated[
        ConfigFormat, Parameter("advanced", "The form of a command's spec file.", default="yaml", only="command")
    ]
    upload_excludes: Annotated[
        list[str] | None,
        Parameter(
            "advanced",
            "Patterns of output files not to keep.",
            option="--exclude",
            metavar="<pattern>",
            only="command",
        ),
    ]
    workdir: Annotated[
        str | None, Parameter("advanced", "Folder in which the command starts.", form="folder", only="command")
    ]
    json_required_fields: Annotated[
        dict[str, list[str]] | None,
        Parameter(
            "advanced",
            "By dataset key, fields that every annotation record must have.",
            option="--json-required-field",
            metavar="<key=field>",
            word="dataset.train_data_sources[0].json_file=image_id,bbox",
            typed="KEY=FIELD[,FIELD]: fields that every annotation record must have.",
        ),
    ]
    paths: Annotated[
        dict[str, str] | None,
        Parameter(
            "advanced",
            "Further locations to look at before the launch, by a label.",
            option="--path",
            metavar="<label=path>",
            example={"pretrained": "/models/dino.pth"},
        ),
    ]


class StepParameters(LaunchParameters, BudgetParameters, total=False):
    """One launch, or the search that it may become: what a step of a chain may be given."""


class FlowParameters(TypedDict, total=False):
    """What every flow that launches takes besides its launches."""

    status_interval_minutes: Annotated[
        float, Gt(0), Parameter("monitoring", "Minutes between status lines.", default=5.0, option="--interval")
    ]
    run_key: Annotated[
        str | None,
        Parameter("advanced", "Attach to the jobs of an earlier run, by its key or by the id of its flow run."),
    ]


class RunParameters(StepParameters, FlowParameters, total=False):
    """What the flow `run` takes."""

    long_running_enabled: Annotated[
        bool,
        Parameter(
            "monitoring",
            "Stay attached; off: launch, report the handle, stop.",
            default=True,
            option="--detach",
            form="unset",
            typed="Launch, print the handle, leave.",
        ),
    ]
    step: Annotated[
        str | None,
        Parameter("advanced", "Names this job within the run; needed for two equal jobs in one flow.", option=None),
    ]


class _StepsParameters(TypedDict, total=False):
    """Apart from the others only because they come first."""

    steps: Annotated[
        list[dict[str, Any]] | None,
        Parameter(
            "what",
            "The steps: maps with the parameters of a run, a name, and after: the steps it waits for.",
            option=None,
            example={"action": "train", "overrides": {"num_epochs": 10}},
        ),
    ]
    recipe: Annotated[Recipe | None, Parameter("what", "A ready-made chain instead of steps.")]


class ChainParameters(_StepsParameters, SharedParameters, BudgetParameters, FlowParameters, total=False):
    """What the flow `chain` takes."""


class SearchParameters(StepParameters, SearchingParameters, FlowParameters, total=False):
    """What the flow `automl` takes."""


class ChainStepParameters(StepParameters, SearchingParameters, total=False):
    """What a step of a chain may be given; what only a search takes is for one of the kind automl."""


class SweepParameters(LaunchParameters, FlowParameters, total=False):
    """What the flow `sweep` takes."""

    over: Annotated[
        dict[str, Any] | None,
        Parameter(
            "what",
            "By spec key or short word, the values to try; in mode random also {min, max, log}.",
            metavar="<key=values>",
            form="tried",
            typed="KEY=VALUE,VALUE,... to try; in mode random also a range.",
            example={"train.optim.lr": [0.1, 0.01]},
        ),
    ]
    mode: Annotated[
        Mode,
        Parameter(
            "what",
            "grid tries all combinations, zip the first with the first and so on, random draws samples.",
            default="grid",
        ),
    ]
    points: Annotated[
        list[dict[str, Any]] | None,
        Parameter(
            "what",
            "The points themselves, as maps of values, instead of over.",
            form="points",
            typed="YAML, JSON or CSV file with the points, instead of --over.",
            example={"train.optim.lr": 0.1, "num_epochs": 10},
        ),
    ]
    samples: Annotated[int | None, Ge(1), Parameter("what", "How many points mode random draws.")]
    metric: Annotated[
        str | None, Parameter("what", "What points are ranked by; the catalog's for the action when left out.")
    ]
    direction: Annotated[Direction | None, Parameter("what", "minimize or maximize; the catalog's when left out.")]
    max_concurrent: Annotated[
        int | None,
        Ge(1),
        Parameter("resources", "Jobs at once; on process as many as there are cores when left out."),
    ]
    on_failure: Annotated[
        OnFailure,
        Parameter(
            "monitoring",
            "continue with the other points, stop launching new ones, or retry those that failed once more.",
            default="continue",
        ),
    ]
    seed: Annotated[int, Parameter("advanced", "Decides what mode random draws.", default=0)]


# What is said otherwise where a chain speaks of its steps, and a sweep of its points.
DIFFERENT: Mapping[type, Mapping[str, Mapping[str, Any]]] = {
    ChainParameters: {
        "model": {"help": "The model of all steps that name none."},
        "target": {"help": "Where the steps run that name no target: process, or PLATFORM/BLOCK such as slurm/polar."},
        "overrides": {
            "help": "Spec values for all steps that know them, by dotted key or short word; a step's own win."
        },
        "image": {
            "help": "Container image for steps that name none and whose action has none of its own; this confirms it."
        },
        "confirm_image": {"help": "Accept the catalog's default images."},
    },
    SweepParameters: {
        "specs": {"help": "The spec that all points share, nested."},
        "overrides": {"help": "Spec values that all points share."},
        "args": {
            "help": "Arguments of a command that all points share, appended as --key value, with the keys to vary."
        },
        "automl_policy": {"default": "off", "help": "A sweep is its own search: each point is one plain run."},
    },
    SearchParameters: {
        "specs": {"help": "The spec that all trials share, nested."},
        "overrides": {"help": "Spec values that all trials share."},
        "args": {"help": "Arguments of a command that all trials share, appended as --key value."},
        "automl_policy": {"help": "A search that was asked for is one; this changes nothing.", "option": None},
    },
}
