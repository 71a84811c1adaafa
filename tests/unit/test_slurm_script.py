"""The batch script of a job: what SLURM is asked for, for every shape, and what is refused before it is asked."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from opened_platforms import slurm_at
from pydantic import ValidationError

from prefect_tao.jobs.errors import InvalidInput
from prefect_tao.jobs.platform import Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms import open_platform
from prefect_tao.platforms.slurm import enroot, layout
from prefect_tao.platforms.slurm.driver import SlurmPlatform
from prefect_tao.platforms.slurm.render import (
    FIRST_PORT,
    WARNING_SECONDS,
    check_flags,
    command_seconds,
    container_mounts,
    is_cosmos_rl,
    wall_seconds,
)
from prefect_tao.runner.entrypoint import PLAN_FILE

KEY = "0123456789abcdef"
BASE = "/lustre/team/me"
HOURS = 3600.0


def platform(**settings: Any) -> SlurmPlatform:
    return slurm_at(**{"results_root": BASE, **settings})


def rendered(settings: dict[str, Any] | None = None, attempt: int = 1, **request: Any) -> Rendered:
    fields = {"command": "train", **request}
    return platform(**(settings or {})).render(JobRequest.build(**fields), KEY, attempt)


def script_of(settings: dict[str, Any] | None = None, **request: Any) -> str:
    return rendered(settings, **request).files[layout.SCRIPT].decode()


def variables_of(settings: dict[str, Any] | None = None, **request: Any) -> dict[str, str]:
    found: dict[str, str] = json.loads(rendered(settings, **request).files[PLAN_FILE])["env"]
    return found


def options_of(settings: dict[str, Any] | None = None, **resources: Any) -> list[str]:
    script = script_of(settings, resources=resources)
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def value_of(option: str, options: list[str]) -> str:
    (found,) = [each for each in options if each.partition("=")[0] == option]
    return found.partition("=")[2]


def plan_limit(settings: dict[str, Any] | None = None, **resources: Any) -> float:
    plan = json.loads(rendered(settings, resources=resources).files[PLAN_FILE])
    return float(plan["time_limit"])


def step_of(settings: dict[str, Any] | None = None, **request: Any) -> list[str]:
    """The options of srun that a batch script holds."""
    (line,) = [line for line in script_of(settings, **request).splitlines() if line.startswith("step=(")]
    return shlex.split(line.removeprefix("step=(").removesuffix(")"))


# -- shape -------------------------------------------------------------------------------------------------------------


def test_a_plain_job_asks_for_one_node_and_no_gpu() -> None:
    options = options_of()
    assert value_of("--job-name", options) == f"tao-{KEY}-1"
    assert value_of("--partition", options) == "polar"
    assert value_of("--nodes", options) == "1"
    assert value_of("--ntasks-per-node", options) == "1"
    assert not any("gpu" in option or "gres" in option for option in options)
    assert "--exclusive" not in options
    assert not any(option.startswith(("--mem", "--account", "--qos", "--wait-all-nodes")) for option in options)


@pytest.mark.parametrize("gpus", [1, 4, 7])
def test_some_gpus_of_a_node_leave_the_rest_to_others(gpus: int) -> None:
    options = options_of(gpus=gpus)
    assert value_of("--gpus-per-node", options) == str(gpus)
    assert "--exclusive" not in options


def test_all_gpus_of_a_node_take_the_whole_node() -> None:
    assert "--exclusive" in options_of(gpus=8)
    assert "--exclusive" in options_of({"max_gpus_per_node": 4}, gpus=4)
    assert "--exclusive" not in options_of({"max_gpus_per_node": 16}, gpus=8)


def test_minus_one_is_all_gpus_of_a_node() -> None:
    options = options_of({"max_gpus_per_node": 4}, gpus=-1, nodes=2)
    assert value_of("--gpus-per-node", options) == "4"
    assert "--exclusive" in options
    assert "\ngpus=8\n" in script_of(resources={"gpus": -1, "nodes": 2})
    with pytest.raises(InvalidInput, match="a node has none"):
        options_of({"max_gpus_per_node": 0}, gpus=-1)


def test_more_gpus_than_a_node_has_are_refused_with_the_shape_that_fits() -> None:
    with pytest.raises(InvalidInput) as refused:
        rendered(resources={"gpus": 12})
    assert "12" in refused.value.cause
    assert "--nodes 2 --gpus 8" in refused.value.remedy


def test_several_nodes_start_together() -> None:
    options = options_of(gpus=8, nodes=3)
    assert value_of("--nodes", options) == "3"
    assert "--wait-all-nodes=1" in options
    script = script_of(resources={"gpus": 8, "nodes": 3})
    for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "NNODES", "NUM_GPU_PER_NODE", "NPROC_PER_NODE"):
        assert f"{name}=" in script
    assert {"--nodes=3", "--ntasks=3"} <= set(step_of(resources={"gpus": 8, "nodes": 3}))
    assert "MASTER_ADDR" not in script_of(resources={"gpus": 8})


def test_memory_is_asked_for_in_whole_megabytes_and_never_rounded_down() -> None:
    assert (
        value_of("--mem", options_of(memory="64G")) == f"{64 * 1000**3 // 2**20 + 1}M"
        or value_of("--mem", options_of(memory="64G")) == f"{64 * 1024}M"
    )
    assert value_of("--mem", options_of(memory=2**20 + 1)) == "2M"
    assert value_of("--mem", options_of(memory=1)) == "1M"


def test_cpus_come_from_the_request_or_from_the_block_for_batch_and_step_alike() -> None:
    for settings, resources, cpus in (({}, {}, 16), ({"cpus": 4}, {}, 4), ({"cpus": 4}, {"cpus": 2}, 2)):
        assert value_of("--cpus-per-task", options_of(settings, **resources)) == str(cpus)
        assert f"--cpus-per-task={cpus}" in step_of(settings, resources=resources, image="ubuntu")


@pytest.mark.parametrize(
    ("fields", "in_a_step"),
    [
        ({}, False),
        ({"resources": {"gpus": 8}}, False),
        ({"image": "ubuntu"}, True),
        ({"resources": {"nodes": 2}}, True),
    ],
)
def test_only_a_container_and_several_nodes_take_a_step_of_their_own(fields: dict[str, Any], in_a_step: bool) -> None:
    script = script_of(**fields)
    assert ("exec srun " in script) is in_a_step
    assert ("scancel --signal=TERM" in script) is in_a_step  # how the wall is told to it
    assert ('kill -TERM "$1"' in script) is not in_a_step


def test_what_the_site_wants_is_asked_for() -> None:
    given = {"account": "acc", "qos": "high", "reservation": "res", "constraint": "a100|h100"}
    options = options_of({**given, "extra_flags": ["--mail-type=END", "--comment=some words"]})
    for name, value in given.items():
        assert value_of(f"--{name}", options) == value
    assert options[-2:] == ["--mail-type=END", '--comment="some words"']


@pytest.mark.parametrize("name", ["partition", "account", "qos", "reservation", "constraint"])
def test_a_value_of_two_lines_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match=name):
        options_of({name: "a\n#SBATCH --nodes=9"})


def test_slurm_may_start_a_job_again_only_where_the_block_says_so() -> None:
    assert "--requeue" in options_of()
    assert "--no-requeue" not in options_of()
    assert "--no-requeue" in options_of({"use_requeue": False})
    assert "--requeue" not in options_of({"use_requeue": False})


# -- extra flags -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flag",
    [
        "--job-name=x",
        "-Jx",
        "--time=1:00",
        "-t=5",
        "--partition=other",
        "--account=other",
        "--output=/dev/null",
        "--gres=gpu:8",
        "--gpus-per-node=8",
        "--nodes=9",
        "--requeue",
        "--no-requeue",
        "--array=0-9",
        "--wrap=true",
        "--dependency=afterok:1",
        "--signal=TERM",
        "--export=NONE",
        "--hold",
        "--container-image=x",
        "--mem-per-cpu=1G",
        "--wait-all-nodes=0",
        "--wait",
        "-W",
        "--clusters=other",
        "-Mother",
        "--ntasks-per-gpu=2",
        "--gpus-per-socket=1",
        "--cpus-per-gpu=8",
        "--time-min=10",
        "--export-file=x",
        "--version",
        "--part=other",
        "-pother",
    ],
)
def test_an_extra_flag_that_we_set_ourselves_is_refused_by_name(flag: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        platform(extra_flags=[flag])
    assert refused.value.remedy


@pytest.mark.parametrize("flag", ["", "mail-type=END", "--", "--a b=c", "--comment=x\n#SBATCH --nodes=9", "; rm -rf /"])
def test_what_is_no_option_is_refused(flag: str) -> None:
    with pytest.raises(InvalidInput):
        check_flags([flag])


@pytest.mark.parametrize("flag", ["--mail-type=END", "--nice=10", "--licenses=x", "-w=node1"])
def test_other_options_pass(flag: str) -> None:
    check_flags([flag])
    assert flag in options_of({"extra_flags": [flag]})


# -- time --------------------------------------------------------------------------------------------------------------


def test_without_a_limit_the_blocks_time_is_asked_for_and_the_command_ends_before_it() -> None:
    assert value_of("--time", options_of()) == "04:00:00"
    assert plan_limit() == 3.8 * HOURS
    longer = {"time_hours": 12, "timeout_hours": 11.5, "max_time_hours": 12}
    assert value_of("--time", options_of(longer)) == "12:00:00"
    assert plan_limit(longer) == 11.5 * HOURS


def test_four_hours_leave_the_command_time_for_a_last_checkpoint() -> None:
    assert value_of("--time", options_of(time_limit="4h")) == "04:00:00"
    assert plan_limit(time_limit="4h") == 3.8 * HOURS


def test_the_blocks_hours_for_the_command_hold_for_the_time_that_it_fills_in() -> None:
    hours = {"time_hours": 4, "timeout_hours": 3}
    assert plan_limit(hours) == plan_limit(hours, time_limit="4h") == 3 * HOURS
    assert plan_limit(hours, time_limit="2h") == 1.5 * HOURS
    assert plan_limit(hours, time_limit="10h") == 9 * HOURS


def test_a_short_limit_goes_no_further_than_the_partition_allows() -> None:
    ten = {"time_hours": 1 / 6, "timeout_hours": 0.15, "max_time_hours": 1 / 6}
    assert value_of("--time", options_of(ten, time_limit=600)) == "00:10:00"
    assert plan_limit(ten, time_limit=600) == 540
    assert value_of("--time", options_of(ten, time_limit=300)) == "00:06:00"
    assert plan_limit(ten, time_limit=300) == 300


def test_a_long_job_gives_up_no_more_than_twelve_minutes() -> None:
    assert value_of("--time", options_of(time_limit="2d")) == "2-00:00:00"
    assert plan_limit(time_limit="2d") == 48 * HOURS - 720


@pytest.mark.parametrize("seconds", [1, 2, 30, 59, 60, 61, 90, 300, 599])
def test_a_short_limit_is_kept_by_the_runner_while_slurm_is_not_near_its_own(seconds: int) -> None:
    options = options_of(time_limit=seconds)
    site, resources = platform().options, JobRequest.build(command="x", resources={"time_limit": seconds}).resources
    assert plan_limit(time_limit=seconds) == seconds
    assert wall_seconds(resources, site) >= seconds + 60
    # SLURM warns up to a minute early: such a job would hear it before it has begun.
    assert not any(option.startswith("--signal") for option in options)


@pytest.mark.parametrize("limit", [None, 1, 59, 60, 61, 600, 601, 3600, 4 * HOURS, 12 * HOURS, 7 * 24 * HOURS])
def test_the_command_always_ends_before_slurms_wall(limit: float | None) -> None:
    site, resources = platform().options, JobRequest.build(command="x", resources={"time_limit": limit}).resources
    wall = wall_seconds(resources, site)
    assert wall % 60 == 0
    assert 0 < command_seconds(resources, site) < wall
    assert limit is None or command_seconds(resources, site) <= limit


def test_only_the_batch_script_is_warned_of_the_wall() -> None:
    assert value_of("--signal", options_of()) == f"B:USR1@{WARNING_SECONDS}"


# -- image and mounts --------------------------------------------------------------------------------------------------


def test_a_job_without_an_image_has_no_container() -> None:
    script = script_of()
    assert "--container" not in script
    assert "image=" not in script
    assert not any("container" in option for option in step_of(resources={"nodes": 2}))
    assert "\nimage=''\n" in script_of(resources={"nodes": 2})


@pytest.mark.parametrize("image", ["nvcr.io/nvidia/tao:1", "pytorch/pytorch:2.4", "ubuntu"])
def test_an_image_is_taken_from_its_converted_file_and_pulled_only_where_there_is_none(
    tmp_path: Path, image: str
) -> None:
    assert "#SBATCH --container" not in script_of(image=image)
    assert f"--container-image={enroot.pyxis(image)}" in srun_words(tmp_path, image=image)
    converted = tmp_path / "images" / enroot.cached_name(image)
    converted.parent.mkdir()
    converted.write_text("whole")
    assert f"--container-image={converted}" in srun_words(tmp_path, image=image)


def test_a_file_and_an_unconverted_image_are_used_as_they_are(tmp_path: Path) -> None:
    assert "--container-image=/lustre/tao.sqsh" in srun_words(tmp_path, image="/lustre/tao.sqsh")
    image = "nvcr.io/nvidia/tao:1"
    direct = srun_words(tmp_path, {"use_sqsh": False}, image=image)
    assert f"--container-image={enroot.pyxis(image)}" in direct
    assert ".sqsh" not in script_of({"use_sqsh": False}, image=image)


@pytest.mark.parametrize(
    ("mounts", "expected"),
    [
        ((), [f"{BASE}:{BASE}"]),
        (("/data",), [f"{BASE}:{BASE}", "/data:/data"]),
        (("/data:/in:ro",), [f"{BASE}:{BASE}", "/data:/in:ro"]),
        (("/lustre",), ["/lustre:/lustre"]),
        # Results are written there, and what is mounted later lies on top.
        (("/lustre:/lustre:ro", "/data"), ["/lustre:/lustre:ro", f"{BASE}:{BASE}", "/data:/data"]),
        (("/other:/lustre",), ["/other:/lustre", f"{BASE}:{BASE}"]),
        ((f"/data:{BASE}/data",), [f"{BASE}:{BASE}", f"/data:{BASE}/data"]),
        (("/lustre/team/me",), [f"{BASE}:{BASE}"]),
        (("/lustre:/elsewhere",), [f"{BASE}:{BASE}", "/lustre:/elsewhere"]),
        (("/lustre/team/mean",), [f"{BASE}:{BASE}", "/lustre/team/mean:/lustre/team/mean"]),
        (("/",), ["/:/"]),
    ],
)
def test_a_container_always_sees_the_base_folder_under_its_own_path(
    mounts: tuple[str, ...], expected: list[str]
) -> None:
    given = platform(container_mounts=mounts)
    assert container_mounts(given.place, given.options) == expected


def test_mounts_reach_srun_as_one_word(tmp_path: Path) -> None:
    words = srun_words(tmp_path, {"container_mounts": ["/with$(sign)", "/b:/c"]}, image="ubuntu")
    assert f"--container-mounts={tmp_path}:{tmp_path},/with$(sign):/with$(sign),/b:/c" in words
    assert "--no-container-mount-home" in words


# -- the rest ----------------------------------------------------------------------------------------------------------


def test_every_rendered_text_is_a_script_that_bash_understands() -> None:
    shapes: list[dict[str, Any]] = [
        {},
        {"image": "nvcr.io/nvidia/tao:1", "resources": {"gpus": 8, "nodes": 4, "memory": "1G", "time_limit": 1}},
        {"command": "cosmos-rl --config {config_path}", "specs": {"a": 1}, "resources": {"gpus": 8, "nodes": 2}},
        {"env": {"QUOTED": 'it\'s "two" words\n$(rm)'}},
    ]
    for shape in shapes:
        files = rendered({"results_root": "/lustre/it's mine"}, **shape).files
        for name in (layout.SCRIPT, layout.TASK):
            checked = subprocess.run(["bash", "-n"], input=files[name], capture_output=True)
            assert checked.returncode == 0, (name, checked.stderr)


def run_script(
    tmp_path: Path, settings: dict[str, Any] | None = None, path: str = os.environ["PATH"], **request: Any
) -> subprocess.CompletedProcess[str]:
    """What SLURM would run, run here; its output lies in the job's folder."""
    files = rendered({**(settings or {}), "results_root": str(tmp_path)}, **{"command": "true", **request}).files
    folder = tmp_path / "jobs" / f"tao-{KEY}-1"
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    env = {"PATH": path, "SLURM_JOB_ID": "17", "SLURM_JOB_NAME": folder.name, "SLURM_NNODES": "2"}
    return subprocess.run(["bash", str(folder / layout.SCRIPT)], env=env, capture_output=True, text=True)


