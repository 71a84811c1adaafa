"""Variables by name: from the environment, else from the settings file that TAO's tools share."""

from __future__ import annotations

import io
import os
from collections.abc import Mapping

from prefect_tao.jobs.errors import InvalidInput

FILE = ".config/tao/.env"
# Our names, and those of AWS's tools.
KEYS = {"ACCESS_KEY": "AWS_ACCESS_KEY_ID", "SECRET_KEY": "AWS_SECRET_ACCESS_KEY"}
PLACES = {"S3_ENDPOINT_URL": "AWS_ENDPOINT_URL", "CLOUD_REGION": "AWS_REGION"}


def variables(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """All that is set and not blank; `environ`, else the process's environment, wins over the file in its HOME.

    Raises InvalidInput when the file is there and cannot be read.
    """
    given = os.environ if environ is None else environ
    home = given.get("HOME")
    stored = parse(_text(f"{home}/{FILE}")) if home else {}
    return _with_aws({**_present(stored), **_present(given)})


def _with_aws(found: dict[str, str]) -> dict[str, str]:
    """The same with the names that AWS's tools use, where ours are not set. The two halves of a key stay together."""
    pairs = [KEYS] if not any(name in found for name in KEYS) and all(name in found for name in KEYS.values()) else []
    aliases = {ours: theirs for names in (*pairs, PLACES) for ours, theirs in names.items() if theirs in found}
    return {**{ours: found[theirs] for ours, theirs in aliases.items()}, **found}


def parse(text: str) -> dict[str, str]:
    """The KEY=VALUE lines of `text`. A `$` stays as it is: a password `pa${B}ss` is not expanded."""
    from dotenv import dotenv_values

    found = dotenv_values(stream=io.StringIO(text), interpolate=False)
    return {name: value for name, value in found.items() if value is not None}


def _present(given: Mapping[str, str]) -> dict[str, str]:
    return {name: value.strip() for name, value in given.items() if value.strip()}


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8-sig", errors="replace") as file:
            return file.read()
    except (FileNotFoundError, NotADirectoryError):
        return ""
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}", "correct its permissions or remove it") from None
