"""uv, as tests build and install with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path


def uv(*words: str) -> None:
    """Run uv; an AssertionError with its words when it fails."""
    program = Path(sys.executable).with_name("uv")
    found = str(program) if program.exists() else shutil.which("uv")
    assert found, "uv is missing: make setup installs it"
    done = subprocess.run([found, *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