def srun_words(tmp_path: Path, settings: dict[str, Any] | None = None, **request: Any) -> list[str]:
    """What the batch script calls srun with; the variables that it has set come before."""
    programs = {
        "srun": f'{{ env; printf "%s\\n" "$@"; }} >{tmp_path}/called',
        "scontrol": 'if [ "$2" = hostnames ]; then echo first; echo second; else echo "A=1 NodeAddr=10.0.0.1 B=2"; fi',
        "getent": "exit 2",
    }
    (tmp_path / "bin").mkdir(exist_ok=True)
    for name, body in programs.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    run_script(tmp_path, settings, f"{tmp_path}/bin:{os.environ['PATH']}", **request)
    return (tmp_path / "called").read_text().splitlines()


def test_nodes_learn_where_they_meet(tmp_path: Path) -> None:
    words = srun_words(tmp_path, resources={"nodes": 2, "gpus": 4})
    expected = {"MASTER_ADDR=10.0.0.1", f"MASTER_PORT={FIRST_PORT + 17}", "WORLD_SIZE=2", "NNODES=2"}
    assert {*expected, "NUM_GPU_PER_NODE=4", "NPROC_PER_NODE=4"} <= set(words)
    assert words[-2:] == ["/bin/sh", f"{tmp_path}/jobs/tao-{KEY}-1/{layout.TASK}"]
    assert {"NUM_GPU_PER_NODE=0", "NPROC_PER_NODE=1"} <= set(srun_words(tmp_path, resources={"nodes": 2}))


