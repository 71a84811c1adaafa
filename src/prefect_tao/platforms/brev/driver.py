"""The Brev driver: containers on rented machines, through the Docker driver over ssh.

A block names one instance of the person's own, or every job gets one that is made for it. That one is deleted when its
job is over and what it left is in the bucket, or in a folder here; by a later process, where the one that launched it
has died.
"""

from __future__ import annotations

import asyncio
import io
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from prefect_tao.jobs.errors import InvalidInput, TaoError, Unreachable
from prefect_tao.jobs.finding import Finding
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.naming import JobName
from prefect_tao.jobs.platform import LogChunk, Rendered
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState, Observation
from prefect_tao.jobs.verdict import Evidence, Verdict, classify
from prefect_tao.jobs.waiting import logger, saying
from prefect_tao.platforms import site_notes, stamped_logs
from prefect_tao.platforms.base import Denials, Driver
from prefect_tao.platforms.brev import carrying, instances, observe, probes, render
from prefect_tao.platforms.brev.client import TOKENS, BrevCommand, RentedMachine
from prefect_tao.platforms.brev.instances import InstanceKeeper
from prefect_tao.platforms.brev.rental_notes import RentalNotes, RentedEnd
from prefect_tao.platforms.brev.settings import BrevSettings
from prefect_tao.platforms.brev.submit import BrevLauncher
from prefect_tao.platforms.container_jobs import wanted_gpus
from prefect_tao.platforms.docker.client import log_entries
from prefect_tao.platforms.docker.driver import LOG_LINES, DockerPlatform
from prefect_tao.platforms.docker.render import results_of
from prefect_tao.platforms.files import BucketFiles, Files, LocalFiles
from prefect_tao.platforms.markers import left_by
from prefect_tao.runner.inside.schemes import is_local
from prefect_tao.storage.known_schemes import is_seen

POLL = (5.0, 60.0)
# How long an instance may be left out of the list before it is gone: a further attempt costs as much again.
GONE_SECONDS = 120.0
# How long a list of instances holds for questions about one job.
FRESH_SECONDS = 2.0
# How long aliases are left as they are at first, and at most, while an instance is not reached by them.
REFRESH_SECONDS = (1.0, 30.0)


