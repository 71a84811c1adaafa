"""The shelf keeps the contract, and its promises whatever goes wrong."""

from __future__ import annotations

import fcntl
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex

import pytest

from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.platforms.process import client
from prefect_tao.testing.contract import LONG, PlatformContract
from prefect_tao.testing.fault_machine import run_machine
from prefect_tao.testing.process_world import ProcessWorld
from prefect_tao.testing.this_machine import OnThisMachine
from prefect_tao_shelf.driver import ShelfPlatform
from prefect_tao_shelf.settings import ShelfSettings


def shelf_at(root: Path) -> ShelfPlatform:
    return ShelfPlatform("shelf/test", ShelfSettings(root=str(root)))


class TestShelf(OnThisMachine, PlatformContract):
    end_seconds = 30.0
    cancel_seconds = 5.0
    many = 10

    @pytest.fixture
    def platform(self, tmp_path: Path) -> Iterator[Platform]:
        with open(tmp_path / "gpu", "w") as gpu:
            fcntl.flock(gpu, fcntl.LOCK_EX)  # the one GPU is in use
            yield shelf_at(tmp_path)
        while left := client.carriers(f"{tmp_path.resolve()}/"):
            for ident in (ident for idents in left.values() for ident in idents):
                client.send(ident, signal.SIGKILL)

    def another(self, platform: Platform) -> Platform:
        assert isinstance(platform, ShelfPlatform)
        return shelf_at(platform.root)

    def written(self, platform: Platform) -> dict[str, bytes]:
        assert isinstance(platform, ShelfPlatform)
        return {str(path): path.read_bytes() for path in sorted(platform.root.rglob("*")) if path.is_file()}

    def waiting_request(self, platform: Platform) -> JobRequest:
        return self.request(LONG, resources={"gpus": 1}, secrets=["TOKEN"])

    @contextmanager
    def outage(self, platform: Platform) -> Iterator[None]:
        """A folder that is a link to itself fails every access."""
        assert isinstance(platform, ShelfPlatform)
        folders = (platform.root / "jobs", platform.root / "results")
        for folder in folders:
            folder.rename(f"{folder}.away")
            folder.symlink_to(folder)
        yield
        for folder in folders:
            folder.unlink()
            Path(f"{folder}.away").rename(folder)


def test_no_order_of_faults_breaks_a_promise(tmp_path: Path) -> None:
    run_machine(lambda draw: ProcessWorld(tmp_path / token_hex(4), shelf_at), 5, steps=8, shrink=False)
