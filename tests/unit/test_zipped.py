"""The runner in one file: imported from it as it is, ready-made by our own version of Python, from source by others."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from runner_tools import old_python

from prefect_tao.platforms.docker import container_starter
from prefect_tao.runner.zipped import zipped

CODE = """
import sys; sys.path.insert(0, sys.argv[1])
import inside.main, inside.stores.s3.client, container_starter
print(container_starter.HERE, inside.main.main.__code__.co_filename, inside.stores.s3.client.__file__)
"""


def imported(python: str, folder: Path) -> list[str]:
    archive = folder / "runner.zip"
    archive.write_bytes(zipped(Path(container_starter.__file__)))
    told = subprocess.run([python, "-S", "-c", CODE, archive], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    return told.stdout.split()


def test_our_own_python_takes_what_is_ready_made(tmp_path: Path) -> None:
    here, main, ways = imported(sys.executable, tmp_path)
    assert (here, main) == (str(tmp_path), "inside/main.py")
    assert ways.startswith(str(tmp_path / "runner.zip"))


def test_an_older_python_takes_the_source(tmp_path: Path) -> None:
    old = old_python()
    if old is None:
        pytest.skip("there is no Python 3.8 here: put python3.8 on PATH, or install one with pyenv")
    here, main, _ = imported(old, tmp_path)
    assert (here, main) == (str(tmp_path), str(tmp_path / "runner.zip/inside/main.py"))