def test_a_job_that_cannot_claim_its_name_fails_and_one_whose_name_is_taken_leaves(tmp_path: Path) -> None:
    folder = tmp_path / "jobs" / f"tao-{KEY}-1"
    folder.mkdir(parents=True)
    (folder / layout.CLAIM).touch()  # stands for a full or read-only file system: no link can be made
    assert run_script(tmp_path).returncode == 125
    log = folder / layout.LOGS / f"{folder.name}-17" / "main.err"
    assert "cannot claim its name" in log.read_text()
    (folder / layout.CLAIM).unlink()
    (folder / layout.CLAIM).symlink_to("16")
    assert run_script(tmp_path).returncode == 0
    assert "job 16 has this name" in log.read_text()
    assert not (folder / layout.EXIT).exists()


def test_odd_values_of_variables_arrive_as_they_are() -> None:
    value = 'it\'s "two" words\n$(echo no) `no` \\ é漢🙂'
    assert variables_of(env={"ODD": value})["ODD"] == value
    task = rendered(env={"PATH": value}).files[layout.TASK].decode()
    exports = task.partition("command -v python3")[0]
    shown = subprocess.run(["/bin/bash", "-c", f'{exports}\nprintf %s "$PATH"'], capture_output=True, check=True)
    assert shown.stdout.decode() == value


