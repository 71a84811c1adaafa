"""The program repeats the command's status file in the job's log, where a launcher sees no more than that."""

from __future__ import annotations

import json

from runner_tools import Runner

from prefect_tao.runner.entrypoint import build_entrypoint

WRITE = 'echo "{\\"epoch\\": %d}" >> "$TAO_RESULTS_DIR/train/status.json"; '
FILE = "[prefect-tao] results_dir/train/status.json: "


def status(log: str) -> list[dict[str, int]]:
    return [json.loads(line.removeprefix(FILE)) for line in log.splitlines() if line.startswith(FILE)]


def test_lines_are_repeated_while_the_command_runs_and_each_only_once(runner: Runner) -> None:
    command = f'mkdir "$TAO_RESULTS_DIR/train"; {WRITE % 1} until [ -e go ]; do sleep 0.1; done; {WRITE % 2}'
    job = runner.start(build_entrypoint(command, workdir=str(runner.folder)), TAO_STATUS_IN_LOG="1")
    job.says(FILE)
    assert status(job.log) == [{"epoch": 1}]
    (runner.folder / "go").touch()
    assert status(job.end().log) == [{"epoch": 1}, {"epoch": 2}]


def test_the_file_that_was_written_last_is_the_one_that_counts(runner: Runner) -> None:
    command = (
        'cd "$TAO_RESULTS_DIR"; mkdir train; ' + WRITE % 3 + "mkdir -p made/old; "
        'echo "{}" > made/old/status.json; touch -d "1 hour ago" made/old/status.json; mv made/old old'
    )
    ended = runner.run(build_entrypoint(command), TAO_STATUS_IN_LOG="1")
    assert status(ended.log) == [{"epoch": 3}]
    assert "old/status.json" not in ended.log


def test_the_end_carries_as_many_of_the_last_lines_as_there_is_room_for(runner: Runner) -> None:
    told = runner.folder / "told"
    text = "x" * 1000
    command = (
        'mkdir "$TAO_RESULTS_DIR/train"; '
        f'for n in 1 2 3 4 5 6; do echo "$n {text}"; done > "$TAO_RESULTS_DIR/train/status.json"'
    )
    ended = runner.run(build_entrypoint(command), TAO_STATUS_IN_LOG="1", TAO_END_FILE=str(told))
    assert len(told.read_bytes()) <= 4096
    end = json.loads(told.read_text())
    assert [line[0] for line in end["status"]] == ["4", "5", "6"]
    assert end["exit_code"] == ended.code == 0
    assert "status" not in ended.marker


def test_nothing_is_repeated_where_nobody_asked_for_it_or_on_other_nodes(runner: Runner) -> None:
    command = f'mkdir -p "$TAO_RESULTS_DIR/train"; {WRITE % 1}'
    assert FILE not in runner.run(build_entrypoint(command)).log
    assert FILE not in runner.run(build_entrypoint(command), TAO_STATUS_IN_LOG="1", NODE_RANK="1").log


def test_of_a_file_that_has_grown_a_lot_only_the_end_is_repeated(runner: Runner) -> None:
    command = (
        'mkdir "$TAO_RESULTS_DIR/train"; '
        'seq -f "{\\"epoch\\": %.0f}" 1 20000 > made; printf "{\\"epoch\\": 20001}" >> made; '
        'mv made "$TAO_RESULTS_DIR/train/status.json"'
    )
    told = [
        one["epoch"]
        for one in status(runner.run(build_entrypoint(command, workdir=str(runner.folder)), TAO_STATUS_IN_LOG="1").log)
    ]
    assert told[-1] == 20001
    assert told == list(range(told[0], 20002))
    assert len(told) < 5000