class BrevPlatform(Driver):
    """Jobs on instances. Their truth is on the instance, and in what is kept of it once that is deleted."""

    def __init__(self, target: str, settings: BrevSettings) -> None:
        super().__init__(target)
        render.check(settings)
        self.options = settings
        self.poll_seconds = settings.pauses(POLL)
        self.cancel_pause = min(self.poll_seconds[0], 0.5)
        self.command = BrevCommand(settings)
        self.keeper = InstanceKeeper(self.command, settings, pause=min(self.poll_seconds[0], 5.0))
        self.notes = RentalNotes(LocalFiles())
        self.launcher = BrevLauncher(self.keeper, self.notes, self._open)
        self._credentials: dict[str, str] = {}
        self._bucket = BucketFiles()
        self._dockers: dict[str, DockerPlatform] = {}
        self._refreshed: dict[str, tuple[float, float]] = {}
        self._has_aliases = False
        self._listed: tuple[float, dict[str, RentedMachine]] = (0.0, {})
        self._denials = Denials()
        self.take_credentials({})

    def take_credentials(self, credentials: Mapping[str, str]) -> None:
        """The token of Brev, logins for registries, and the keys of storage. They stay in memory."""
        self._credentials = dict(credentials)
        self.command.token = next((credentials[name] for name in TOKENS if credentials.get(name)), "")
        self._bucket = BucketFiles.named_by(self.options, credentials)
        if not render.is_carried(self.options):
            self.notes.files = self._bucket
        for docker in self._dockers.values():
            docker.take_credentials(credentials)

    # -- instances -----------------------------------------------------------------------------------------------------

    async def machines(self, age: float = 0.0) -> dict[str, RentedMachine]:
        """All instances that the login may see, by name. Raises Unreachable, MissingDependency."""
        at, known = self._listed
        if time.monotonic() - at > age:
            known = await self.in_thread(self.command.instances)
            self._listed = (time.monotonic(), known)
        return known

    def instance_of(self, handle: JobHandle) -> str:
        """The name of the instance that a job runs on."""
        return self.options.instance or instances.name_of(JobName(handle.key, handle.attempt), self.options)

    async def _open(self, name: str) -> DockerPlatform:
        """The Docker driver for an instance; ssh knows it by an alias that the brev command has written."""
        if not self._has_aliases or not self.command.knows(name):
            try:
                await self._refresh(name)  # those of an earlier process may lead to where an instance was then
            except Unreachable:  # one machine that boots, of anybody there, is enough for that
                if not self.command.knows(name):
                    raise
            self._has_aliases = True
        if name not in self._dockers:
            folder = self.command.destination(name).folder
            settings = render.docker_settings(self.options, name, folder)
            self._dockers[name] = DockerPlatform(self.target, settings, await self.site())
            self._dockers[name].take_credentials(self._credentials)
        return self._dockers[name]

    async def _refresh(self, name: str) -> None:
        """Write the aliases anew, ever more seldom: an instance has its address a while after it is said to run."""
        first, most = REFRESH_SECONDS
        due, pause = self._refreshed.get(name, (0.0, first))
        if time.monotonic() >= due:
            self._refreshed[name] = (time.monotonic() + pause, min(2 * pause, most))
            await self.in_thread(self.command.refresh)

    async def _running(self, handle: JobHandle) -> DockerPlatform | None:
        """The engine of a job's instance, where that runs."""
        name = self.instance_of(handle)
        machine = (await self.machines(FRESH_SECONDS)).get(name)
        return await self._open(name) if machine and machine.runs else None

    async def list_instances(self) -> list[dict[str, Any]]:
        """All that the login may see, and which of them were made for jobs of ours."""
        machines = await self.machines()
        prices = {one.type: one.price for one in await self.in_thread(self.command.offers)}
        rows = []
        for one in machines.values():
            job = instances.job_of(one.name, self.options)
            facts = {"name": one.name, "id": one.id, "status": one.status, "type": one.type, "gpu": one.gpu}
            rows.append({**facts, "price_per_hour": prices.get(one.type), "job": str(job) if job else None})
        return rows

    async def gpu_hour_price(self, request: JobRequest) -> float | None:
        """The price of the instance that the job would get, shared by its GPUs; None where Brev names none."""
        gpus = wanted_gpus(request, render.docker_settings(self.options, "none", None))
        offers = await self.in_thread(self.command.offers)
        if self.options.instance:
            own = (await self.machines(FRESH_SECONDS)).get(self.options.instance)
            types = [one for one in offers if own and one.type == own.type]
        else:
            types = instances.suitable(offers, self.options, gpus)
        if not types or not types[0].price or not gpus:
            return None
        return types[0].price / (gpus if gpus > 0 else max(1, types[0].gpu_count))

    async def delete_instance(self, instance_id: str) -> bool:
        """Delete one that was made for a job of ours, by name or id; true when it is gone. Raises InvalidInput."""
        found = [one for one in (await self.machines()).values() if instance_id in (one.name, one.id)]
        if not found:
            return True
        if instances.job_of(found[0].name, self.options) is None:
            raise InvalidInput(
                f"{found[0].name} was not made for a job of {instances.owner(self.options)}",
                f"if it is yours: brev delete {found[0].name}",
            )
        await self.keeper.gone(found[0].name)
        return True

    # -- launch --------------------------------------------------------------------------------------------------------

    def render(self, request: JobRequest, key: str, attempt: int) -> Rendered:
        """What is sent, and to which instance. Raises InvalidInput for what no container can be."""
        return render.render(request, key, attempt, self.options, self.target)

    async def submit(self, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        """Get the instance ready and start the container, or adopt the one that has the name."""
        if self.options.instance:
            return await self.launcher.on_own(self.options.instance, rendered, secrets)
        handle = self._handle(rendered.key, rendered.attempt, rendered.request.digest)
        return await self.launcher.on_rented(self.instance_of(handle), handle, rendered, secrets)

    def _handle(self, key: str, attempt: int, digest: str = "") -> JobHandle:
        """A job of ours as its name alone tells it."""
        results = render.results_here(key, self.options)
        return JobHandle(target=self.target, key=key, attempt=attempt, site=self._site, results=results, digest=digest)

    def _there(self, handle: JobHandle) -> JobHandle:
        """The job as its engine knows it: its results may be at another place there."""
        if not render.is_carried(self.options):
            return handle
        settings = render.docker_settings(self.options, "none", None)
        return handle.model_copy(update={"results": results_of(handle.key, settings)})

    def _has_notes(self, handle: JobHandle) -> bool:
        """Whether something is kept of the job where it can be looked at without its instance."""
        return is_seen(handle.results) or not self.options.instance

    # -- look ----------------------------------------------------------------------------------------------------------

    async def look(self, handles: Sequence[JobHandle]) -> dict[JobHandle, Observation]:
        """One list of all instances, and one of all containers on each that runs. Raises Unreachable."""
        machines = await self.machines()
        by_name: dict[str, list[JobHandle]] = {}
        for handle in handles:
            by_name.setdefault(self.instance_of(handle), []).append(handle)
        looks = (self._look_on(name, machines.get(name), own) for name, own in by_name.items())
        return observe.one_silence(await asyncio.gather(*looks, return_exceptions=True))

    async def _look_on(
        self, name: str, machine: RentedMachine | None, handles: list[JobHandle]
    ) -> dict[JobHandle, Observation]:
        if machine and machine.runs:
            try:
                seen = await (await self._open(name)).look([self._there(handle) for handle in handles])
            except Unreachable:
                if not (kept := await self._called_off(handles)):
                    await self._refresh(name)
                    raise
                return kept
            self._refreshed.pop(name, None)
            return {
                handle: one
                for handle in handles
                if (one := await self.in_thread(self._completed, handle, seen.get(handle)))
            }
        found = {handle: await self.in_thread(self._without, handle, machine) for handle in handles}
        return {handle: one for handle, one in found.items() if one}

    async def _called_off(self, handles: list[JobHandle]) -> dict[JobHandle, Observation]:
        """The ends that are written down of jobs whose instance runs and cannot be asked."""
        if self.options.instance:
            return {}
        kept = {handle: await self.in_thread(self.notes.end, handle) for handle in handles}
        return {handle: one.end for handle, one in kept.items() if one}

    def _completed(self, handle: JobHandle, seen: Observation | None) -> Observation | None:
        """What the engine says, with what the instance costs; a rented one without the container is not started."""
        if self.options.instance:
            return seen
        is_missing = seen is None or (seen.native_state == "removed" and not seen.ended_at)
        if is_missing and not handle.native_id:
            kept = self.notes.end(handle)
            return kept.end if kept else observe.priced(observe.unstarted(), self.notes.rental(handle))
        return observe.priced(seen, self._rental(handle)) if seen else None

    def _rental(self, handle: JobHandle) -> Any:
        try:
            return self.notes.rental(handle)
        except TaoError:  # where a job stands is known without it
            return None

    def _without(self, handle: JobHandle, machine: RentedMachine | None) -> Observation | None:
        denied = self._denials.seconds(handle, is_listed=machine is not None)
        if not self._has_notes(handle):
            return observe.without_container(machine, None, denied, GONE_SECONDS)
        if kept := self.notes.end(handle):
            return kept.end
        seen = observe.without_container(machine, self.notes.record(handle), denied, GONE_SECONDS)
        return observe.priced(seen, self.notes.rental(handle)) if seen and machine else seen

    async def logs(self, handle: JobHandle, *, tail: int | None = None, since: str | None = None) -> LogChunk:
        """The container's log, and what was kept of it where its instance is deleted. Raises Unreachable."""
        if docker := await self._running(handle):
            return await docker.logs(self._there(handle), tail=tail, since=since)
        cursor = stamped_logs.Cursor.parse(since)
        if not self._has_notes(handle):
            return LogChunk("", str(cursor))
        entries = log_entries(_KeptLog(await self.in_thread(self.notes.log, handle)))  # type: ignore[arg-type]
        if tail is not None:
            return stamped_logs.ending(list(entries), tail)
        return stamped_logs.after((one for one in entries if one.moment >= cursor.anchor), cursor)

    async def diagnose(self, handle: JobHandle) -> Verdict:
        """Why the job ended, from its instance, or from what was kept of it. Raises Unreachable."""
        if (docker := await self._running(handle)) and handle.native_id:
            return await docker.diagnose(self._there(handle))
        seen = await self.seen(handle)
        kept = await self.in_thread(self.notes.end, handle) if self._has_notes(handle) else None
        if kept and kept.verdict:
            return kept.verdict
        record = (await self.in_thread(self.notes.record, handle) if self._has_notes(handle) else None) or {}
        return classify(
            Evidence(
                exit_code=seen.exit_code,
                ended_by=seen.ended_by,
                native_state=seen.native_state,
                reason=seen.reason,
                phase=str(record.get("phase") or ""),
                runner_error=str(record.get("error") or ""),
                log_tail=(await self.logs(handle, tail=LOG_LINES)).text,
            )
        )

    # -- end -----------------------------------------------------------------------------------------------------------

    async def ask_to_end(self, handles: Sequence[JobHandle]) -> None:
        """Ask each container; a job without one is called off, so that its launcher starts none. Raises Unreachable."""
        for handle in handles:
            if not await self._ask_container(handle) and not self.options.instance:
                await self.in_thread(self.notes.keep, RentedEnd(handle=handle, end=observe.called_off()))

    async def _ask_container(self, handle: JobHandle) -> bool:
        """Ask the job's container to end; false where there is none, or none was started on a machine that boots."""
        try:
            docker = await self._running(handle)
            found = (await docker.find([handle.key]))[handle.key] if docker else []
        except Unreachable:
            if self.options.instance or (await self.in_thread(self.launcher.left, handle)) is not None:
                raise
            return False
        own = [one for one in found if one == handle and one.native_id]
        if docker and own:
            await docker.ask_to_end(own)
        return bool(own)

    async def insist(
        self, left: Sequence[JobHandle], seen: Mapping[JobHandle, Observation], spent: float, timeout: float
    ) -> None:
        """Kill containers whose time is up. Raises Unreachable."""
        for handle in left:
            if docker := await self._running(handle):
                await docker.insist([self._there(handle)], seen, spent, timeout)

    async def cancel(self, handles: Sequence[JobHandle], timeout: float = 60.0) -> dict[JobHandle, Observation]:
        """As all drivers, and instances that were made for the jobs are given back."""
        seen = await super().cancel(handles, timeout)
        await self.release(handles)
        return seen

    async def release(self, handles: Sequence[JobHandle]) -> None:
        """Delete the instances of jobs that are over, once what they left is kept. Raises Unreachable."""
        if not self.options.instance:
            machines = await self.machines()
            there = [handle for handle in handles if self.instance_of(handle) in machines]
            await asyncio.gather(*(self._release(handle) for handle in there))

    async def _release(self, handle: JobHandle) -> None:
        end = await self.seen(handle)
        if not end.state.terminal:
            return
        verdict = await self.diagnose(handle) if end.state is JobState.ERROR else None
        docker = await self._running(handle)
        if render.is_carried(self.options):
            await self._carry(docker, handle)
        log = await docker.in_thread(_raw_log, docker, handle) if docker and handle.native_id else None
        await self.in_thread(self.notes.keep, RentedEnd(handle=handle, end=end, verdict=verdict), log)
        name = self.instance_of(handle)
        await self.keeper.gone(name)
        self._listed = (0.0, {})
        if gone := self._dockers.pop(name, None):
            gone.engine.abandon(f"the instance {name} is deleted")
        logger.info("the instance %s is deleted", name)

    async def _carry(self, docker: DockerPlatform | None, handle: JobHandle) -> None:
        """Copy what the job left on its instance to this machine. Raises Unreachable, and the instance is kept."""
        began = handle if handle.native_id else await self.in_thread(self.launcher.left, handle)
        if began is None or not began.native_id:
            return
        name, rental = self.instance_of(handle), self._rental(handle)
        try:
            if docker is None or docker.engine.ssh is None:
                raise Unreachable("it takes no login", "look at it with: brev ls")
            async with saying(lambda: f"the results of {handle.name} are copied from {name} to {handle.results}"):
                there = self._there(handle).results
                await docker.in_thread(carrying.carry, docker.engine.ssh, there, Path(handle.results))
        except Unreachable as error:
            costs = f" and costs ${rental.price:.2f} an hour" if rental and rental.price else ""
            raise Unreachable(
                f"the results of {handle.name} are not all here yet, so {name} is kept{costs}: {error.cause}",
                f"prefect-tao brev sweep copies the rest and deletes it; to let go of them: brev delete {name}",
            ) from error

    # -- find ----------------------------------------------------------------------------------------------------------

    @property
    def _site(self) -> str:
        organization = self.command.organization
        return f"Brev{f' organization {organization}' if organization else ''}, owner {instances.owner(self.options)}"

    async def site(self) -> str:
        """The organization, and whose jobs these are there: instances come and go."""
        return self._site

    async def find(self, keys: Sequence[str]) -> dict[str, list[JobHandle]]:
        """Attempts by instance, by container, and by what was kept in the bucket. Raises Unreachable."""
        if self.options.instance:
            return await (await self._open_own()).find(keys)
        found: dict[str, dict[int, JobHandle]] = {key: {} for key in keys}
        for handle in await self.rented():
            if handle.key in found:
                found[handle.key][handle.attempt] = handle
        for key, handle in await self.in_thread(self._recorded, [self._handle(key, 1) for key in keys]):
            found[key].setdefault(handle.attempt, handle)
        return {key: [attempts[number] for number in sorted(attempts)] for key, attempts in found.items()}

    def _recorded(self, keys: list[JobHandle]) -> list[tuple[str, JobHandle]]:
        found = []
        for one in keys:
            for attempt in self.notes.attempts(one):
                found.append((one.key, self._left(one.model_copy(update={"attempt": attempt}))))
        return found + [(far.key, far) for far in site_notes.others(self.notes.files, keys)]

    def _left(self, handle: JobHandle) -> JobHandle:
        """A job of which only the bucket tells; it may be another owner's."""
        if kept := self.notes.end(handle):
            return kept.handle
        bare = handle.model_copy(update={"site": ""})
        record = self.notes.record(bare)
        rental = self.notes.rental(handle) if record is None else None
        if rental and instances.job_of(rental.instance, self.options):
            return handle.model_copy(update={"native_id": rental.native_id})
        return left_by(bare, record, self._site)

    async def _open_own(self) -> DockerPlatform:
        """The engine of the person's own instance. Raises Unreachable, InvalidInput where there is none."""
        name = str(self.options.instance)
        machine = (await self.machines(FRESH_SECONDS)).get(name)
        if machine is None:
            raise InvalidInput(f"there is no instance {name}", "brev ls lists yours; correct the block")
        if not machine.runs:
            raise Unreachable(f"the instance {name} is {machine.status}", f"start it with: brev start {name}")
        return await self._open(name)

    async def rented(self, labels: Mapping[str, str] | None = None) -> list[JobHandle]:
        """Every job that has an instance, newest first; those of which only the instance is there come last."""
        machines = [one for one in (await self.machines()).values() if instances.job_of(one.name, self.options)]
        found = await asyncio.gather(*(self._jobs_on(one) for one in machines))
        dated = sorted((pair for pairs in found for pair in pairs), key=lambda pair: pair[0], reverse=True)
        wanted = labels or {}
        return [handle for _, handle in dated if wanted.items() <= handle.labels.items()]

    async def _jobs_on(self, machine: RentedMachine) -> list[tuple[int, JobHandle]]:
        """The job of an instance, with when its container was made; an instance costs money with or without one."""
        job = instances.job_of(machine.name, self.options)
        assert job is not None  # noqa: S101 - only those of ours are asked about
        if machine.runs:
            try:
                docker = await self._open(machine.name)
                listed = await docker.in_thread(docker.observer.listed)
                results = {"results": self._handle(*job).results}
                found = ((one.created, docker.observer.handle(one)) for one in listed)
                made = [(at, handle.model_copy(update=results)) for at, handle in found if handle]
                if own := [pair for pair in made if (pair[1].key, pair[1].attempt) == job]:
                    return own
            except Unreachable as error:
                logger.debug("%s: %s", machine.name, error.cause)
        kept = await self.in_thread(self._kept_handle, self._handle(*job))
        return [(0, kept)]

    def _kept_handle(self, handle: JobHandle) -> JobHandle:
        kept = self.notes.end(handle)
        return kept.handle if kept else handle

    async def jobs(self, labels: Mapping[str, str] | None = None) -> list[JobHandle]:
        """All jobs whose instances are there, newest first. Raises Unreachable."""
        if self.options.instance:
            return await (await self._open_own()).jobs(labels)
        return await self.rented(labels)

    async def request_of(self, handle: JobHandle) -> JobRequest | None:
        """What the job was asked to do; it stands in the container."""
        docker = await self._running(handle)
        return await docker.request_of(handle) if docker else None

    # -- paths and probes ----------------------------------------------------------------------------------------------

    def reach(self, uri: str) -> tuple[Files, str]:
        """Storage, and results that were copied to this machine. Raises InvalidInput, Unreachable."""
        if is_seen(uri) or self._key_of(uri):
            return (self._bucket if is_seen(uri) else self.notes.files), uri
        raise InvalidInput(f"{uri} is not on an instance that is made for a job", "give an s3:// location")

    def _key_of(self, uri: str) -> str:
        """The job whose results a path is below, where results are copied here; empty for other paths."""
        root = render.results_here("", self.options)
        below = uri.removeprefix(root) if render.is_carried(self.options) and uri.startswith(root) else ""
        return below.partition("/")[0]

    async def _holder(self, uri: str) -> tuple[DockerPlatform, str, str] | None:
        """The engine on whose machine a path is, with the beginning of the path here and there."""
        if is_seen(uri):
            return None
        if self.options.instance:
            return await self._open_own(), "", ""
        key = self._key_of(uri)
        for one in (await self.machines(FRESH_SECONDS)).values() if key else ():
            job = instances.job_of(one.name, self.options)
            if job and job.key == key and one.runs:
                handle = self._handle(*job)
                return await self._open(one.name), handle.results, self._there(handle).results
        return None

    async def check_path(self, uri: str) -> bool:
        """As all drivers; a new instance has no data. Raises InvalidInput, Unreachable."""
        if held := await self._holder(uri):
            docker, here, there = held
            return await docker.check_path(there + uri.removeprefix(here))
        return False if is_local(uri) and not self._key_of(uri) else await super().check_path(uri)

    async def list_path(self, uri: str) -> list[str]:
        """As all drivers. Raises InvalidInput, Unreachable."""
        if held := await self._holder(uri):
            docker, here, there = held
            found = await docker.list_path(there + uri.removeprefix(here))
            return [here + path.removeprefix(there) for path in found]
        return await super().list_path(uri)

    async def within(self, folder: str, paths: Sequence[str]) -> list[str]:
        """Those of `paths` that are below `folder` wherever links lead. Raises InvalidInput, Unreachable."""
        if held := await self._holder(folder):
            docker, here, there = held
            asked = [there + path.removeprefix(here) for path in paths]
            found = await docker.within(there + folder.removeprefix(here), asked)
            return [here + path.removeprefix(there) for path in found]
        return await super().within(folder, paths)

    async def read_path(self, uri: str, limit: int) -> bytes:
        """As all drivers. Raises InvalidInput, Unreachable."""
        if held := await self._holder(uri):
            docker, here, there = held
            return await docker.read_path(there + uri.removeprefix(here), limit)
        return await super().read_path(uri, limit)

    async def own_login(self) -> str:
        """The login of the brev command, where it is one."""
        return "" if self.command.token else "brev login"

    async def probe(self, request: JobRequest | None = None) -> list[Finding]:
        """The login works, and there is what the request asks for; nothing is rented. Raises Unreachable."""
        settings = render.docker_settings(self.options, "none", None)
        found = await self.in_thread(probes.findings, self.command, self.target, request, settings)
        own = (await self.machines(FRESH_SECONDS)).get(self.options.instance or "")
        if own and own.runs:
            there = await (await self._open(own.name)).probe(request)
            found += [one for one in there if one.subject not in ("target", "reachable")]
        return found

    async def close(self) -> None:
        """Let go of the connections; jobs go on."""
        for docker in self._dockers.values():
            await docker.close()

    def settings(self) -> dict[str, Any]:
        """Where jobs run, and what it may cost."""
        return {
            "target": self.target,
            "instance": self.options.instance or "one per job",
            "owner": instances.owner(self.options),
            "most dollars per hour": self.options.max_price_per_hour,
            "results": render.results_here("", self.options).rstrip("/"),
        }


class _KeptLog:
    """A log from the bucket, in the place of the engine's answer."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def iter_bytes(self) -> Iterator[bytes]:
        """All of it at once."""
        yield self._data


def _raw_log(docker: DockerPlatform, handle: JobHandle) -> bytes:
    """The container's log as the engine sends it, with the moment of every line."""
    out = io.BytesIO()
    params = {"stdout": 1, "stderr": 1, "timestamps": 1}
    with docker.engine.stream("GET", f"/containers/{docker.observer.own(handle)}/logs", params=params) as answer:
        for more in answer.iter_bytes():
            out.write(more)
    return out.getvalue()
