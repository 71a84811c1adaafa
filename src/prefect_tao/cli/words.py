"""The options that `run`, `plan` and `preflight` share, each with its name and help in one place."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Target = Annotated[str, typer.Option(help="Where: process, or <platform>/<block name>.")]
OpenTarget = Annotated[
    str | None,
    typer.Option(help="Where: process, or <platform>/<block name>; a terminal asks, else it is process."),
]
Model = Annotated[str | None, typer.Option(help="Model of the catalog; with a command, a label.")]
Action = Annotated[str | None, typer.Option(help="The model's action, such as train.")]
TrainRoot = Annotated[list[str] | None, typer.Option(help="Root of the training data (repeat).")]
EvalRoot = Annotated[list[str] | None, typer.Option(help="Root of the evaluation data (repeat).")]
InferenceRoot = Annotated[list[str] | None, typer.Option(help="Root of the data for inference (repeat).")]
CalibrationRoot = Annotated[list[str] | None, typer.Option(help="Root of the calibration data (repeat).")]
Spec = Annotated[Path | None, typer.Option(help="Spec file; {config_path} in a command names its copy.")]
Set = Annotated[
    list[str] | None, typer.Option("--set", help="Spec value: train.optim.lr=0.001, or num_epochs=20 (repeat).")
]
Image = Annotated[str | None, typer.Option(help="Container image; naming one confirms it.")]
ConfirmImage = Annotated[bool, typer.Option("--confirm-image", help="Accept the catalog's default image.")]
Gpus = Annotated[int | None, typer.Option(help="GPUs per node.")]
Nodes = Annotated[int | None, typer.Option(help="Number of nodes.")]
TimeLimit = Annotated[str | None, typer.Option(help="Wall time of one attempt: 4h.")]
Secret = Annotated[list[str] | None, typer.Option(help="NAME of a secret from your environment (repeat).")]
Policy = Annotated[str, typer.Option("--automl-policy", help="on, or off for one plain training.")]
MountProof = Annotated[list[str] | None, typer.Option(help="PATH=HOW: how a path is mounted into the job (repeat).")]
JsonField = Annotated[
    list[str] | None, typer.Option("--json-required-field", help="KEY=FIELD[,FIELD]: needed in annotations (repeat).")
]
SkillBank = Annotated[
    Path | None, typer.Option("--skill-bank", help="A TAO skill bank checkout to read (or TAO_SKILL_BANK_PATH).")
]
Json = Annotated[bool, typer.Option("--json", help="As JSON on standard output.")]
