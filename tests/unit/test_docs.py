"""What README and docs tell people to type exists and works; links lead somewhere."""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from opened_platforms import process_at

from prefect_tao.catalog.image_versions import resolve_image_key
from prefect_tao.catalog.loading import load_catalog
from prefect_tao.jobs.chain_outcome import StepState
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.search_board import SearchFolder
from prefect_tao.jobs.search_outcome import SearchOutcome, TrialOutcome

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
OURS = ("prefect-tao", ".venv/bin/prefect-tao")
EXAMPLE_CATALOG = ROOT / "examples" / "catalog"
ANNOTATIONS = '{"annotations": [{"id": 1, "image_id": 1, "bbox": [0, 0, 1, 1], "category_id": 1}]}'


def commands() -> list[tuple[str, str]]:
    """Every line of every console block, with its page."""
    return [
        (page.name, line)
        for page in PAGES
        for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
        for line in block.splitlines()
        if line.strip()
    ]


def words_for(line: str, job: str) -> list[str]:
    """The command, made safe: nothing is launched, names are real."""
    words = [job if word == "<name>" else word for word in shlex.split(line)][1:]
    if words[0] in ("run", "chain", "sweep") and "--dry-run" not in words:
        words.insert(1, "--dry-run")
    if words[:2] == ["automl", "run"] and "--dry-run" not in words:
        words.insert(2, "--dry-run")
    return [sys.executable, "-m", "prefect_tao.cli", *words]


def write_files(folder: Path) -> None:
    """The spec, the points, the chains and the dataset roots that the pages speak of."""
    (folder / "spec.yaml").write_text("train:\n  num_epochs: 3\n")
    (folder / "points.csv").write_text("hidden,learning_rate\n8,0.1\n16,0.05\n")
    shutil.copytree(ROOT / "examples" / "chains", folder / "examples" / "chains")
    for root in (folder / "data" / "train", folder / "data" / "eval"):
        (root / "images").mkdir(parents=True)
        (root / "images.tar.gz").touch()
        (root / "annotations.json").write_text(ANNOTATIONS)
        (root / "customers.csv").write_text("age,left\n40,0\n")


def write_search() -> None:
    """The newest search, as far as commands that look at one want it."""
    trial = TrialOutcome(
        name="trial-0", label="lr=0.1", overrides={"lr": 0.1}, number=0, configuration=0, metrics={"loss": 1.0}
    )
    done = trial.model_copy(update={"state": StepState.COMPLETE})
    SearchFolder("one").write(SearchOutcome(points=(done,), metric="loss", best_number=0, spec={"lr": 0.1}))


@pytest.mark.parametrize(("page", "line"), commands())
def test_what_the_pages_say_can_be_typed(page: str, line: str, tmp_path: Path, home: Path) -> None:
    line = line.removeprefix("nice ")
    first = shlex.split(line)[0]
    if first == "make":
        assert re.search(rf"^{shlex.split(line)[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
    elif first in OURS:
        write_files(tmp_path)
        request = JobRequest.build(command="sleep 1; echo done")
        job = asyncio.run(launch(process_at(home), request, "ab" * 8, {})).handle.name
        write_search()
        env = {**os.environ, "PREFECT_TAO_GPUS": "0", "HF_TOKEN": "x", "PREFECT_TAO_CATALOG": str(EXAMPLE_CATALOG)}
        words = words_for(line, job)
        if words[3:5] == ["automl", "stop"]:
            words.append("--help")  # it asks a server
        done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
    elif first == ".venv/bin/prefect":
        known = subprocess.run([sys.executable, "-m", "prefect", *shlex.split(line)[1:], "--help"], capture_output=True)
        assert known.returncode == 0
    else:
        assert first == "export", f"{page}: nobody checks {line!r}"


def test_the_python_of_the_pages_compiles() -> None:
    blocks = [
        (page, block) for page in PAGES for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    ]
    assert blocks
    for page, block in blocks:
        compile(block, page.name, "exec")


def test_the_example_catalog_is_what_its_page_shows() -> None:
    catalog = load_catalog(overlays=[EXAMPLE_CATALOG])
    file = yaml.safe_load((EXAMPLE_CATALOG / "models" / "churn.yaml").read_text())
    (shown,) = re.findall(r"```yaml\n(title: Churn.*?)```", (ROOT / "docs" / "catalog.md").read_text(), re.DOTALL)
    del file["actions"]["train"]["spec_schema"]  # the page leaves it out
    assert yaml.safe_load(shown) == file
    assert resolve_image_key(catalog.images, str(catalog.models["churn"].container_image)) == "team/churn:1.4"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert link.startswith("http") or (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_of_a_page_ends(page: Path) -> None:
    """Text behind a closing fence would make it no fence, and the rest of the page a block."""
    fences = re.findall(r"^ *```.*$", page.read_text(), re.MULTILINE)
    assert all(re.fullmatch(r" *```\w*", fence) for fence in fences[::2])
    assert all(fence.strip() == "```" for fence in fences[1::2])
    assert len(fences) % 2 == 0
