"""A prefect.yaml that cannot be deployed is told with all that is wrong with it, and nothing of it is deployed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from prefect_tao.deployments.described import described_deployments
from prefect_tao.deployments.recovery import OURS
from prefect_tao.jobs.errors import InvalidInput

ROOT = Path(__file__).parents[2]
CHAIN = "prefect_tao.flows.chains.chain"
MINE = """
from prefect import flow

@flow(name="another name")
def my_flow(target: int = 1) -> None: ...
"""


def told(folder: Path, *entries: Any) -> str:
    """Why these entries are refused."""
    (folder / "prefect.yaml").write_text(yaml.safe_dump({"deployments": list(entries)}))
    with pytest.raises(InvalidInput) as refused:
        described_deployments(folder)
    return str(refused.value)


def test_a_flow_of_somebody_else_is_known_by_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "flows").mkdir()
    (tmp_path / "flows" / "mine.py").write_text(MINE)
    entries = [{"name": "mine", "entrypoint": "flows/mine.py:my_flow"}, {"name": "night", "entrypoint": CHAIN}]
    (tmp_path / "prefect.yaml").write_text(yaml.safe_dump({"deployments": entries}))
    found = described_deployments(tmp_path)
    assert [(one.name, one.ours) for one in found] == [("another name/mine", False), ("chain/night", True)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "there is no prefect.yaml in"),
        ("deployments: [", "prefect.yaml is not YAML"),
        ("", "describes no deployments"),
        ("name: mine", "describes no deployments"),
        ("deployments:", "describes no deployments"),
        ("deployments: {name: run}", "describes no deployments"),
        ("- name: run", "describes no deployments"),
    ],
)
def test_a_file_without_deployments_is_told(tmp_path: Path, text: str | None, words: str) -> None:
    if text is not None:
        (tmp_path / "prefect.yaml").write_text(text)
    with pytest.raises(InvalidInput, match=words):
        described_deployments(tmp_path)


def test_everything_that_is_wrong_is_told_at_once(tmp_path: Path) -> None:
    text = told(
        tmp_path,
        "words",
        {"entrypoint": CHAIN},
        {"name": "a"},
        {"name": "b", "entrypoint": CHAIN, "schedule": {"cron": "0 2 * * *"}, "parameters": ["model"]},
        {"name": "c", "entrypoint": CHAIN, "schedules": [{"cron": "0 2 * * *"}], "triggers": [{"type": "event"}]},
        {"name": "d", "entrypoint": CHAIN, "schedules": {"slug": "x"}, "triggers": ["x"]},
        {"name": "e", "entrypoint": CHAIN, "schedules": [{"slug": "x"}, {"slug": "x"}]},
    )
    for words in (
        "deployment 1 is not a map",
        "deployment 2 has no name",
        "a has no entrypoint",
        "b: its parameters are not a map",
        "b: schedule is an old key",
        "c: not each of its schedules has a slug of its own",
        "c: not each of its triggers has a name of its own",
        "d: schedules is not a list of maps",
        "d: triggers is not a list of maps",
        "e: not each of its schedules has a slug of its own",
    ):
        assert words in text


@pytest.mark.parametrize(
    "entrypoint", ["prefect_tao.flows.chians.chain", "prefect_tao.flows.chains.chian", "no.py:x", "x"]
)
def test_a_flow_that_cannot_be_loaded_is_told(tmp_path: Path, entrypoint: str) -> None:
    assert f"mine: the flow {entrypoint} cannot be loaded" in told(tmp_path, {"name": "mine", "entrypoint": entrypoint})


def test_two_deployments_of_one_name_are_told(tmp_path: Path) -> None:
    entry = {"name": "mine", "entrypoint": CHAIN}
    assert "describes chain/mine twice" in told(tmp_path, entry, entry)


def test_the_command_says_it_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "prefect.yaml").write_text("deployments: [")
    words = [sys.executable, "-m", "prefect_tao.deployments"]
    env = {**os.environ, "PREFECT_API_URL": "http://127.0.0.1:9/api"}
    done = subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith("prefect.yaml is not YAML")


def test_the_flows_that_are_looked_after_are_those_that_are_deployed() -> None:
    entries = {one.entry["name"]: one for one in described_deployments(ROOT)}
    flows = {one.flow.name for one in entries.values()} - {"recover", "return-instances"}
    (orphans,) = [one for one in entries["recover"].entry["triggers"] if one["posture"] == "Proactive"]
    assert set(OURS) == flows == set(orphans["match_related"]["prefect.resource.name"])
