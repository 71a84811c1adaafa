"""Variables that steer launchers and services reach no job, on any platform."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from opened_platforms import docker_at, process_at, slurm_at

from prefect_tao.jobs import control
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest

MARK = "steers-a-service"


def platforms(folder: Path) -> dict[str, Platform]:
    site = {"MONGOSECRET": MARK, "COLOR": "green"}
    return {
        "process": process_at(folder),
        "docker": docker_at(host="unix:///nowhere", env=site),
        "slurm": slurm_at(env=site, results_root="/lustre/me"),
    }


@pytest.mark.parametrize("name", ["process", "docker", "slurm"])
def test_what_block_and_request_say_of_them_is_left_out(tmp_path: Path, name: str) -> None:
    given = dict.fromkeys(control.NAMES - {"PREFECT_API_KEY"}, MARK)  # a request refuses what is called like a secret
    image = None if name == "process" else "ubuntu"
    request = JobRequest.build(command="env", image=image, env={**given, "SIZE": "large"})
    rendered = platforms(tmp_path)[name].render(request, "0" * 16, 1)
    sent = [_without_request(data.decode()) for file, data in rendered.files.items() if file != "request.json"]
    assert any("SIZE" in text for text in sent)
    assert [text for text in sent if MARK in text] == []


def _without_request(text: str) -> str:
    """The request itself is kept as it was asked for; a job's variables are not read from there."""
    try:
        facts = json.loads(text)
    except ValueError:
        return text
    return json.dumps({name: value for name, value in facts.items() if name != "request"})
