"""From a rendered job to a container on an instance of its own: rented under the job's name, and given back on failure.

What is going to be rented is noted first, so that a launcher that dies leaves nothing that is not found. A job that was
here before, and whose instance is deleted by now, is adopted from what was written down of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping

from prefect_tao.jobs.errors import InvalidInput, SubmitFailed, TaoError, Unreachable
from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import Rendered
from prefect_tao.jobs.retrying import retry
from prefect_tao.jobs.waiting import logger
from prefect_tao.platforms import site_notes
from prefect_tao.platforms.brev.instances import InstanceKeeper, suitable
from prefect_tao.platforms.brev.render import docker_settings
from prefect_tao.platforms.brev.rental_notes import Rental, RentalNotes
from prefect_tao.platforms.container_jobs import wanted_gpus
from prefect_tao.platforms.docker.driver import DockerPlatform

Open = Callable[[str], Awaitable[DockerPlatform]]
# How long Brev is asked what there is to give back, before a person is told to look.
WITHDRAW_SECONDS = 30.0


class BrevLauncher:
    """Starts jobs on instances. Raises SubmitFailed, InvalidInput, Unreachable, MissingDependency."""

    def __init__(self, keeper: InstanceKeeper, notes: RentalNotes, open_docker: Open) -> None:
        self.keeper, self.notes, self.open_docker = keeper, notes, open_docker

    async def on_own(self, name: str, rendered: Rendered, secrets: Mapping[str, str]) -> JobHandle:
        """Start a job on an instance of the person's own. Raises InvalidInput where that costs more than is allowed."""
        await self._check_price(name)
        await self.keeper.ready(name, None)
        return await (await self.open_docker(name)).submit(rendered, secrets)

    async def _check_price(self, name: str) -> None:
        """The limit holds for what is there already too: a stopped instance would cost money again."""
        ask, most = self.keeper.ask, self.keeper.settings.max_price_per_hour
        if most is None:
            return
        machine = (await ask(self.keeper.command.instances)).get(name)
        prices = {one.type: one.price for one in await ask(self.keeper.command.offers)}
        if machine and (price := prices.get(machine.type, 0.0)) > most:
            raise InvalidInput(
                f"{name} costs ${price:g} an hour ({machine.type}), and the block allows ${most:g}",
                "raise the block's limit, or name another instance",
            )

    async def on_rented(
        self, name: str, handle: JobHandle, rendered: Rendered, secrets: Mapping[str, str]
    ) -> JobHandle:
        """Start a job on an instance that is made for it; `handle` is the job as far as it is known."""
        ask = self.keeper.ask
        is_there = name in await ask(self.keeper.command.instances)
        if not is_there and (known := await ask(self.left, handle)):
            return known
        await ask(site_notes.leave, self.notes.files, handle)
        offers = {one.type: one for one in await ask(self.keeper.command.offers)}
        settings = self.keeper.settings
        gpus = wanted_gpus(rendered.request, docker_settings(settings, name, None))
        types = suitable(list(offers.values()), settings, gpus)
        if not is_there:
            await ask(self.notes.rent, handle, Rental(instance=name, type=types[0].type, price=types[0].price))
        is_usable = False
        try:
            await self.keeper.ready(name, [one.type for one in types], lambda is_there: self._is_over(handle, is_there))
            is_usable = True
            if await ask(self.notes.end, handle):
                raise _called_off(handle)
            job = await self._start(await self.open_docker(name), handle, rendered, secrets)
            job = job.model_copy(update={"results": handle.results})
        except (SubmitFailed, InvalidInput, Unreachable, asyncio.CancelledError) as error:
            if isinstance(error, Unreachable) and error.retryable:
                raise  # it is tried again, and goes on where it was
            await asyncio.shield(self._withdraw(name, handle, is_usable))
            if isinstance(error, SubmitFailed) and (known := await ask(self.left, handle)):
                return known  # it was cancelled while it was launched, or taken away before: it is there, and over
            raise
        await self._note_start(name, job, {one.type: one.price for one in offers.values()})
        return job

    async def _start(
        self, docker: DockerPlatform, handle: JobHandle, rendered: Rendered, secrets: Mapping[str, str]
    ) -> JobHandle:
        """Start the container; a job that is called off meanwhile takes its instance away, which nobody waits for."""
        starting = asyncio.ensure_future(docker.submit(rendered, secrets))
        try:
            while not (await asyncio.wait([starting], timeout=self.keeper.pause))[0]:
                if await self.keeper.ask(self.notes.end, handle):
                    docker.engine.abandon(f"{handle.name} was cancelled while it was launched")
                    await asyncio.wait([starting])
                    if starting.exception():
                        raise _called_off(handle)
            return starting.result()
        finally:
            starting.cancel()

    def _is_over(self, handle: JobHandle, is_there: bool) -> bool:
        """Whether the job needs no instance any more, or, before one is made, has had one."""
        return (self.notes.end(handle) if is_there else self.left(handle)) is not None

    def left(self, handle: JobHandle) -> JobHandle | None:
        """The job that had the name, where it has begun or ended: a second one must never be made for it."""
        if kept := self.notes.end(handle):
            return kept.handle
        record, rental = self.notes.record(handle), self.notes.rental(handle)
        native_id = str((record or {}).get("native_id") or (rental.native_id if rental else ""))
        return handle.model_copy(update={"native_id": native_id}) if record or native_id else None

    async def _note_start(self, name: str, job: JobHandle, prices: Mapping[str, float]) -> None:
        """That a container was started, and which of the types it is that costs money. The job runs without it too."""
        try:
            machine = (await self.keeper.ask(self.keeper.command.instances)).get(name)
            rental = await self.keeper.ask(self.notes.rental, job)
            if machine and rental and not rental.native_id:
                own = {"type": machine.type, "price": prices.get(machine.type, 0.0), "native_id": job.native_id}
                await self.keeper.ask(self.notes.rent, job, rental.model_copy(update=own))
        except TaoError as error:
            logger.warning("%s; %s", error.cause, error.remedy)

    async def _withdraw(self, name: str, handle: JobHandle, is_usable: bool) -> None:
        """Give back what was rented for nothing; where a container may be there, it stays and is found."""
        try:
            listed = await retry(lambda: self.keeper.ask(self.keeper.command.instances), WITHDRAW_SECONDS)
            if (machine := listed.get(name)) is None:
                return
            may_hold_it = machine.runs and not await self.keeper.ask(self.notes.end, handle)
            if may_hold_it and await self._has_container(name, handle, is_usable):
                return
            await self.keeper.gone(name)
        except TaoError as error:
            remedy = f"give it back with: prefect-tao brev sweep; by hand: brev delete {name}"
            logger.warning("what was rented for nothing may still be there: %s; %s", error.cause, remedy)

    async def _has_container(self, name: str, handle: JobHandle, is_usable: bool) -> bool:
        """Whether the job's container is on its instance. One that takes no login yet has none, if none is noted."""
        try:
            docker = await self.open_docker(name)
            return any(one.native_id for one in (await docker.find([handle.key]))[handle.key])
        except Unreachable:
            known = await self.keeper.ask(self.left, handle)
            if is_usable or known:
                raise
            return False


def _called_off(handle: JobHandle) -> SubmitFailed:
    return SubmitFailed(f"{handle.name} was cancelled while it was launched", "launch it again")
