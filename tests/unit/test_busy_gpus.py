"""On this machine too, GPUs that others compute on are not handed out, and a launch is told who that is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from docker_engine import NVIDIA_SMI
from opened_platforms import process_at
from process_tools import end_of, job, new_key

from prefect_tao.jobs.errors import SubmitFailed
from prefect_tao.jobs.finding import Level
from prefect_tao.platforms.process.driver import ProcessPlatform

LISTED = "*-L*) echo 'GPU 0: A100 (UUID: GPU-aaaa)'; echo 'GPU 1: A100 (UUID: GPU-bbbb)' ;;\n*query-gpu*)"


@pytest.fixture
def platform(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ProcessPlatform:
    """This machine with two GPUs, one of which another person's process uses."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(NVIDIA_SMI.replace("*query-gpu*)", LISTED))
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(smi.parent), prepend=os.pathsep)
    monkeypatch.setenv("PREFECT_TAO_GPU_LOCKS", str(tmp_path / "locks"))
    return process_at(tmp_path / "home")


async def test_a_job_gets_the_free_one(platform: ProcessPlatform) -> None:
    asked = job("echo got $CUDA_VISIBLE_DEVICES", resources={"gpus": 1})
    assert not [one for one in await platform.probe(asked) if one.subject == "gpus"]
    handle = await platform.submit(platform.render(asked, new_key(), 1), {})
    await end_of(platform, handle)
    assert "got 1\n" in (await platform.logs(handle)).text


@pytest.mark.parametrize("wanted", [2, -1])
async def test_a_job_that_needs_both_is_refused_with_who_has_the_other(platform: ProcessPlatform, wanted: int) -> None:
    asked = job("true", resources={"gpus": wanted})
    (found,) = [one for one in await platform.probe(asked) if one.subject == "gpus"]
    assert (found.level, "GPU 0 is in use by process 4711 (python3)" in found.message) == (Level.FAIL, True)
    with pytest.raises(SubmitFailed, match="process 4711"):
        await platform.submit(platform.render(asked, new_key(), 1), {})
