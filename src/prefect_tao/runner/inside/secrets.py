"""Secrets: from a file into the environment of the command."""

from __future__ import annotations

import os

from .fast_imports import loads
from .schemes import ALIASES


def take_secrets() -> None:
    """Read the secrets file into the environment and remove it, unless it is kept for a requeue."""
    path = os.environ.pop("TAO_SECRETS_FILE", None)
    keep = os.environ.pop("TAO_SECRETS_KEEP", "0") == "1"
    if path and (keep or os.path.exists(path)):  # what is kept is there; without it the command would run unarmed
        with open(path, encoding="utf-8") as file:
            secrets = loads(file.read())
        os.environ.update({name: str(value) for name, value in secrets.items()})
        if not keep:
            os.unlink(path)
    for ours, theirs in ALIASES.items():
        if os.environ.get(ours):
            os.environ.setdefault(theirs, os.environ[ours])
