"""Inputs that a tool of the image fetches: from Hugging Face and from NGC."""

from __future__ import annotations

import os

from .checkpoints import CHECKPOINTS
from .effort import patiently
from .errors import RunnerError
from .files import part_of, rename_once


def tool_command(uri: str, folder: str) -> list[str]:
    """The command that fetches an hf_model://, hf_dataset:// or ngc:// location into `folder` with the image's tool."""
    from shutil import which

    scheme, _, rest = uri.partition("://")
    if scheme == "ngc":
        if not which("ngc"):
            raise RunnerError("inputs", "%s needs the ngc command in the image, and it has none" % uri)
        return ["ngc", "registry", "model", "download-version", rest, "--dest", folder]
    program = which("hf") or which("huggingface-cli")
    if not program:
        raise RunnerError(
            "inputs", "%s needs the hf command (package huggingface_hub) in the image, and it has none" % uri
        )
    repository, _, revision = rest.partition("@")
    parts = repository.strip("/").split("/")
    words = [program, "download", "/".join(parts[:2]), *(["/".join(parts[2:])] if parts[2:] else [])]
    words += ["--repo-type", "model" if scheme == "hf_model" else "dataset", "--local-dir", folder]
    return words + (["--revision", revision] if revision else [])


def fetch_with_tool(uri: str, target: str) -> str:
    """Fetch `uri` with its tool; returns the one weights file in it, or the folder."""
    import subprocess

    if os.path.isdir(target):
        return _only_file(target)
    temporary = part_of(target)
    command = tool_command(uri, temporary)
    os.makedirs(temporary)

    def once() -> None:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if done.returncode:
            raise OSError(done.stdout.decode(errors="replace").strip()[-500:])

    patiently("inputs", "fetching %s" % uri, once)
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