def test_our_own_variables_win_over_those_of_block_and_request() -> None:
    found = variables_of({"env": {"A": "block", "B": "block"}}, env={"B": "request", "TAO_JOB_ID": "mine"})
    assert found.items() >= {"A": "block", "B": "request", "TAO_JOB_ID": KEY}.items()


def test_attempts_of_a_key_have_folders_of_their_own_and_share_their_results() -> None:
    first, second = rendered(attempt=1).files, rendered(attempt=2).files
    assert f"{BASE}/jobs/tao-{KEY}-1" in first[layout.SCRIPT].decode()
    assert f"{BASE}/jobs/tao-{KEY}-2" in second[layout.SCRIPT].decode()
    handles = [json.loads(files[layout.HANDLE]) for files in (first, second)]
    assert {handle["results"] for handle in handles} == {f"{BASE}/results/{KEY}"}
    assert [handle["attempt"] for handle in handles] == [1, 2]


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("lustre:///lustre/team/me", BASE),
        ("slurm://lustre/team/me/", BASE),
        ("file:///lustre/team/me", BASE),
        ("/lustre/team/me//", BASE),
    ],
)
def test_the_base_folder_may_be_written_in_every_form(given: str, base: str) -> None:
    assert platform(results_root=given).place.base == base


@pytest.mark.parametrize(
    "given", ["results", "s3://bucket/results", "~/results", "/with\nnewline", "/a:b", "/a,b", "/a\\b"]
)
def test_a_base_folder_that_is_no_absolute_path_or_that_nothing_can_mount_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput):
        platform(results_root=given)


