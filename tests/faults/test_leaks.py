"""What a job must not get out of the machine that looks at it: files of the user, secrets on the screen, escapes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from opened_platforms import process_at

from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.naming import job_key
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.jobs.watcher import Watcher
from prefect_tao.platforms.process.driver import ProcessPlatform
from prefect_tao.storage.result_files import Results

SECRET = "a-secret-of-the-user"


@pytest.fixture
async def platform(home: Path) -> AsyncIterator[ProcessPlatform]:
    opened = process_at(home)
    yield opened
    await opened.close()


async def done(platform: ProcessPlatform, command: str, **secrets: str) -> Results:
    """The results of a job that has run here."""
    request = JobRequest.build(command=command, secrets=list(secrets))
    launched = await launch(platform, request, job_key("leaks", command), secrets)
    assert (await Watcher(platform).wait(launched.handle)).state is JobState.COMPLETE
    return Results(platform, launched.handle)


@pytest.mark.parametrize("kind", ["file", "folder"])
async def test_a_link_out_of_the_results_is_never_followed(
    platform: ProcessPlatform, tmp_path: Path, kind: str
) -> None:
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / ".env").write_text(SECRET)
    planted = private / ".env" if kind == "file" else private
    results = await done(platform, f"echo ok >$TAO_RESULTS_DIR/model.pth; ln -s {planted} $TAO_RESULTS_DIR/innocent")
    await results.download(await results.files(), tmp_path / "copies")
    copied = [path for path in (tmp_path / "copies").rglob("*") if path.is_file()]
    assert [path.name for path in copied if path.name == "model.pth"] == ["model.pth"]
    assert [path for path in copied if SECRET in path.read_text()] == []


async def test_a_link_within_the_results_is_fetched(platform: ProcessPlatform, tmp_path: Path) -> None:
    results = await done(platform, "cd $TAO_RESULTS_DIR; echo ok >epoch_3.pth; ln -s epoch_3.pth latest.pth")
    await results.download(await results.files(), tmp_path / "copies")
    assert [path.read_text() for path in (tmp_path / "copies").rglob("*.pth")] == ["ok\n", "ok\n"]


def shown(words: list[str], tmp_path: Path, **env: str) -> str:
    """What the command prints."""
    program = Path(sys.executable).with_name("prefect-tao")
    around = {**os.environ, "PREFECT_HOME": str(tmp_path / "prefect"), **env}
    ended = subprocess.run([program, *words], env=around, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


async def test_logs_hides_the_secrets_that_it_can_know(platform: ProcessPlatform, tmp_path: Path) -> None:
    results = await done(platform, 'echo "the token is $TOKEN"', TOKEN=SECRET)
    said = shown(["logs", results.handle.name], tmp_path, TOKEN=SECRET)
    assert "the token is" in said
    assert SECRET not in said


async def test_logs_passes_no_terminal_escapes_on(platform: ProcessPlatform, tmp_path: Path) -> None:
    results = await done(platform, r"printf 'before\033]0;another title\007\033[2Jafter\n'")
    said = shown(["logs", results.handle.name], tmp_path)
    assert "before" in said
    assert "\033" not in said
