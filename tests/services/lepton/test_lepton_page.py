"""The commands of the page on Lepton, as somebody types them who has a workspace, a token and a bucket."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from lepton_api import lepton_server
from runner_tools import Bucket
from s3_server import S3Server

PAGE = Path(__file__).parents[3] / "docs" / "lepton.md"
pytestmark = pytest.mark.xdist_group("lepton")


@pytest.mark.timeout(300)
def test_the_commands_of_the_page_work(server: Any, s3_server: S3Server, tmp_path: Path) -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE.read_text(), re.DOTALL)
    bucket = Bucket(s3_server.endpoint)
    with lepton_server(tmp_path) as workspace:
        workspace.cloud.id = "my-team"
        env = {**server.env, "LEPTON_AUTH_TOKEN": workspace.cloud.token, "ACCESS_KEY": "test", "SECRET_KEY": "test"}
        env |= {"LEPTON_WORKSPACE_URL": workspace.url.replace("ws1", "my-team"), "HOME": str(tmp_path)}
        env |= {"S3_ENDPOINT_URL": bucket.env["AWS_ENDPOINT_URL"], "AWS_EC2_METADATA_DISABLED": "true"}
        said = []
        for line in map(str.strip, block.strip().splitlines()):
            words = shlex.split(line, comments=True)
            if words[0] == "export":
                env |= dict(word.split("=", 1) for word in words[1:]) | {"S3_BUCKET_NAME": bucket.name}
                continue
            command = [sys.executable, "-m", "prefect_tao.cli", *words[1:]]
            done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=150)
            assert done.returncode == 0, done.stdout + done.stderr
            said.append(done.stdout + done.stderr)
        (job,) = workspace.cloud.jobs.values()
        assert (job.state, workspace.cloud.secrets) == ("Completed", {})
    assert "a job in the workspace my-team" in said[1]
    assert "Complete" in said[2]
