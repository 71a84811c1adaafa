"""The options that `run`, `plan` and `preflight` share, each with its name and help in one place.

`Options` holds them all; a command that takes it has one option per field, see `spread`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated

import typer

HERE = "process"

Target = Annotated[str, typer.Option(help="Where: process, or <platform>/<block name>.")]
OpenTarget = Annotated[
    str | None,
    typer.Option(
        help="Where: process, or <platform>/<block name>; without it, run and plan ask at a terminal; else process."
    ),
]
Model = Annotated[str | None, typer.Option(help="Model of the catalog; with a command, a label.")]
Action = Annotated[str | None, typer.Option(help="The model's action, such as train.")]
TrainRoot = Annotated[list[str] | None, typer.Option(metavar="<location>", help="Root of the training data (repeat).")]
EvalRoot = Annotated[list[str] | None, typer.Option(metavar="<location>", help="Root of the evaluation data (repeat).")]
InferenceRoot = Annotated[
    list[str] | None, typer.Option(metavar="<location>", help="Root of the data for inference (repeat).")
]
CalibrationRoot = Annotated[
    list[str] | None, typer.Option(metavar="<location>", help="Root of the calibration data (repeat).")
]
WdsRoot = Annotated[
    list[str] | None, typer.Option(metavar="<location>", help="Root of training data in WebDataset shards (repeat).")
]
Format = Annotated[str | None, typer.Option(help="Form of the data below the roots, where a model knows several.")]
Spec = Annotated[Path | None, typer.Option(help="Spec file; {config_path} in a command names its copy.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="<key=value>", help="Spec value: train.optim.lr=0.001, or num_epochs=20 (repeat)."),
]
Image = Annotated[str | None, typer.Option(help="Container image; naming one confirms it.")]
ConfirmImage = Annotated[bool, typer.Option("--confirm-image", help="Accept the catalog's default image.")]
Gpus = Annotated[int | None, typer.Option(help="GPUs per node; -1 for all that a node has.")]
Nodes = Annotated[int | None, typer.Option(help="Number of nodes.")]
Cpus = Annotated[int | None, typer.Option(help="CPU cores per node.")]
Memory = Annotated[str | None, typer.Option(help="Memory per node: 64G.")]
Shm = Annotated[str | None, typer.Option(help="Size of /dev/shm: 8G.")]
Env = Annotated[
    list[str] | None, typer.Option(metavar="<name=value>", help="NAME=VALUE for the job; never a secret (repeat).")
]
TimeLimit = Annotated[str | None, typer.Option(help="Wall time of one attempt: 4h.")]
Secret = Annotated[
    list[str] | None, typer.Option(metavar="<name>", help="NAME of a secret from your environment (repeat).")
]
Policy = Annotated[str, typer.Option("--automl-policy", help="on, or off for one plain training.")]
MountProof = Annotated[
    list[str] | None, typer.Option(metavar="<path=how>", help="PATH=HOW: how a path is mounted into the job (repeat).")
]
JsonField = Annotated[
    list[str] | None,
    typer.Option(
        "--json-required-field", metavar="<key=field>", help="KEY=FIELD[,FIELD]: needed in annotations (repeat)."
    ),
]
LookAt = Annotated[
    list[str] | None, typer.Option(metavar="<label=path>", help="LABEL=PATH to look at besides (repeat).")
]
SkipAccess = Annotated[
    bool, typer.Option("--skip-platform-access", help="Ask nothing outside; only for a dry look at a set-up.")
]
SkillBank = Annotated[
    Path | None, typer.Option("--skill-bank", help="A TAO skill bank checkout to read (or TAO_SKILL_BANK_PATH).")
]
RunDir = Annotated[
    Path | None, typer.Option("--run-dir", help="Also keep the run as files below this folder, for programs.")
]
Json = Annotated[bool, typer.Option("--json", help="As JSON on standard output.")]


@dataclass(frozen=True)
class Options:
    """A launch in the words of the command line, besides what runs."""

    target: OpenTarget = None
    train_root: TrainRoot = None
    eval_root: EvalRoot = None
    inference_root: InferenceRoot = None
    calibration_root: CalibrationRoot = None
    train_wds_root: WdsRoot = None
    data_format: Format = None
    spec: Spec = None
    set_: Set = None
    image: Image = None
    confirm_image: ConfirmImage = False
    gpus: Gpus = None
    nodes: Nodes = None
    cpus: Cpus = None
    memory: Memory = None
    time_limit: TimeLimit = None
    shm: Shm = None
    env: Env = None
    secret: Secret = None
    automl_policy: Policy = "on"
    mount_proof: MountProof = None
    json_required_field: JsonField = None
    path: LookAt = None
    skill_bank: SkillBank = None

    @property
    def where(self) -> str:
        """The target, this machine when none was named."""
        return HERE if self.target is None else self.target

    @property
    def roots(self) -> dict[str, list[str] | None]:
        """The dataset roots by the kind of data."""
        names = (field.name for field in fields(self) if field.name.endswith("_root"))
        return {name.removesuffix("_root"): getattr(self, name) for name in names}
