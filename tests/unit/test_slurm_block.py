"""What is written into the form of a SLURM target reaches the batch script."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from prefect_tao.blocks import TaoSlurm
from prefect_tao.environment import variables
from prefect_tao.jobs.request import JobRequest
from prefect_tao.launch.session import unsaved
from prefect_tao.platforms.slurm import layout
from prefect_tao.platforms.slurm.driver import SlurmPlatform
from prefect_tao.platforms.slurm.settings import SlurmSettings

GIVEN = {"user": "me", "hostnames": ["login"], "partition": "polar", "results_root": "/lustre/me"}


def script(**settings: Any) -> str:
    block = TaoSlurm(**GIVEN, **settings)
    rendered = SlurmPlatform("slurm/x", SlurmSettings(**block.settings())).render(
        JobRequest.build(command="true"), "0" * 16, 1
    )
    return rendered.files[layout.SCRIPT].decode()


@pytest.mark.parametrize(
    ("flags", "lines"),
    [
        (["--nice=10"], ["--nice=10"]),
        (["--mail-type=END,FAIL", "-v"], ["--mail-type=END,FAIL", "-v"]),
        ("--nice=10", ["--nice=10"]),
        ("--mail-type=END,FAIL --nice=10", ["--mail-type=END,FAIL", "--nice=10"]),
        ("--mail-type=END,FAIL,--nice=10", ["--mail-type=END,FAIL", "--nice=10"]),
        ("--comment=some words --nice=10", ['--comment="some words"', "--nice=10"]),
    ],
)
def test_further_options_of_sbatch_can_be_set(flags: Any, lines: list[str]) -> None:
    text = script(extra_flags=flags)
    for line in lines:
        assert f"#SBATCH {line}\n" in text


@pytest.mark.parametrize("flags", [["nice=10"], ["--comment=a\n#SBATCH --nodes=9"], [""], "nice=10"])
def test_what_is_no_option_is_refused_by_the_form(flags: Any) -> None:
    with pytest.raises(ValidationError, match="extra_flags"):
        TaoSlurm(**GIVEN, extra_flags=flags)


@pytest.mark.parametrize("constraint", ["a100\n#SBATCH --nodes=9", "--nodes=9", ""])
def test_a_constraint_is_one_line(constraint: str) -> None:
    try:
        block = TaoSlurm(**GIVEN, constraint=constraint)
    except ValidationError:
        return
    assert block.constraint is None


def test_hours_and_requeue_come_from_the_environment_too(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"SLURM_USER": "me", "SLURM_HOSTNAME": "login", "SLURM_PARTITION": "gpu"}
    for name, value in {**given, "SLURM_TIME_HOURS": "8", "SLURM_USE_REQUEUE": "false"}.items():
        monkeypatch.setenv(name, value)
    found = SlurmSettings.filled({}, variables())
    assert (found.time_hours, found.timeout_hours, found.max_time_hours, found.use_requeue) == (8, 7.8, 8, False)
    assert unsaved("slurm").shape["time_hours"] == 8
    monkeypatch.setenv("SLURM_TIMEOUT_HOURS", "7.5")
    assert SlurmSettings.filled({}, variables()).timeout_hours == 7.5
    monkeypatch.setenv("SLURM_TIME_HOURS", "1")
    monkeypatch.delenv("SLURM_TIMEOUT_HOURS")
    assert SlurmSettings.filled({}, variables()).timeout_hours == 0.95
