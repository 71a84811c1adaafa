"""What the seven gates of a launch take together, on a platform that answers slowly, against the slowest of them."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Row, in_turn, ms, times
from prefect_tao.catalog.loading import load_catalog
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.process.driver import ProcessPlatform
from prefect_tao.platforms.process.settings import ProcessSettings
from prefect_tao.preflight.checked_launch import Launch
from prefect_tao.preflight.gates import GATES, run_gate, run_gates
from prefect_tao.preflight.resolve.ask import Ask
from prefect_tao.preflight.resolve.model_launch import resolve

ROUNDS = 5
ANSWER_SECONDS = 0.3
SECONDS_WORTH_COMPARING = 0.05


class FarAway(ProcessPlatform):
    """This machine, as if every question went over a slow line."""

    async def probe(self, request: JobRequest | None = None) -> list[Finding]:
        await asyncio.sleep(ANSWER_SECONDS)
        return await super().probe(request)

    async def check_path(self, uri: str) -> bool:
        await asyncio.sleep(ANSWER_SECONDS)
        return True

    async def host_versions(self) -> dict[str, str]:
        await asyncio.sleep(ANSWER_SECONDS)
        return {"driver": "580", "cuda": "13.0"}

    async def disk_free(self) -> dict[str, int]:
        await asyncio.sleep(ANSWER_SECONDS)
        return await super().disk_free()


def _launch(home: Path) -> Launch:
    catalog = load_catalog(overlays=())
    ask = Ask.of(model="dino", action="train", train_root="/data/train", eval_root="/data/eval", gpus=1)
    return Launch(catalog, resolve(catalog, ask), FarAway("process", ProcessSettings(root=str(home), gpu_ids=["0"])))


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)

        def alone(name: str) -> Callable[[], object]:
            return lambda: asyncio.run(run_gate(name, _launch(home)))

        actions = {name: alone(name) for name in GATES}
        found = in_turn({**actions, "all": lambda: asyncio.run(run_gates(_launch(home)))}, ROUNDS)
    single = {name: found[name] for name in GATES}
    slowest = max(single, key=lambda name: single[name])
    slow = [name for name in GATES if single[name] > SECONDS_WORTH_COMPARING]
    return [
        Row(f"the slowest gate alone ({slowest})", ms(single[slowest]), "1x"),
        Row("all seven together", ms(found["all"]), times(found["all"], single[slowest]), "at most 1.2x the slowest"),
        Row(
            f"the {len(slow)} that ask the platform, one after another",
            ms(sum(single[name] for name in slow)),
            times(sum(single[name] for name in slow), single[slowest]),
        ),
    ]
