"""A platform of another package, installed by itself: it keeps the contract, and it is everywhere that ours are."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from prefect_tools import Api
from uv_tool import uv

pytestmark = pytest.mark.xdist_group("prefect-server")
DOCS = Path(__file__).parents[2] / "docs"
SHELF = DOCS / "shelf"
FORM = """
import asyncio, json
from prefect.utilities.callables import parameter_schema
from prefect_tao.deployments.choices import choices
from prefect_tao.deployments.deploying import register_blocks
from prefect_tao.deployments.forms import form
from prefect_tao.flows import run

made = form(parameter_schema(run).model_dump(), asyncio.run(choices()))
print(json.dumps([made["properties"]["target"], asyncio.run(register_blocks())]))
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example's distribution and nothing else."""
    folder = tmp_path_factory.mktemp("shelf")
    shutil.copytree(SHELF, folder / "source", ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info"))
    words = ("pip", "install", "--quiet", "--no-deps", "--python", sys.executable)
    uv(*words, "--target", str(folder / "site"), str(folder / "source"))
    return folder / "site"


def python(env: dict[str, str], folder: Path, *words: str) -> str:
    """What a Python process prints that finds the example among the installed packages."""
    done = subprocess.run(
        [sys.executable, *words], env=env, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_example_passes_the_shipped_suite(installed: Path, tmp_path: Path) -> None:
    for name in ("test_shelf.py", "pyproject.toml"):  # apart from the source, so that what is installed is tested
        shutil.copy(SHELF / name, tmp_path)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env = {**kept, "PYTHONPATH": str(installed)}
    said = python(env, tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_shelf.py")
    assert re.search(r"^2\d passed", said, re.MULTILINE), said


def test_the_example_is_listed_saved_offered_and_launched_on(
    installed: Path, server: Any, api: Api, home: Path, tmp_path: Path
) -> None:
    env = {**server.env, "HOME": str(tmp_path), "PREFECT_TAO_HOME": str(home), "PYTHONPATH": str(installed)}
    cli = ("-m", "prefect_tao.cli")
    assert "shelf          Shelf: Jobs as folders on a shelf" in python(env, tmp_path, *cli, "platforms")
    try:
        root = tmp_path / "the shelf"
        saved = python({**env, "SHELF_ROOT": str(root)}, tmp_path, *cli, "setup", "shelf", "--name", "demo")
        assert "saved tao-shelf/demo" in saved
        assert saved.endswith("use it with --target shelf/demo\n")
        target, blocks = json.loads(python(env, tmp_path, "-c", FORM))
        assert {"TaoShelf", "TaoSlurm"} <= set(blocks)
        assert "shelf/demo" in target["anyOf"][0]["enum"]
        assert Draft202012Validator(target).is_valid("shelf/saved-later")
        ran = python(env, tmp_path, *cli, "run", "--target", "shelf/demo", "--json", "--", "echo hello")
        outcome = json.loads(ran)
        assert outcome["state"] == "Complete"
        assert outcome["results"].startswith(f"{root}/results/")
    finally:  # the server is shared with tests that know nothing of this type
        api.ask("DELETE", f"/block_types/{api.ask('GET', '/block_types/slug/tao-shelf')['id']}")


def test_the_page_shows_the_code_of_the_example() -> None:
    files = [path.read_text() for path in SHELF.rglob("*") if path.suffix in (".py", ".toml", ".yaml")]
    page = (DOCS / "adding-a-platform.md").read_text()
    blocks = re.findall(r"```(?:python|toml|yaml)\n(.*?)```", page, re.DOTALL)
    assert blocks
    for block in blocks:
        assert [text for text in files if block in text or indent(block, "    ") in text], block
