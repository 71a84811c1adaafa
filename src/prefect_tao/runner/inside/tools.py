"""Inputs that a tool of the image fetches: from Hugging Face and from NGC."""

from __future__ import annotations

import os

from .atomic import part_of, rename_once
from .checkpoints import CHECKPOINTS
from .retry import retry_phase

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def fetch_with_tool(uri: str, command: Callable[[str], list[str]], target: str) -> str:
    """Run the command that fetches `uri` into a folder; returns the one weights file in it, or the folder."""
    import subprocess

    if os.path.isdir(target):
        return _only_file(target)
    temporary = part_of(target)
    words = command(temporary)
    os.makedirs(temporary)

    def once() -> None:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            raise OSError(done.stdout.decode(errors="replace").strip()[-500:])

    retry_phase("inputs", "fetching %s" % uri, once)
    rename_once(temporary, target)
    return _only_file(target)


def _only_file(folder: str) -> str:
    """The one weights file in `folder` when there is exactly one, else the folder: what a spec key wants."""
    found = [
        os.path.join(base, name)
        for base, _, names in os.walk(folder)
        for name in names
        if name.endswith(CHECKPOINTS) and "/." not in base[len(folder) :]
    ]
    return found[0] if len(found) == 1 else folder
