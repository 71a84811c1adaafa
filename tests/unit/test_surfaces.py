"""Remedies name options as they are typed to the command line, and parameters to Python and forms."""

from __future__ import annotations

import subprocess
import sys

import pytest

from prefect_tao import InvalidInput, connect
from prefect_tao.launch.parameters import surfaces
from prefect_tao.launch.parameters.surfaces import as_parameters


@pytest.mark.parametrize(
    ("typed", "written"),
    [
        ("ask for --gpus 8 and more --nodes", "ask for gpus=8 and more nodes"),
        ("--gpus 0 asks for none", "gpus=0 asks for none"),
        ("say --nodes 2 --gpus 8 to ask for just that", "say nodes=2 gpus=8 to ask for just that"),
        ("ask for --time-limit 4h; a training resumes", 'ask for time_limit="4h"; a training resumes'),
        ("name one with --image (image=...)", "name one with image"),
        ("add --confirm-image (confirm_image=True) to use it", "add confirm_image=True to use it"),
        ("or --image <reference> (image=...) for another", 'or image="<reference>" for another'),
        ("add --automl-policy off (automl_policy='off') to run", 'add automl_policy="off" to run'),
        ("leave --model (model=...) out to run it", "leave model out to run it"),
        ("set it with --set train.seed=3", 'set it with overrides={"train.seed": 3}'),
        ("set it with --set 'a.b[0]=/data/x'", 'set it with overrides={"a.b[0]": "/data/x"}'),
        ("for example --over lr=0.1,0.01", 'for example over={"lr": [0.1, 0.01]}'),
        ("--model dino --action train, or a command after --", 'model="dino" action="train", or a command'),
        (
            "run prefect-tao setup slurm --target x, then --gpus 1",
            "run prefect-tao setup slurm --target x, then gpus=1",
        ),
        ("docker run --gpus all fails; ask for --gpus 0", "docker run --gpus all fails; ask for gpus=0"),
        ("launch with --target local-docker/a set up", 'launch with target="local-docker/a" set up'),
        ("name some with --parameter", "name some with parameters"),
        ("no option in here - or --unknown 3", "no option in here - or --unknown 3"),
    ],
)
def test_an_option_is_a_parameter_to_those_who_do_not_type_it(typed: str, written: str) -> None:
    assert as_parameters(typed) == written


def test_python_is_told_of_parameters_and_the_command_line_of_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surfaces, "_typed_here", False)  # other tests run commands in this process
    with connect("process") as sdk, pytest.raises(InvalidInput) as told:
        sdk.create_job(model="tiny", action="train", train_root="/none", confirm_image=True)
    assert "--" not in told.value.remedy + told.value.cause, str(told.value)
    words = ["run", "--model", "tiny", "--action", "train", "--set", "qqqq=3", "--dry-run"]
    done = subprocess.run([sys.executable, "-m", "prefect_tao.cli", *words], capture_output=True, text=True)
    assert "--allow-key qqqq" in done.stdout + done.stderr
