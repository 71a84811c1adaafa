"""Only a run that may have launched jobs already waits for a silent platform; the gates tell a first run at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from opened_platforms import process_settings

from prefect_tao.flows import steps
from prefect_tao.jobs.errors import Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.platforms.process.driver import ProcessPlatform


class Silent(ProcessPlatform):
    """A platform that never answers."""

    async def find(self, keys: Sequence[str]) -> dict[str, list[JobHandle]]:
        raise Unreachable("no answer")


async def test_a_first_sweep_does_not_wait_for_a_platform_that_is_away(tmp_path: Path) -> None:
    found = steps.with_jobs(Silent("process", process_settings(tmp_path)), ["ab" * 8], run_key=None)
    assert await asyncio.wait_for(found, 10) == set()


async def test_one_that_goes_on_with_an_earlier_one_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "PATIENCE_SECONDS", 0.1)
    with pytest.raises(Unreachable):
        await steps.with_jobs(Silent("process", process_settings(tmp_path)), ["ab" * 8], run_key="tuesday")
