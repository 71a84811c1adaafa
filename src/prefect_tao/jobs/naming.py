"""Keys and names. The key is the logical launch and never changes; the name belongs to one attempt of it."""

from __future__ import annotations

import hashlib
import re
from typing import NamedTuple

from prefect_tao.jobs.errors import InvalidInput

KEY_PATTERN = r"[0-9a-f]{16}"
_NAME = re.compile(rf"tao-(?:job-)?({KEY_PATTERN})-([1-9][0-9]{{0,3}})")


class JobName(NamedTuple):
    """`tao-<key>-<attempt>`: short and plain enough to be legal on every platform."""

    key: str
    attempt: int

    def __str__(self) -> str:
        return f"tao-{self.key}-{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> JobName:
        """The name in `text`; raises InvalidInput when it is not one of ours."""
        match = _NAME.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise InvalidInput(
                f"{text!r} is not a job name of prefect-tao",
                "names look like tao-0123456789abcdef-1; `prefect-tao jobs` lists them",
            )
        return cls(match[1], int(match[2]))


def is_our_name(text: str) -> bool:
    """Whether `text` is the name of an attempt."""
    return _NAME.fullmatch(text) is not None


def job_key(run: str, step: str) -> str:
    """The key of `step` in `run`: constant while Prefect retries, resumes or re-runs the same logical launch.

    `run` is the caller's run_key or the root flow run's id: task run ids and child flow run ids change on a retry.
    """
    return hashlib.sha256(f"{run}\0{step}".encode()).hexdigest()[:16]


def run_label(run: str) -> str:
    """What a job carries so that all jobs of a run can be found: short and legal as a label everywhere."""
    return hashlib.sha256(run.encode()).hexdigest()[:16]
