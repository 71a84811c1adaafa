"""What the contract needs alike of drivers whose jobs are containers: on an engine, and wherever lines come whole."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from docker_engine import PYTHON, Engine

from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms.gpu_locks import lock_folder, prepare
from prefect_tao.testing.contract import LONG, PlatformContract

SETTINGS: dict[str, Any] = {"network": "none", "gpu_ids": ["0"]}


class LinesAreWhole(PlatformContract):
    """For platforms that give out a line when it is whole, so that a log never ends inside one."""

    results: Path

    async def test_the_tail_is_the_last_lines_and_its_cursor_goes_on(self, platform: Platform) -> None:
        handle = await self.start(
            platform,
            "seq 1 5000; printf 'half \\360\\237'; sleep 0.6; printf '\\231\\202\\n'; "
            "until [ -e $TAO_RESULTS_DIR/go ]; do sleep 0.1; done; echo on",
        )
        await self.says(platform, handle, "half")
        tail = await platform.logs(handle, tail=3)
        assert tail.text == "4999\n5000\nhalf 🙂\n"
        (self.results / handle.key / "results_dir" / "go").touch()
        assert (await self.end(platform, handle)).state is JobState.COMPLETE
        assert (await platform.logs(handle, since=tail.cursor)).text == "on\n"
        assert (await platform.logs(handle, tail=0)).text == ""


class OnAnEngine(LinesAreWhole):
    """For jobs on a Docker engine of this machine, with their results in a folder of it; its one GPU is in use."""

    end_seconds = 60.0
    cancel_seconds = 10.0
    many = 8
    engine: Engine

    @pytest.fixture(autouse=True)
    def further_engine(self, request: pytest.FixtureRequest) -> None:
        self.fixture = request.getfixturevalue

    @contextmanager
    def gpu_in_use(self) -> Iterator[None]:
        prepare(lock_folder())
        with Path(lock_folder(), "0").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def request(self, command: str, **fields: object) -> JobRequest:
        return super().request(command, **{"image": PYTHON, **fields})

    def waiting_request(self, platform: Platform) -> JobRequest:
        return self.request(LONG, resources={"gpus": 1}, secrets=["TOKEN"])

    def written(self, platform: Platform) -> dict[str, bytes]:
        """The results, and all that containers hold on the engine's disk beyond their images."""
        found = {str(path): path.read_bytes() for path in self.results.rglob("*") if path.is_file()}
        for one in self.engine.client.containers(all=True):
            facts = self.engine.client.inspect_container(one["Id"])
            found[one["Id"]] = repr(facts).encode()
            layer = Path(facts["GraphDriver"]["Data"]["UpperDir"])
            found |= {str(path): path.read_bytes() for path in layer.rglob("*") if path.is_file()}
        return found
