"""The command runs as one group, ends as one group, and its end is told once, completely and last."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from runner_tools import Ended, Job, Runner, alive, until

from prefect_tao.runner.entrypoint import build_entrypoint


def start(runner: Runner, command: str, *, env: dict[str, str] | None = None, **plan: Any) -> Job:
    """Start a command, and wait until it says `up`."""
    job = runner.start(build_entrypoint(command, **plan), **(env or {}))
    job.says("up")
    return job


def facts(ended: Ended) -> tuple[int, int, str, str]:
    return ended.code, ended.marker["exit_code"], ended.marker["ended_by"], ended.marker["phase"]


def pids(job: Job, name: str) -> list[int]:
    """The processes that the command told of, as `name=<pid>`."""
    return [int(line.partition("=")[2]) for line in job.log.splitlines() if line.startswith(f"{name}=")]


# -- how it ends by itself ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 1, 42, 255])
def test_the_commands_exit_code_is_the_jobs(runner: Runner, code: int) -> None:
    assert facts(runner.run(build_entrypoint(f"exit {code}"))) == (code, code, "none", "command")


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_command_killed_by_a_signal_ends_with_128_and_its_number(runner: Runner, number: int) -> None:
    code = 128 + number
    assert facts(runner.run(build_entrypoint(f"kill -{number} $$"))) == (code, code, "none", "command")


def test_a_command_that_is_not_there_ends_like_in_every_shell(runner: Runner) -> None:
    assert runner.run(build_entrypoint("no-such-program-here")).code == 127


def test_a_working_folder_that_is_not_there_ends_the_job_by_name(runner: Runner) -> None:
    ended = runner.run(build_entrypoint("true", workdir="/no/such/folder"))
    assert ended.code == 125
    assert "/no/such/folder" in ended.marker["error"]


def test_the_command_runs_where_it_was_told(runner: Runner) -> None:
    assert f"at={runner.folder}=" in runner.run(build_entrypoint("echo at=$PWD=", workdir=str(runner.folder))).log


def test_background_children_do_not_outlive_their_command(runner: Runner) -> None:
    tough = "trap '' TERM; while :; do sleep 0.1; done"
    ended = runner.run(build_entrypoint(f"sleep 60 & echo a=$!; ({tough}) & echo a=$!; exit 3"))
    assert ended.code == 3
    children = [int(line.partition("=")[2]) for line in ended.log.splitlines() if line.startswith("a=")]
    assert len(children) == 2
    until(lambda: not any(map(alive, children)), "the end of all children")


def test_the_command_starts_with_signals_as_a_login_has_them(runner: Runner) -> None:
    ended = runner.run(build_entrypoint("grep -E 'SigBlk|SigIgn' /proc/self/status"))
    assert [int(line.split()[1], 16) & 0x7FFF_FFFF for line in ended.log.splitlines()] == [0, 0]


def test_a_command_reads_nothing_that_was_meant_for_the_runner(runner: Runner) -> None:
    ended = runner.run(build_entrypoint("cat; echo read=$?"), script=True)
    assert ended.log == "read=0\n"


# -- how it is stopped -------------------------------------------------------------------------------------------------


def test_a_stop_reaches_the_whole_group(runner: Runner) -> None:
    saved, ready = runner.folder / "saved", runner.folder / "ready"
    child = f"trap 'echo done > {saved}; exit 0' TERM; touch {ready}; while :; do sleep 0.05; done"
    wait = f"until [ -e {ready} ]; do sleep 0.02; done"
    job = start(runner, f'bash -c "{child}" & echo a=$!; sleep 60 & echo a=$!; {wait}; echo up; wait')
    job.signal(signal.SIGTERM)
    assert facts(job.end()) == (143, 143, "preempt", "command")
    assert saved.read_text() == "done\n"
    until(lambda: not any(map(alive, pids(job, "a"))), "the end of all children")


def test_a_trainer_below_a_shell_has_the_whole_grace_to_save_its_work(runner: Runner) -> None:
    """The shell dies of the signal at once; what it started is still writing its checkpoint."""
    saved = runner.folder / "saved"
    trainer = (
        f"import signal, time\nsignal.signal(15, lambda *_: (time.sleep(2.5), open('{saved}', 'w').write('x'), exit()))"
    )
    (runner.folder / "train.py").write_text(f"{trainer}\nprint('up', flush=True)\ntime.sleep(60)\n")
    job = start(runner, f"cd / && {sys.executable} -S {runner.folder}/train.py; true", grace=10)
    job.signal(signal.SIGTERM)
    assert job.end().code == 143
    assert saved.read_text() == "x"


def test_a_child_that_ignores_the_stop_is_killed_after_the_grace(runner: Runner) -> None:
    job = start(runner, "trap '' TERM INT; echo a=$$; echo up; while :; do sleep 0.05; done", grace=0.5)
    started = time.monotonic()
    job.signal(signal.SIGTERM)
    assert facts(job.end()) == (137, 137, "preempt", "command")
    assert 0.5 <= time.monotonic() - started < 5
    assert not any(map(alive, pids(job, "a")))


def test_a_stopped_command_is_woken_to_hear_the_stop(runner: Runner) -> None:
    job = start(runner, "echo a=$$; echo up; kill -STOP $$; sleep 60", grace=10)
    until(lambda: " T " in Path(f"/proc/{pids(job, 'a')[0]}/stat").read_text(), "the pause")
    job.signal(signal.SIGTERM)
    assert job.end().code == 143


def test_a_second_stop_changes_nothing(runner: Runner) -> None:
    job = start(runner, "trap 'sleep 0.5; exit 9' TERM; echo up; while :; do sleep 0.05; done")
    for number in (signal.SIGTERM, signal.SIGTERM, signal.SIGINT):
        job.signal(number)
        time.sleep(0.1)
    assert facts(job.end()) == (9, 9, "preempt", "command")


def test_a_hang_up_is_no_stop(runner: Runner) -> None:
    job = start(runner, "echo up; sleep 0.3")
    job.signal(signal.SIGHUP)
    assert facts(job.end()) == (0, 0, "none", "command")


def test_who_cancels_says_so_in_the_stop_file(runner: Runner) -> None:
    stop = runner.folder / "stop"
    job = start(runner, "echo up; sleep 60", env={"TAO_STOP_FILE": str(stop)})
    stop.write_text("cancel\n")
    job.signal(signal.SIGTERM)
    assert facts(job.end()) == (143, 143, "cancel", "command")


def test_the_time_limit_stops_the_command(runner: Runner) -> None:
    ended = runner.run(build_entrypoint("sleep 60", time_limit=0.4))
    assert facts(ended) == (143, 143, "time_limit", "command")


def test_a_command_that_saves_its_work_at_the_time_limit_was_still_not_done(runner: Runner) -> None:
    ended = runner.run(build_entrypoint("trap 'exit 0' TERM; while :; do sleep 0.05; done", time_limit=0.4))
    assert facts(ended) == (0, 0, "time_limit", "command")


def test_the_time_limit_holds_for_the_whole_attempt(runner: Runner) -> None:
    slow = runner.folder / "bin"
    slow.mkdir()
    (slow / "hf").write_text("#!/bin/bash\nsleep 60\n")
    (slow / "hf").chmod(0o755)
    entrypoint = build_entrypoint("true", specs={"m": "hf_model://a/b"}, time_limit=0.4)
    ended = runner.run(entrypoint, PATH=f"{slow}:{os.environ['PATH']}")
    assert facts(ended) == (143, 143, "time_limit", "inputs")


def test_a_stop_after_the_warning_is_the_time_limit(runner: Runner) -> None:
    job = start(runner, "echo up; sleep 60")
    job.signal(signal.SIGUSR1)
    job.says("the time limit is near")
    job.signal(signal.SIGTERM)
    assert facts(job.end()) == (143, 143, "time_limit", "command")


def test_a_warning_alone_does_not_end_a_command(runner: Runner) -> None:
    job = start(runner, "echo up; sleep 0.3")
    job.signal(signal.SIGUSR1)
    assert facts(job.end()) == (0, 0, "none", "command")


def test_a_stop_at_any_moment_of_the_start_leaves_a_complete_marker(runner: Runner) -> None:
    """From the first thing the runner writes: before its inputs, its spec, its command."""
    for delay in (0.0, 0.002, 0.005, 0.01, 0.02):
        here = Runner(runner.folder / str(delay))
        here.work.mkdir(parents=True)
        job = here.start(build_entrypoint("sleep 60", specs={"a": 1}, outputs={"results_dir": {}}))
        until(lambda base=here.base: base.exists(), "the first folder")  # type: ignore[misc]
        time.sleep(delay)
        job.signal(signal.SIGTERM)
        ended = job.end()
        assert ended.code == 143, ended.log
        assert (ended.marker["exit_code"], ended.marker["ended_by"]) == (143, "preempt")


def test_orphans_hold_nothing_up_where_the_runner_is_the_first_process(runner: Runner) -> None:
    """As in a container, where nobody else does it: the end does not wait for the dead."""
    unshare = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("a process namespace of its own needs root: run as root")
    first = runner.folder / "first"
    first.write_text(f'#!/bin/bash\nexec {" ".join(unshare)} {runner.python} "$@"\n')
    first.chmod(0o755)
    runner.python = str(first)
    started = time.monotonic()
    ended = runner.run(build_entrypoint("(sleep 60 & sleep 60 &); echo me=$PPID; exit 4"))
    assert ended.code == 4
    assert "me=1\n" in ended.log
    assert time.monotonic() - started < 1.5


# -- the marker --------------------------------------------------------------------------------------------------------


def test_the_marker_names_the_run(runner: Runner) -> None:
    ended = runner.run(
        build_entrypoint("sleep 0.05"),
        TAO_JOB_NAME="tao-k3y-3",
        TAO_ATTEMPT="3",
        TAO_NATIVE_ID="4711",
        TAO_RESTARTS="2",
    )
    marker = ended.marker
    assert (marker["name"], marker["key"], marker["attempt"]) == ("tao-k3y-3", "k3y", 3)
    assert (marker["native_id"], marker["restarts"], marker["rank"]) == ("4711", 2, 0)
    assert marker["host"] == os.uname().nodename
    assert marker["ended"] - marker["started"] >= 0.05
    assert marker["error"] == ""


def test_the_end_appears_only_after_all_outputs_are_kept(runner: Runner) -> None:
    out = runner.folder / "out"
    command = f"mkdir {out}; for i in $(seq 300); do head -c 20000 /dev/zero > {out}/$i; done; echo up"
    job = start(runner, command, outputs=[str(out)], sync_interval=0)
    path = runner.base / "attempts" / "1.json"
    while "ended" not in json.loads(path.read_text()):  # read at any moment, it is whole
        pass
    kept = sum(1 for _ in (runner.base / "out").iterdir())
    assert kept == 300
    assert job.end().code == 0


def test_a_job_started_anew_has_no_end_until_it_ends(runner: Runner) -> None:
    assert runner.run(build_entrypoint("exit 5")).marker["exit_code"] == 5
    go = runner.folder / "go"
    job = start(runner, f"echo up; until [ -e {go} ]; do sleep 0.02; done", env={"TAO_RESTARTS": "1"})
    assert "ended" not in runner.marker()
    assert runner.marker()["restarts"] == 1
    go.touch()
    assert job.end().marker["exit_code"] == 0


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 kB."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    if (
        os.geteuid()
        or subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)], capture_output=True
        ).returncode
    ):
        pytest.skip("mounting a small file system needs root: run as root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_the_marker_survives_a_full_disk(runner: Runner, tiny_disk: Path) -> None:
    runner.root, runner.base = tiny_disk, tiny_disk / "k3y"
    command = "cat /dev/zero > $TAO_RESULTS_DIR/fill; echo full=$?; exit 6"
    ended = runner.run(build_entrypoint(command), TAO_RESULTS_ROOT=str(tiny_disk))
    assert "full=1" in ended.log
    assert os.statvfs(tiny_disk).f_bavail == 0
    assert facts(ended) == (6, 6, "none", "command")


def test_the_marker_survives_a_disk_that_its_outputs_fill(runner: Runner, tiny_disk: Path) -> None:
    runner.root, runner.base = tiny_disk, tiny_disk / "k3y"
    out = runner.folder / ("ö" * 80)
    command = f"mkdir {out}; head -c 1000000 /dev/zero > {out}/big; echo up; sleep 60"
    job = start(runner, command, outputs=[str(out)], env={"TAO_RESULTS_ROOT": str(tiny_disk)}, sync_interval=0)
    job.signal(signal.SIGTERM)
    assert facts(job.end()) == (143, 143, "preempt", "command")
    assert not list(tiny_disk.rglob("*.part")), "a part that did not fit is taken away"


def test_an_error_of_the_runner_itself_still_leaves_a_marker(runner: Runner) -> None:
    entrypoint = build_entrypoint("true", specs={"a": "text"}, outputs={"a.b": {}})
    assert facts(runner.run(entrypoint)) == (125, 125, "none", "inputs")
