"""What every platform promises, as tests. A driver's test class inherits them and says how its platform is made.

The tests are coroutines: run them with pytest-asyncio in its auto mode.
Commands are plain `sh`, so that they run the same in a process, a batch script and a container.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, suppress
from secrets import token_hex
from typing import TypeVar

import pytest

from prefect_tao.jobs.byname import find_by_name
from prefect_tao.jobs.errors import CancelUnconfirmed, Elsewhere, InvalidInput, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.launching import launch
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import EndedBy, JobState, Observation
from prefect_tao.jobs.verdict import Category

T = TypeVar("T")

SHORT = "echo hello; echo done"
LONG = "echo begun; sleep 300"
FAILING = "echo 'loading data'; echo 'ValueError: num_classes is 3, the data has 4' >&2; exit 3"
# Neither the shell nor its child listens to SIGTERM, and a second child has left the process group and the session.
STUBBORN = "trap '' TERM; setsid sleep 301 & (trap '' TERM; sleep 302) & echo begun; while :; do sleep 0.2; done"
# Each run leaves a file of its own, so that two runs of one job cannot be taken for one.
COUNTED = 'mktemp "$TAO_RESULTS_DIR/run-XXXXXX"'


def new_key() -> str:
    """The key of a launch that no other test has."""
    return token_hex(8)


async def until(ask: Callable[[], Awaitable[T]], seconds: float) -> T:
    """The first true answer; fails when there is none in time."""
    deadline = asyncio.get_running_loop().time() + seconds
    while not (answer := await ask()):
        assert asyncio.get_running_loop().time() < deadline, f"not within {seconds:g} s; the last answer was {answer!r}"
        await asyncio.sleep(0.02)
    return answer


class PlatformContract(ABC):
    """Inherit, name the class Test..., and implement the abstract methods."""

    start_seconds = 30.0
    end_seconds = 60.0
    cancel_seconds = 60.0
    many = 50
    # Where the platform takes several jobs under one name, only their claims tell which of them is the job.
    names_are_unique = True

    # -- what a driver supplies ----------------------------------------------------------------------------------------

    @pytest.fixture
    def platform(self) -> Platform:
        """The platform under test, empty; what is still running there at the end of a test is ended."""
        raise NotImplementedError

    @abstractmethod
    def another(self, platform: Platform) -> Platform:
        """A second object for the same platform, as another process would make it."""

    @abstractmethod
    def written(self, platform: Platform) -> dict[str, bytes]:
        """Every file and object that jobs and driver have left on the platform, by name."""

    @abstractmethod
    def waiting_request(self, platform: Platform) -> JobRequest:
        """A request for a job that the platform takes but cannot start now."""

    @abstractmethod
    def outage(self, platform: Platform) -> AbstractContextManager[None]:
        """A while in which the platform does not answer; jobs go on."""

    @abstractmethod
    def elsewhere(self, platform: Platform) -> AbstractContextManager[Platform]:
        """A driver for another site that shares the results of this one: another engine, cluster or machine."""

    def processes(self, platform: Platform, handle: JobHandle) -> list[str] | None:
        """What of the job runs now, as the machine it runs on shows it; None where the test cannot look there."""
        return None

    def command_lines(self, platform: Platform) -> list[str]:
        """Every command line that other people on the job's machine can read, as far as the test can look there."""
        return []

    def request(self, command: str, **fields: object) -> JobRequest:
        """A request that runs `command`; a driver adds the image and the shape that its platform needs."""
        return JobRequest.build(command=command, **fields)

    # -- shared steps --------------------------------------------------------------------------------------------------

    async def start(
        self,
        platform: Platform,
        command: str,
        *,
        key: str | None = None,
        attempt: int = 1,
        secrets: Mapping[str, str] | None = None,
        **fields: object,
    ) -> JobHandle:
        rendered = platform.render(self.request(command, **fields), key or new_key(), attempt)
        return await platform.submit(rendered, secrets or {})

    async def seen(self, platform: Platform, handle: JobHandle) -> Observation:
        return (await platform.observe([handle]))[handle]

    async def end(self, platform: Platform, handle: JobHandle) -> Observation:
        async def over() -> Observation | None:
            seen = await self.seen(platform, handle)
            return seen if seen.state.terminal else None

        end = await until(over, self.end_seconds)
        assert end
        return end

    async def says(self, platform: Platform, handle: JobHandle, text: str) -> None:
        """Returns when the job has printed `text`."""

        async def said() -> bool:
            return text in (await platform.logs(handle)).text

        await until(said, self.start_seconds)

    async def runs(self, platform: Platform, handle: JobHandle) -> int:
        """How often a COUNTED command has run under this handle's key."""
        entries = await platform.list_path(f"{handle.results}/results_dir")
        return sum(entry.rpartition("/")[2].startswith("run-") for entry in entries)

    # -- rendering -----------------------------------------------------------------------------------------------------

    async def test_rendering_is_pure_and_shows_the_exact_text(self, platform: Platform) -> None:
        before, key, value = self.written(platform), new_key(), f"secret-{token_hex(12)}"
        request = self.request("train -e {config_path}", specs={"train": {"lr": 0.1}}, secrets=["TOKEN"])
        first, second = platform.render(request, key, 1), platform.render(request, key, 1)
        assert first.text == second.text
        assert first.files == second.files
        assert repr(first) == first.text
        assert str(JobName(key, 1)) in first.text
        assert "lr" in first.text
        assert "TOKEN" in first.text
        await platform.probe(request)
        assert self.written(platform) == before
        handle = await platform.submit(first, {"TOKEN": value})
        assert value not in first.text
        assert not any(value.encode() in data for data in first.files.values())
        await platform.cancel([handle], timeout=self.cancel_seconds)

    # -- start to end --------------------------------------------------------------------------------------------------

    async def test_a_job_runs_to_its_end_and_leaves_its_results(self, platform: Platform) -> None:
        handle = await self.start(platform, f"{SHORT}; {COUNTED}; echo kept > $TAO_RESULTS_DIR/model.pth")
        end = await self.end(platform, handle)
        assert (end.state, end.exit_code, end.ended_by) == (JobState.COMPLETE, 0, EndedBy.NONE)
        assert end.started_at
        assert end.ended_at
        assert end.started_at <= end.ended_at
        assert end.evidence
        assert await platform.check_path(handle.results)
        assert await self.runs(platform, handle) == 1
        inside = await platform.list_path(f"{handle.results}/results_dir")
        assert any(entry.endswith("/model.pth") for entry in inside)
        assert "hello\ndone\n" in (await platform.logs(handle)).text
        assert len(await platform.replicas(handle)) >= 1

    async def test_a_failing_job_is_an_error_that_says_why(self, platform: Platform) -> None:
        handle = await self.start(platform, FAILING)
        end = await self.end(platform, handle)
        assert (end.state, end.exit_code) == (JobState.ERROR, 3)
        verdict = await platform.diagnose(handle)
        assert verdict.category is Category.PROGRAM
        assert not verdict.retryable
        assert verdict.exit_code == 3
        assert "num_classes is 3" in verdict.cause
        assert "num_classes is 3" in verdict.log_excerpt
        assert verdict.remedy

    async def test_arguments_reach_the_command_as_they_are(self, platform: Platform) -> None:
        odd = ["two words", "$(echo no)", "'\"`;&|*", "é漢🙂", "-x", ""]
        handle = await self.start(platform, "printf '<%s>\\n'", args={"values": odd})
        assert (await self.end(platform, handle)).state is JobState.COMPLETE
        log = (await platform.logs(handle)).text
        assert "".join(f"<{word}>\n" for word in ["--values", *odd]) in log

    async def test_a_spec_of_five_megabytes_arrives_whole(self, platform: Platform) -> None:
        specs = {"classes": [f"class-{number:06}" for number in range(5 * 1024 * 1024 // 16)]}
        handle = await self.start(platform, "wc -c < {config_path}; grep -c class- {config_path}", specs=specs)
        assert (await self.end(platform, handle)).state is JobState.COMPLETE
        size, lines = re.findall(r"^\d+$", (await platform.logs(handle)).text, re.MULTILINE)
        assert int(size) > 5_000_000
        assert int(lines) >= len(specs["classes"])

    async def test_a_time_limit_ends_the_attempt(self, platform: Platform) -> None:
        handle = await self.start(platform, LONG, resources={"time_limit": 1})
        end = await self.end(platform, handle)
        assert (end.state, end.ended_by) == (JobState.ERROR, EndedBy.TIME_LIMIT)
        assert (await platform.diagnose(handle)).category is Category.TIME_LIMIT
        assert not self.processes(platform, handle)

    async def test_what_a_finished_command_left_in_the_background_ends_with_it(self, platform: Platform) -> None:
        handle = await self.start(platform, "sleep 300 & sleep 301 & echo done")
        assert (await self.end(platform, handle)).state is JobState.COMPLETE
        assert not self.processes(platform, handle)

    # -- exactly once --------------------------------------------------------------------------------------------------

    async def test_a_name_is_run_once_however_often_it_is_submitted(self, platform: Platform) -> None:
        rendered = platform.render(self.request(f"{COUNTED}; sleep 0.3"), new_key(), 1)
        others = [self.another(platform) for _ in range(2)]
        submits = [one.submit(rendered, {}) for one in (platform, platform, *others, others[0])]
        handles = await asyncio.gather(*submits)
        assert len(set(handles)) == 1
        if self.names_are_unique:
            assert len({handle.native_id for handle in handles}) == 1
        await platform.submit(rendered, {})
        assert (await self.end(platform, handles[0])).state is JobState.COMPLETE
        assert await platform.submit(rendered, {}) == handles[0]
        assert await self.runs(platform, handles[0]) == 1
        found = [(await one.find([rendered.key]))[rendered.key] for one in (platform, *others)]
        assert [[handle.attempt for handle in each] for each in found] == [[1]] * 3
        assert len({handle.native_id for (handle,) in found}) == 1

    async def test_find_knows_every_attempt_and_nothing_else(self, platform: Platform) -> None:
        key, unknown = new_key(), new_key()
        first = await self.start(platform, FAILING, key=key, attempt=1)
        await self.end(platform, first)
        second = await self.start(platform, LONG, key=key, attempt=2)
        for one in (platform, self.another(platform)):
            found = await one.find([key, unknown])
            assert found == {key: [first, second], unknown: []}
            assert [handle.native_id for handle in found[key]] == [first.native_id, second.native_id]

    async def test_jobs_are_listed_by_label_newest_first(self, platform: Platform) -> None:
        run = token_hex(8)
        labels = [{"run": run, "step": "train"}, {"run": run, "step": "export"}, {"run": token_hex(8)}]
        handles = [await self.start(platform, SHORT, labels=each) for each in labels]
        assert await platform.jobs({"run": run}) == [handles[1], handles[0]]
        assert await platform.jobs({"run": run, "step": "train"}) == [handles[0]]
        assert await platform.jobs({"run": token_hex(8)}) == []
        assert set(handles) <= set(await platform.jobs())

    async def test_a_handle_attaches_from_anywhere(self, platform: Platform) -> None:
        handle = await self.start(platform, LONG, labels={"run": "abc"}, env={"COLOR": "green"})
        request = self.request(LONG, labels={"run": "other"}, env={"COLOR": "green"})
        assert handle.digest == request.digest
        assert handle.labels == {"run": "abc"}
        read = JobHandle.model_validate_json(handle.model_dump_json())
        assert read.model_dump() == handle.model_dump()
        there = self.another(platform)
        await self.says(there, read, "begun")
        assert (await self.seen(there, read)).state is JobState.RUNNING
        assert (await there.cancel([read], timeout=self.cancel_seconds))[read].state is JobState.CANCELED
        assert (await self.seen(platform, handle)).state is JobState.CANCELED

    # -- seeing --------------------------------------------------------------------------------------------------------

    async def test_one_call_sees_many_jobs(self, platform: Platform) -> None:
        commands = ["exit 0", "exit 4"]
        rendered = [platform.render(self.request(commands[index % 2]), new_key(), 1) for index in range(self.many)]
        handles = await platform.submit_many((each, {}) for each in rendered)
        await asyncio.gather(*(self.end(platform, handle) for handle in handles[-2:]))

        async def all_over() -> dict[JobHandle, Observation] | None:
            seen = await platform.observe(handles)
            return seen if all(one.state.terminal for one in seen.values()) else None

        seen = await until(all_over, self.end_seconds)
        assert seen
        assert [seen[handle].exit_code for handle in handles] == [0, 4] * (self.many // 2)

    async def test_silence_is_not_evidence(self, platform: Platform) -> None:
        running, done = await asyncio.gather(self.start(platform, LONG), self.start(platform, SHORT))
        await asyncio.gather(self.end(platform, done), self.says(platform, running, "begun"))
        with self.outage(platform):
            there = self.another(platform)
            seen: dict[JobHandle, Observation] = {}
            with suppress(Unreachable):
                seen = await there.observe([running, done])
            unknown = Observation(state=JobState.UNREACHABLE)
            assert seen.get(running, unknown).state is JobState.UNREACHABLE
            assert seen.get(done, unknown).state in (JobState.UNREACHABLE, JobState.COMPLETE)
            for question in (there.find([running.key]), there.jobs(), there.diagnose(done)):
                with pytest.raises(Unreachable):
                    await question
        assert (await self.seen(platform, running)).state is JobState.RUNNING
        assert (await self.seen(platform, done)).state is JobState.COMPLETE

    async def test_an_end_never_changes(self, platform: Platform) -> None:
        commands = (SHORT, FAILING, LONG)
        handles = [await self.start(platform, command) for command in commands]
        await platform.cancel(handles[2:], timeout=self.cancel_seconds)
        ends = [await self.end(platform, handle) for handle in handles]
        assert [end.state for end in ends] == [JobState.COMPLETE, JobState.ERROR, JobState.CANCELED]
        await platform.cancel(handles, timeout=self.cancel_seconds)
        for handle, command in zip(handles, commands, strict=True):
            await platform.submit(platform.render(self.request(command), handle.key, 1), {})
        for one in (platform, self.another(platform)):
            again = await one.observe(handles)
            for handle, end in zip(handles, ends, strict=True):
                assert again[handle].same_as(end)

    # -- other sites ---------------------------------------------------------------------------------------------------

    async def test_the_site_stays_the_same_and_handles_name_it(self, platform: Platform) -> None:
        handle = await self.start(platform, SHORT)
        await self.end(platform, handle)
        another = self.another(platform)
        assert await platform.site() == await another.site() == handle.site != ""
        for one in ((await another.find([handle.key]))[handle.key], await another.jobs()):
            assert [found.site for found in one if found == handle] == [handle.site]
        with self.elsewhere(platform) as other:
            assert await other.site() != handle.site

    async def test_a_job_of_another_site_is_left_alone_and_is_no_evidence(self, platform: Platform) -> None:
        request = self.request(LONG)
        job = (await launch(platform, request, new_key(), {})).handle
        await self.says(platform, job, "begun")
        with self.elsewhere(platform) as other:
            (found,) = (await other.find([job.key]))[job.key]
            assert (found.name, found.site, found.target) == (job.name, job.site, job.target)
            assert await other.observe([found]) == {}
            assert job.name not in [one.name for one in await other.jobs()]
            with pytest.raises(CancelUnconfirmed, match=re.escape(job.site)):
                await other.cancel([found], timeout=self.cancel_seconds)
            with pytest.raises(Elsewhere, match=re.escape(job.site)):
                await launch(other, request, job.key, {})
            with pytest.raises(Elsewhere, match=re.escape(job.target)):
                await find_by_name(other, job.name)
        assert (await self.seen(platform, job)).state is JobState.RUNNING

    async def test_a_job_whose_site_is_gone_can_be_let_go_and_that_is_recorded(self, platform: Platform) -> None:
        job = (await launch(platform, self.request(LONG), new_key(), {})).handle
        await self.says(platform, job, "begun")
        with self.elsewhere(platform) as other:
            again = await launch(other, self.request(LONG, release_elsewhere=True), job.key, {})
            (warning,) = again.findings
            assert (again.handle.attempt, again.adopted, again.handle.site) == (2, False, await other.site())
            assert job.site in warning.message
            assert job.site in again.handle.labels["released"]
            kept = await launch(other, self.request(LONG), job.key, {})
            assert (kept.handle, kept.adopted) == (again.handle, True)
            await other.cancel([again.handle], timeout=self.cancel_seconds)
        assert (await self.seen(platform, job)).state is JobState.RUNNING

    # -- logs ----------------------------------------------------------------------------------------------------------

    async def test_reading_on_from_a_cursor_loses_and_doubles_nothing(self, platform: Platform) -> None:
        # Every line is written in two pieces, parted in the middle of a character.
        line = "printf \"line $i \\360\\237\"; sleep 0.01; printf '\\231\\202\\n'"
        handle = await self.start(platform, f"i=0; while [ $i -lt 60 ]; do {line}; i=$((i+1)); done")
        text, cursor, over = "", None, False
        while True:
            chunk = await platform.logs(handle, since=cursor)
            text, cursor = text + chunk.text, chunk.cursor
            if over and not chunk.text:
                break
            over = (await self.seen(platform, handle)).state.terminal
        lines = [found for found in text.splitlines() if found.startswith("line")]
        assert lines == [f"line {number} 🙂" for number in range(60)]

    async def test_the_tail_is_the_last_lines_and_its_cursor_goes_on(self, platform: Platform) -> None:
        command = "seq 1 5000; printf 'half \\360\\237'; sleep 0.6; printf '\\231\\202\\n'"
        handle = await self.start(platform, command)
        await self.says(platform, handle, "half")
        tail = await platform.logs(handle, tail=3)
        assert tail.text == "4999\n5000\nhalf "
        await self.end(platform, handle)
        assert (await platform.logs(handle, since=tail.cursor)).text.startswith("🙂\n")
        assert (await platform.logs(handle, tail=0)).text == ""

    async def test_following_a_log_gives_all_of_it_and_ends(self, platform: Platform) -> None:
        handle = await self.start(platform, "for i in 1 2 3; do echo line $i; sleep 0.1; done; seq 1 300000")

        async def whole(stream: AsyncIterator[str]) -> str:
            return "".join([text async for text in stream])

        text = await asyncio.wait_for(whole(platform.follow(handle)), self.end_seconds)
        assert "line 1\nline 2\nline 3\n1\n2\n" in text
        assert text.count("\n") >= 300003
        assert "\n300000\n" in text

    # -- cancel --------------------------------------------------------------------------------------------------------

    async def test_cancel_ends_jobs_in_every_state_and_verifies_it(self, platform: Platform) -> None:
        finished, failed, running, stubborn = await asyncio.gather(
            *(self.start(platform, command) for command in (SHORT, FAILING, f"setsid sleep 303 & {LONG}", STUBBORN))
        )
        waiting = await platform.submit(platform.render(self.waiting_request(platform), new_key(), 1), {})
        await asyncio.gather(self.end(platform, finished), self.end(platform, failed))
        await asyncio.gather(self.says(platform, running, "begun"), self.says(platform, stubborn, "begun"))
        assert (await self.seen(platform, waiting)).state is JobState.PENDING
        here = self.processes(platform, stubborn)
        assert here is None or len(here) >= 4
        handles = [finished, failed, running, stubborn, waiting]
        seen = await platform.cancel(handles, timeout=self.cancel_seconds)
        assert [seen[handle].state for handle in handles] == [
            JobState.COMPLETE,
            JobState.ERROR,
            JobState.CANCELED,
            JobState.CANCELED,
            JobState.CANCELED,
        ]
        for handle in handles:
            assert not self.processes(platform, handle)
        for handle in handles[2:]:
            assert (await platform.diagnose(handle)).category is Category.CANCELED

    async def test_cancel_goes_on_when_replies_are_lost(self, platform: Platform) -> None:
        handle = await self.start(platform, LONG)
        await self.says(platform, handle, "begun")
        with self.outage(platform):
            cancelling = asyncio.create_task(platform.cancel([handle], timeout=self.cancel_seconds + 30))
            await asyncio.sleep(1.0)
            assert not cancelling.done()
        assert (await cancelling)[handle].state is JobState.CANCELED
        assert not self.processes(platform, handle)

    async def test_cancel_that_never_got_an_answer_says_so(self, platform: Platform) -> None:
        handle = await self.start(platform, LONG)
        await self.says(platform, handle, "begun")
        with self.outage(platform), pytest.raises(Unreachable):
            await self.another(platform).cancel([handle], timeout=1.0)
        assert (await self.seen(platform, handle)).state in (JobState.PENDING, JobState.RUNNING)

    # -- secrets -------------------------------------------------------------------------------------------------------

    async def test_secrets_reach_the_command_and_nothing_else(self, platform: Platform) -> None:
        value = f"secret-{token_hex(16)}"
        told = hashlib.sha256(value.encode()).hexdigest()
        rendered = platform.render(
            self.request('printf %s "$TOKEN" | sha256sum; sleep 300', secrets=["TOKEN"]), new_key(), 1
        )
        handle = await platform.submit(rendered, {"TOKEN": value})
        await self.says(platform, handle, told)
        assert value not in repr(rendered)
        assert not any(value in line for line in self.command_lines(platform))
        assert value not in handle.model_dump_json()
        await platform.cancel([handle], timeout=self.cancel_seconds)
        assert [name for name, data in self.written(platform).items() if value.encode() in data] == []

    async def test_the_secrets_of_a_job_that_never_started_are_removed(self, platform: Platform) -> None:
        value = f"secret-{token_hex(16)}"
        rendered = platform.render(self.waiting_request(platform), new_key(), 1)
        handle = await platform.submit(rendered, {"TOKEN": value})
        await platform.submit(rendered, {"TOKEN": value})
        await platform.cancel([handle], timeout=self.cancel_seconds)
        assert [name for name, data in self.written(platform).items() if value.encode() in data] == []

    # -- paths ---------------------------------------------------------------------------------------------------------

    async def test_a_path_that_is_not_there_is_said_to_be_missing(self, platform: Platform) -> None:
        assert not await platform.check_path("/no/such/place")
        with pytest.raises(InvalidInput):
            await platform.list_path("/no/such/place")


class SharedResultsContract(PlatformContract):
    """For platforms whose launchers write where several sites keep their results: a launch is known there at once.

    Elsewhere only jobs reach that storage, and one that starts and finds its key taken runs nothing.
    """

    async def test_a_job_that_has_not_begun_keeps_its_key_from_other_sites_too(self, platform: Platform) -> None:
        request = self.waiting_request(platform)
        job = (await launch(platform, request, new_key(), {})).handle
        assert (await self.seen(platform, job)).state is JobState.PENDING
        with self.elsewhere(platform) as other:
            with pytest.raises(Elsewhere, match=re.escape(job.site)):
                await launch(other, self.request(SHORT), job.key, {})
            with pytest.raises(Elsewhere, match=re.escape(job.site)):
                await other.submit(other.render(self.request(SHORT), job.key, 1), {})
        assert [one.attempt for one in (await platform.find([job.key]))[job.key]] == [1]
