"""The process driver keeps the contract."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from opened_platforms import process_at

from prefect_tao.jobs.errors import InvalidInput, SubmitFailed
from prefect_tao.jobs.finding import Level
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState
from prefect_tao.platforms import gpu_locks
from prefect_tao.platforms.process import client
from prefect_tao.platforms.process.driver import ProcessPlatform
from prefect_tao.testing.contract import LONG, SharedResultsContract, new_key, until
from prefect_tao.testing.this_machine import OnThisMachine


class TestProcess(OnThisMachine, SharedResultsContract):
    end_seconds = 30.0
    cancel_seconds = 5.0

    @pytest.fixture
    def platform(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Platform]:
        locks = tmp_path / "locks"
        monkeypatch.setenv("PREFECT_TAO_GPU_LOCKS", str(locks))
        gpu_locks.prepare(str(locks))
        held = gpu_locks.take({"0": ()}, 1, str(locks))  # the one GPU is in use
        assert held
        platform = process_at(tmp_path / "root", gpu_ids=["0"])
        yield platform
        for lock in held["0"]:
            os.close(lock)
        while left := client.carriers(f"{tmp_path.resolve()}/"):
            for ident in (ident for idents in left.values() for ident in idents):
                client.send(ident, signal.SIGKILL)

    def another(self, platform: Platform) -> Platform:
        assert isinstance(platform, ProcessPlatform)
        return process_at(platform.root, gpu_ids=["0"])

    def written(self, platform: Platform) -> dict[str, bytes]:
        assert isinstance(platform, ProcessPlatform)
        base = platform.root.parent
        return {str(path): path.read_bytes() for path in sorted(base.rglob("*")) if path.is_file()}

    def waiting_request(self, platform: Platform) -> JobRequest:
        return self.request(LONG, resources={"gpus": 1}, secrets=["TOKEN"])

    @contextmanager
    def outage(self, platform: Platform) -> Iterator[None]:
        """A folder that is a link to itself fails every access, even root's."""
        assert isinstance(platform, ProcessPlatform)
        folders = (platform.root / "jobs", platform.results_root)
        for folder in folders:
            folder.rename(f"{folder}.away")
            folder.symlink_to(folder)
        yield
        for folder in folders:
            folder.unlink()
            Path(f"{folder}.away").rename(folder)

    # -- what only processes can show ----------------------------------------------------------------------------------

    async def test_secrets_wait_in_a_file_that_only_the_owner_may_read(self, platform: Platform) -> None:
        handle = await platform.submit(
            platform.render(self.waiting_request(platform), new_key(), 1), {"TOKEN": "secret-for-later"}
        )
        holders = [name for name, data in self.written(platform).items() if b"secret-for-later" in data]
        assert [os.stat(name).st_mode & 0o777 for name in holders] == [0o600]
        assert (await platform.cancel([handle], timeout=self.cancel_seconds))[handle].state is JobState.CANCELED

    async def test_several_nodes_are_refused(self, platform: Platform) -> None:
        with pytest.raises(InvalidInput, match="2 nodes"):
            platform.render(self.request(LONG, resources={"nodes": 2}), new_key(), 1)

    async def test_more_gpus_than_the_machine_has_are_refused_instead_of_awaited(self, platform: Platform) -> None:
        request = self.request(LONG, resources={"gpus": 2})
        assert [finding.subject for finding in await platform.probe(request) if finding.blocks] == ["gpus"]
        key = new_key()
        with pytest.raises(SubmitFailed, match="this machine has 1"):
            await platform.submit(platform.render(request, key, 1), {})
        assert await platform.find([key]) == {key: []}

    async def test_all_gpus_are_those_of_this_machine(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PREFECT_TAO_GPU_LOCKS", str(tmp_path / "locks"))
        machine = process_at(tmp_path / "root", gpu_ids=["0", "2"])
        request = self.request("echo got $CUDA_VISIBLE_DEVICES", resources={"gpus": -1})
        assert await machine.all_gpus() == 2
        assert not [finding for finding in await machine.probe(request) if finding.blocks]
        handle = await machine.submit(machine.render(request, new_key(), 1), {})
        assert (await self.end(machine, handle)).state is JobState.COMPLETE
        assert "got 0,2\n" in (await machine.logs(handle)).text
        none = process_at(tmp_path / "root", gpu_ids=[])
        with pytest.raises(SubmitFailed, match="all were asked for, and this machine has 0"):
            await none.submit(none.render(request, new_key(), 1), {})

    @pytest.mark.parametrize(
        ("fields", "check", "words"),
        [
            ({"resources": {"memory": "64G"}}, "memory", "does not limit memory"),
            ({"resources": {"cpus": 4}}, "cpus", "does not limit cpus"),
            ({"env": {"CUDA_VISIBLE_DEVICES": "1"}}, "CUDA_VISIBLE_DEVICES", "the given value is not used"),
        ],
    )
    async def test_what_a_process_does_not_heed_is_said_beforehand(
        self, platform: Platform, fields: dict[str, object], check: str, words: str
    ) -> None:
        (finding,) = [one for one in await platform.probe(self.request(LONG, **fields)) if one.level is not Level.OK]
        assert (finding.level, finding.subject) == (Level.WARN, check)
        assert words in finding.message
        assert finding.remedy

    async def test_a_folder_that_is_not_ours_is_left_alone(self, platform: Platform) -> None:
        assert isinstance(platform, ProcessPlatform)
        key = new_key()
        foreign = platform.root / "jobs" / f"tao-{key}-1"
        foreign.mkdir(parents=True)
        (foreign / "notes.txt").write_text("mine")
        (platform.root / "jobs" / f"tao-{key}-1.bak").mkdir()
        with pytest.raises(SubmitFailed, match="not a job of prefect-tao"):
            await self.start(platform, LONG, key=key)
        assert os.listdir(foreign) == ["notes.txt"]
        assert await platform.jobs() == []

    async def test_the_same_name_under_another_root_is_another_job(self, platform: Platform) -> None:
        assert isinstance(platform, ProcessPlatform)
        key = new_key()
        elsewhere = process_at(platform.root.parent / "elsewhere")
        there = await self.start(elsewhere, LONG, key=key)
        assert await platform.find([key]) == {key: []}
        here = await self.start(platform, LONG, key=key)
        await platform.cancel([here], timeout=self.cancel_seconds)
        assert (await self.seen(elsewhere, there)).state is JobState.RUNNING

    async def test_results_are_looked_for_where_the_job_was_told_to_put_them(self, platform: Platform) -> None:
        assert isinstance(platform, ProcessPlatform)
        moved = process_at(platform.root, results_root=platform.root.parent / "big-disk")
        handle = await self.start(moved, "exit 0")
        (found,) = (await platform.find([handle.key]))[handle.key]
        assert found.results == handle.results == str(platform.root.parent / "big-disk" / handle.key)
        assert (await self.end(platform, found)).state is JobState.COMPLETE

    async def test_control_variables_of_the_launcher_stay_with_it(
        self, platform: Platform, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PREFECT_API_KEY", "pnu_launcher")
        monkeypatch.setenv("TAO_RESULTS_ROOT", "/somewhere/else")
        monkeypatch.setenv("PLAIN", "kept")
        handle = await self.start(platform, "env", env={"COLOR": "green"})
        await self.end(platform, handle)
        log = (await platform.logs(handle)).text
        assert "PREFECT_API_KEY" not in log
        assert "/somewhere/else" not in log
        assert "TAO_SECRETS_FILE" not in log
        assert "PLAIN=kept\n" in log
        assert "COLOR=green\n" in log

    async def test_a_stopped_job_is_paused_and_can_still_be_cancelled(self, platform: Platform) -> None:
        handle = await self.start(platform, LONG)
        await self.says(platform, handle, "begun")
        ident = client.Ident.parse(handle.native_id)
        assert ident
        client.send(ident, signal.SIGSTOP)

        async def paused() -> bool:
            return (await self.seen(platform, handle)).state is JobState.PAUSED

        assert await until(paused, self.start_seconds)
        seen = await platform.cancel([handle], timeout=self.cancel_seconds)
        assert seen[handle].state is JobState.CANCELED
        assert not self.processes(platform, handle)

    async def test_an_unreadable_kept_end_is_found_out_anew(self, platform: Platform) -> None:
        assert isinstance(platform, ProcessPlatform)
        handle = await self.start(platform, "exit 0")
        await self.end(platform, handle)
        (platform.root / "jobs" / handle.name / "end.json").write_text(json.dumps({"state": "?"}))
        assert (await self.seen(platform, handle)).state is JobState.COMPLETE
