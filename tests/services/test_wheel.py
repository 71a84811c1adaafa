"""The built wheel holds the tree, and a plain install of it, without constraints, runs a flow."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from uv_tool import uv

ROOT = Path(__file__).parents[2]
MAPPED = ("flows", "tasks", "blocks", "deployments", "examples")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy so that no build leftovers enter the tree."""
    folder = tmp_path_factory.mktemp("build")
    tracked = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in tracked.stdout.split("\n"):
        if name and (ROOT / name).is_file():
            (folder / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / "tree" / name)
    uv("build", "--quiet", "--wheel", "--out-dir", str(folder / "dist"), str(folder / "tree"))
    (built,) = (folder / "dist").glob("*.whl")
    return built


def test_the_wheel_holds_exactly_the_tree(wheel: Path) -> None:
    package = ROOT / "src" / "prefect_tao"
    kinds = ("*.py", "*.sh", "*.yaml", "*.json", "py.typed")
    expected = {f"prefect_tao/{path.relative_to(package)}" for kind in kinds for path in package.rglob(kind)}
    for name in MAPPED:
        expected |= {f"prefect_tao/{path.relative_to(ROOT)}" for path in (ROOT / name).rglob("*.py")}
    data = ("*.yaml", "*.json", "Dockerfile")
    deployments = (path for kind in data for path in (ROOT / "deployments").rglob(kind))
    expected |= {f"prefect_tao/{path.relative_to(ROOT)}" for path in deployments}
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert held == expected


def test_a_plain_install_runs_the_quickstart(wheel: Path, tmp_path: Path) -> None:
    uv("venv", "--quiet", "--python", sys.executable, str(tmp_path / "venv"))
    python = str(tmp_path / "venv" / "bin" / "python")
    uv("pip", "install", "--quiet", "--python", python, str(wheel))
    env = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    env |= {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_TAO_HOME": str(tmp_path / "home")}
    command = [str(tmp_path / "venv" / "bin" / "prefect-tao"), "quickstart", "--epochs", "2", "--json"]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stderr
    assert [outcome["state"] for outcome in json.loads(done.stdout)] == ["Complete"] * 3
    collections = "from prefect.plugins import load_prefect_collections as c; print(c()['prefect_tao'].__name__)"
    loaded = subprocess.run([python, "-c", collections], env=env, capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == "prefect_tao.blocks"