def test_without_a_base_folder_nothing_is_rendered() -> None:
    with pytest.raises(InvalidInput) as refused:
        platform(results_root=None).render(JobRequest.build(command="train"), KEY, 1)
    assert "SLURM_BASE_RESULTS_DIR" in refused.value.remedy


@pytest.mark.parametrize(
    ("missing", "title", "variable"),
    [
        ("user", "user", "SLURM_USER"),
        ("hostnames", "login nodes", "SLURM_HOSTNAME"),
        ("partition", "partition", "SLURM_PARTITION"),
    ],
)
def test_a_target_without_user_host_or_partition_is_refused(
    missing: str, title: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = {"user": "me", "hostnames": ["login"], "partition": "polar", "results_root": BASE}
    del given[missing]
    monkeypatch.delenv(variable, raising=False)
    with pytest.raises(InvalidInput, match=f"slurm is not set up: it needs {title}") as refused:
        open_platform("slurm", given)
    assert f"prefect-tao setup slurm --name NAME, which takes {variable} where" in refused.value.remedy
    monkeypatch.setenv(variable, "said-around")
    assert open_platform("slurm", given).settings()


def test_cosmos_is_told_by_its_command() -> None:
    assert is_cosmos_rl(JobRequest.build(command="cosmos-rl --config {config_path}", specs={"a": 1}))
    assert not is_cosmos_rl(JobRequest.build(command="python cosmos_rl_tool.py"))
