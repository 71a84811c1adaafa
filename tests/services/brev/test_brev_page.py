"""The commands of the page on Brev, as somebody types them who is logged in and keeps results on this machine."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import debian
import pytest
from brev_cloud import brev_cloud
from docker_engine import PYTHON, Engine

from prefect_tao.platforms.brev import render

PAGE = Path(__file__).parents[3] / "docs" / "brev.md"
pytestmark = pytest.mark.xdist_group("docker")


@pytest.mark.timeout(400)
def test_the_commands_of_the_page_work(server: Any, engine: Engine, home: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    lines = [line.strip() for block in blocks for line in block.splitlines() if line.strip()]
    results, said = tmp_path / "results", []
    with tempfile.TemporaryDirectory(prefix="tao-brev-") as folder, brev_cloud(Path(folder), [engine]) as cloud:
        env = {
            **server.env,
            "PREFECT_TAO_HOME": str(home),
            "DOCKER_NETWORK": "none",
            "PATH": f"{folder}/bin:{debian.PATH}",
        }
        for line in lines:
            words = [PYTHON if word == "python:3.12" else word for word in shlex.split(line, comments=True)]
            if words[0] == "export":
                env |= {"TAO_RESULTS_ROOT": str(results), "HOME": f"{folder}/home"}
                continue
            command = [sys.executable, "-m", "prefect_tao.cli", *words[1:]]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            said.append(done.stdout + done.stderr)
        assert (cloud.made, cloud.paid) == (1, [])
    (key,) = [path.name for path in results.iterdir() if not path.name.startswith(".")]
    shutil.rmtree(Path(render.ON_INSTANCE, key), ignore_errors=True)
    assert "made for this job of the cheapest type that has the GPUs" in said[1]
    assert "Complete" in said[2]
    assert "no instance was made for a job of yours" in said[3]
