"""The questions of `plan` and `run`, asked at a real pseudo-terminal, in their order and only where something lacks."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from prefect_tao.cli.prompts import _data, _is_pair

SECONDS = 30.0
PLATFORM = "of a saved block [process]: "
EXACT = "dataset.{0}_data_sources[0].image_dir={1}/i dataset.{0}_data_sources[0].json_file={1}/a.json"


ASKING = """
from prefect_tao.cli.prompts import ask
for number in range({times}):
    try:
        ask("again", str)
    except KeyboardInterrupt:
        print("heard", flush=True)
"""


class Terminal:
    """The command line, or another program of Python, at a terminal of its own."""

    def __init__(self, *words: str, python: tuple[str, ...] = ("-m", "prefect_tao.cli"), **env: str) -> None:
        self.pid, self.terminal = pty.fork()
        if self.pid == 0:
            os.environ.update(env)
            os.execv(sys.executable, [sys.executable, *python, *words])
        self.seen = ""

    def until(self, text: str) -> str:
        """What was shown since the last call, up to `text`."""
        deadline = time.monotonic() + SECONDS
        while text not in self.seen:
            assert time.monotonic() < deadline, f"{text!r} did not come, but {self.seen!r}"
            assert self._read(), f"it ended without {text!r}: {self.seen!r}"
        before, _, self.seen = self.seen.partition(text)
        return before

    def answer(self, question: str, line: str) -> str:
        """What was shown before `question`, which is answered."""
        before = self.until(question)
        os.write(self.terminal, f"{line}\n".encode())
        return before

    def end(self) -> tuple[int, str]:
        """The exit code and what was still shown."""
        while self._read():
            pass
        os.close(self.terminal)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1]), self.seen

    def _read(self) -> bool:
        if not select.select([self.terminal], [], [], SECONDS)[0]:
            os.kill(self.pid, signal.SIGKILL)
            raise AssertionError(f"nothing came any more after {self.seen!r}")
        try:
            chunk = os.read(self.terminal, 65536)
        except OSError:  # how Linux tells that the other end is closed
            return False
        self.seen += chunk.decode(errors="replace").replace("\r\n", "\n")
        return bool(chunk)


@pytest.fixture(autouse=True)
def _no_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in [name for name in os.environ if re.match(r"SLURM_|SSH_|HF_|AWS_|ACCESS_KEY|SECRET_KEY|DOCKER_", name)]:
        monkeypatch.delenv(name)


def test_plan_asks_for_platform_data_and_gpus_in_this_order(home: Path) -> None:
    asked = Terminal("plan", "dino", "train", "--automl-policy", "off")
    listed = asked.answer(PLATFORM, "proces")
    assert all(name in listed for name in ("lepton", "slurm", "kubernetes", "process"))
    assert "did you mean process?" in asked.answer(PLATFORM, "")
    shown = asked.answer("train data (Enter leaves it open): ", "/tmp/train")
    assert "A) a root, such as /data/dino/train" in shown
    assert "B) exact keys as KEY=path pairs" in shown
    assert "dataset.train_data_sources[0].json_file=/data/dino/train/annotations.json" in shown
    assert "image" not in shown.partition("The train data")[0]
    asked.answer("eval data (Enter leaves it open): ", EXACT.format("val", "/tmp/e"))
    asked.answer("GPUs per node (dino is meant for 1 or more) [1]: ", "many")
    asked.answer("GPUs per node (dino is meant for 1 or more) [1]: ", "2")
    code, shown = asked.end()
    assert code == 2
    assert "dino train on process" in shown
    assert "data: dataset.train_data_sources[0].image_dir = /tmp/train/images.tar.gz" in shown
    assert "data: dataset.val_data_sources[0].json_file = /tmp/e/a.json" in shown
    assert "gpus: 2 were asked for" in shown
    assert not home.exists()


def test_on_a_cluster_the_image_is_asked_for_and_its_credentials_are_told() -> None:
    asked = Terminal("plan", "dino", "train", "--target", "slurm")
    shown = asked.answer("one plain training [yes]: ", "no")  # the policy is asked first, not failed late
    assert "train of dino goes through an AutoML search" in shown
    assert "tao-toolkit" in asked.answer("Enter to use it, or another image: ", "not an image")
    assert "is not an image reference" in asked.answer("Enter to use it, or another image: ", "team/dino:7")
    shown = asked.answer("train data (Enter leaves it open): ", "")
    assert "/lustre/fsw/" in shown
    asked.answer("eval data (Enter leaves it open): ", "")
    code, shown = asked.end()
    assert code == 2
    assert "GPUs per node" not in shown
    told = shown.partition("dino train on slurm")[0]
    assert re.findall(r"(\w+) is missing", told) == ["SLURM_USER", "SLURM_HOSTNAME", "SLURM_PARTITION", "SSH_KEY_PATH"]
    assert "how to get it" in told
    assert "`prefect-tao setup slurm`" in told
    assert "image: team/dino:7 (from the launch)" in shown


def test_a_secret_is_typed_unseen_and_counts_for_this_launch() -> None:
    words = ["plan", "tiny", "train", "--target", "process", "--secret", "WANDB_API_KEY"]
    asked = Terminal(*words)
    assert "WANDB_API_KEY is missing: the job asks for it" in asked.answer("Enter leaves it open): ", "hush-hush-hush")
    code, shown = asked.end()
    assert code == 0, shown
    assert "WANDB_API_KEY is set" in shown
    assert "hush" not in shown


def test_nothing_is_asked_when_nothing_is_missing() -> None:
    code, shown = Terminal("plan", "tiny", "train", "--target", "process").end()
    assert code == 0
    assert shown.startswith("tiny train on process")


def test_run_asks_whether_to_stay_and_an_interrupt_launches_nothing(home: Path) -> None:
    asked = Terminal("run", "--model", "tiny", "--action", "train")
    asked.answer(PLATFORM, "")
    asked.answer("stay attached and show progress until the job ends [yes]: ", "perhaps")
    assert "answer yes or no" in asked.answer("until the job ends [yes]: ", "")
    asked.until("minutes between updates [5]: ")
    os.write(asked.terminal, b"\x03")
    code, shown = asked.end()
    assert code == 130
    assert "Nothing was launched." in shown
    assert "Traceback" not in shown
    assert not home.exists()


@pytest.mark.long
def test_an_interrupt_is_heard_however_soon_after_the_question_it_comes() -> None:
    times = 20_000  # Python alone misses about one in three thousand
    asked = Terminal(python=("-c", ASKING.format(times=times)))
    for _ in range(times):
        asked.until("again: ")
        os.write(asked.terminal, b"\x03")
        asked.until("heard")
    assert asked.end()[0] == 0


def test_a_dry_run_does_not_ask_whether_to_stay() -> None:
    asked = Terminal("run", "--model", "tiny", "--action", "train", "--dry-run")
    asked.answer(PLATFORM, "")
    code, shown = asked.end()
    assert code == 0
    assert "stay attached" not in shown


def test_the_end_of_the_input_ends_with_2(home: Path) -> None:
    asked = Terminal("plan", "tiny", "train")
    asked.until(PLATFORM)
    os.write(asked.terminal, b"\x04")
    code, shown = asked.end()
    assert code == 2
    assert "Nothing was launched." in shown
    assert not home.exists()


def test_a_misspelt_model_is_told_before_any_question() -> None:
    code, shown = Terminal("plan", "dyno", "train").end()
    assert code == 2
    assert "there is no 'dyno'" in shown
    assert "Where" not in shown


def test_off_a_terminal_nothing_is_asked_and_the_gates_list_what_is_missing() -> None:
    words = [sys.executable, "-m", "prefect_tao.cli", "plan", "dino", "train"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stdout.startswith("dino train on process")
    assert "no train root was given" in done.stdout
    assert done.stderr == ""


def test_roots_and_exact_keys_are_told_apart() -> None:
    assert _is_pair("a.b[0].c=/data/x=1")
    assert not any(map(_is_pair, ("/data/x=1/train", "s3://bucket/a=b", "~/x=y", "=x", "a=")))
    assert _data("'/data/with blanks' /two").roots == ["/data/with blanks", "/two"]
    assert _data("") == ([], {})
    for text in ("/root a=b", "'open"):
        with pytest.raises(ValueError):
            _data(text)
