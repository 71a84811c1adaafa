"""The life of an instance: made once under its name, waited for until it can be used, and given back for certain.

Names are unique, so a name is made, looked for and made again without harm; what a call said counts for nothing, what
`brev ls` lists afterwards does. An instance that failed to start is deleted and made again a few times.
"""

from __future__ import annotations

import asyncio
import difflib
import getpass
import hashlib
import re
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from prefect_tao.jobs.errors import InvalidInput, SubmitFailed, Unreachable
from prefect_tao.jobs.naming import JobName, is_our_name
from prefect_tao.jobs.waiting import logger, saying
from prefect_tao.platforms.brev.client import BrevCommand, RentedMachine, TypeOffer
from prefect_tao.platforms.brev.settings import BrevSettings

T = TypeVar("T")
CalledOff = Callable[[bool], bool]
# How often an instance that does not come up is deleted and made again.
MOST_TRIES = 3
# How long a call that made nothing is repeated before the caller is told that nothing is known.
DOUBT_SECONDS = 60.0
GONE_SECONDS = 600.0
LOGIN_SECONDS = 10
# How long an instance that could be used once is taken to be usable; what it says then tells the rest.
USABLE_SECONDS = 300.0
_answered: dict[str, float] = {}  # when each instance was last seen to be, by its id; all launches here share it
# What Brev will not do however often it is asked.
REFUSALS = ("not a recognized type", "no capacity", "quota", "insufficient", "payment", "name must")
# What leaves open whether Brev has done it: of several types one may be refused and the next one made all the same.
DOUBTS = ("eof", "timeout", "deadline exceeded", "connection re", "bad gateway", "internal server", "service unavail")
# How many types a launch tries that names none: those behind them cost ever more.
MOST_TYPES = 8


def owner(settings: BrevSettings) -> str:
    """Whose instances these are."""
    return settings.owner or getpass.getuser()


def prefix(settings: BrevSettings) -> str:
    """What the names of our instances begin with; `brev ls` may show those of a whole organization."""
    return f"tao-{hashlib.sha256(owner(settings).encode()).hexdigest()[:8]}-"


def name_of(job: JobName, settings: BrevSettings) -> str:
    """The instance that is made for a job."""
    return f"{prefix(settings)}{job.key}-{job.attempt}"


def job_of(name: str, settings: BrevSettings) -> JobName | None:
    """The job that an instance was made for; None where it is not ours."""
    own = prefix(settings)
    text = f"tao-{name.removeprefix(own)}"
    return JobName.parse(text) if name.startswith(own) and is_our_name(text) else None


# -- what to rent ------------------------------------------------------------------------------------------------------


def suitable(offers: Sequence[TypeOffer], settings: BrevSettings, gpus: int) -> list[TypeOffer]:
    """The types to try, in that order: as listed, else the cheapest first. Raises InvalidInput where there is none."""
    if not offers:
        raise InvalidInput("Brev offers no instance type at all now", "try again later; by hand: brev search")
    found = _named(offers, settings)
    wanted = max(gpus, 1) if gpus else 0
    found = _only(
        found,
        [one for one in found if one.gpu_count >= wanted],
        f"gpus: {wanted} were asked for, and the types that the block allows have at most "
        f"{max((one.gpu_count for one in found), default=0)}",
        "ask for fewer, or list other instance types in the block",
    )
    found = _only(
        found,
        [one for one in found if not one.disk or one.disk >= settings.min_disk_gb],
        f"disk: {settings.min_disk_gb} GB were asked for, and no type that fits otherwise has so much",
        "ask for less in the block (Least disk in GB)",
    )
    most = settings.max_price_per_hour
    if most is not None:
        cheapest = min((one.price for one in found if one.price), default=0.0)
        found = _only(
            found,
            [one for one in found if one.price and one.price <= most],
            f"price: the block allows ${most:g} an hour, and the cheapest type that fits costs ${cheapest:g}",
            "raise the block's limit, ask for fewer GPUs, or list cheaper instance types",
        )
    if settings.instance_types:
        return found
    found.sort(key=lambda one: (one.gpu_count != wanted, one.price or float("inf"), one.type))
    return found[:MOST_TYPES]


def _named(offers: Sequence[TypeOffer], settings: BrevSettings) -> list[TypeOffer]:
    by_type = {one.type: one for one in offers}
    for name in settings.instance_types:
        if name not in by_type:
            near = difflib.get_close_matches(name, by_type, n=3, cutoff=0.3) or sorted(by_type)[:3]
            raise InvalidInput(
                f"Brev offers no instance type {name!r}", f"did you mean {', '.join(near)}? All of them: brev search"
            )
    if settings.instance_types:
        return [by_type[name] for name in settings.instance_types]
    if settings.gpu_name:
        names = ", ".join(sorted({one.gpu_name for one in offers if one.gpu_name}))
        return _only(
            offers,
            _with_gpu(offers, settings.gpu_name),
            f"Brev offers no GPU {settings.gpu_name}",
            f"choose one of {names}",
        )
    return list(offers)


def _with_gpu(offers: Sequence[TypeOffer], name: str) -> list[TypeOffer]:
    """The types with the GPU of this name, else with those that it is a part of; A10 is no part of A100."""
    exact = [one for one in offers if one.gpu_name.lower() == name.lower()]
    part = re.compile(rf"(?<!\d){re.escape(name)}(?!\d)", re.IGNORECASE)
    return exact or [one for one in offers if part.search(one.gpu_name)]


def _only(before: Sequence[TypeOffer], after: list[TypeOffer], cause: str, remedy: str) -> list[TypeOffer]:
    if before and not after:
        raise InvalidInput(cause, remedy)
    return after


# -- from a name to a machine that can be used -------------------------------------------------------------------------


class InstanceKeeper:
    """Makes instances, waits for them and gives them back. Raises what the command raises, and SubmitFailed."""

    def __init__(self, command: BrevCommand, settings: BrevSettings, pause: float = 5.0) -> None:
        self.command, self.settings, self.pause = command, settings, pause

    async def ask(self, question: Callable[..., T], *given: object) -> T:
        """Call the command in a thread."""
        return await asyncio.to_thread(question, *given)

    async def ask_to_the_end(self, question: Callable[..., T], *given: object) -> T:
        """The same, and who is cancelled waits for the answer: what is made meanwhile has to be there to be seen."""
        asking = asyncio.ensure_future(self.ask(question, *given))
        try:
            return await asyncio.shield(asking)
        except asyncio.CancelledError:
            await asyncio.gather(asking, return_exceptions=True)
            raise

    async def ready(
        self, name: str, types: Sequence[str] | None, is_called_off: CalledOff = lambda is_there: False
    ) -> None:
        """Return when a container can be started on the instance; it is made where `types` says of what.

        One of a person's own is started when it is stopped, and never made or deleted. One of ours that does not get
        ready in time is given back. `is_called_off` is asked before each step, with whether the instance is there.
        Raises SubmitFailed, InvalidInput, Unreachable.
        """
        deadline = time.monotonic() + 60 * self.settings.ready_minutes
        waiting = _NotReady(name)
        async with saying(lambda: waiting.words):
            while waiting.why:
                try:
                    machine = (await self.ask(self.command.instances)).get(name)
                    if await self.ask(is_called_off, machine is not None):
                        raise SubmitFailed(f"the job of {name} was cancelled while it was launched", "launch it again")
                    await self._go_on(waiting, machine, types)
                except Unreachable as error:
                    if not error.retryable or time.monotonic() > deadline:
                        raise
                    waiting.why = error.cause
                if waiting.why and time.monotonic() > deadline:
                    raise await self._too_late(waiting, types)
                if waiting.why:
                    await asyncio.sleep(self.pause)

    async def _go_on(self, waiting: _NotReady, machine: RentedMachine | None, types: Sequence[str] | None) -> None:
        """One step towards a machine that can be used."""
        if machine is None:
            await self._make(waiting, types)
        elif machine.status == "FAILURE":
            await self._make_again(waiting, types)
        elif machine.status == "STOPPED":
            # Only of what is surely there: of a name that it does not know the command may make an instance.
            waiting.why = "it was stopped and is starting"
            await self.ask(self.command.run, "start", machine.name, "--detached")
        elif machine.runs:
            waiting.why = await self.ask(self._unusable, machine)
        else:
            waiting.why = f"it is {machine.status.lower()}"

    async def _make(self, waiting: _NotReady, types: Sequence[str] | None) -> None:
        if types is None:
            raise InvalidInput(
                f"there is no instance {waiting.name}", "brev ls lists yours; correct the block, or leave it out"
            )
        waiting.why = f"it is being made ({', '.join(types)})"
        words = ["--detached", "--jupyter=false", "--type", ",".join(types)]
        said = None
        try:
            said = await self.ask_to_the_end(
                self.command.run, "create", waiting.name, *words, "--min-disk", str(self.settings.min_disk_gb)
            )
        except Unreachable as error:
            waiting.why = error.cause
        if waiting.name in await self.ask(self.command.instances):
            return
        text = f"{said.out}\n{said.err}".lower() if said else ""
        if said and any(word in text for word in REFUSALS) and not any(word in text for word in DOUBTS):
            raise SubmitFailed(
                f"Brev makes no instance for this job: {_told(said.err)}",
                "list other instance types in the block (brev search shows what there is), or try again later",
            )
        if said and said.code and not (fault := self.command.unanswered("create", said)).retryable:
            raise fault
        waiting.doubt(said.words if said else waiting.why)

    async def _make_again(self, waiting: _NotReady, types: Sequence[str] | None) -> None:
        waiting.failures += 1
        if types is None:
            raise SubmitFailed(f"the instance {waiting.name} has failed", f"look at it with: brev ls; {SEE_CONSOLE}")
        logger.warning("the instance %s failed to start; it is deleted", waiting.name)
        await self.gone(waiting.name)
        if waiting.failures >= MOST_TRIES:
            raise SubmitFailed(
                f"the instance {waiting.name} failed to start {MOST_TRIES} times, and is deleted",
                f"list other instance types in the block, or try again later; {SEE_CONSOLE}",
            )

    def _unusable(self, machine: RentedMachine) -> str:
        """Why no container can be started there yet; empty when one can. Only a login and the engine's answer count."""
        if time.monotonic() - _answered.get(machine.id, -USABLE_SECONDS) < USABLE_SECONDS:
            return ""
        self.command.refresh()
        there = self.command.destination(machine.name)
        words = ["ssh", *there.options(), "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={LOGIN_SECONDS}"]
        words += ["-o", "ControlPath=none", "-o", "LogLevel=ERROR", "--", machine.name, "docker info"]
        try:
            done = subprocess.run(
                words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=6 * LOGIN_SECONDS, check=False
            )
        except subprocess.TimeoutExpired:
            return "it runs, and does not answer"
        except FileNotFoundError:
            raise SubmitFailed("there is no ssh program on this machine", "install openssh-client") from None
        if done.returncode == 0:
            _answered[machine.id] = time.monotonic()
            return ""
        said = (done.stderr.strip() or done.stdout.strip() or "no word").splitlines()[-1]
        return f"it runs, and its Docker engine cannot be used yet: {said}"

    async def _too_late(self, waiting: _NotReady, types: Sequence[str] | None) -> SubmitFailed | Unreachable:
        minutes = f"{self.settings.ready_minutes:g} minutes"
        cause = f"the instance {waiting.name} was not ready within {minutes}: {waiting.why}"
        if types is None:
            return Unreachable(cause, f"look at it with: brev ls; {SEE_CONSOLE}", retryable=False)
        await self.gone(waiting.name)
        return SubmitFailed(f"{cause}; it is deleted", "give it more time in the block, or list other instance types")

    # -- giving back ---------------------------------------------------------------------------------------------------

    async def gone(self, name: str, seconds: float = GONE_SECONDS) -> None:
        """Delete an instance and return when it is not listed any more. Raises Unreachable while that is not so."""
        deadline = time.monotonic() + seconds
        async with saying(lambda: f"the instance {name} is being deleted"):
            while True:
                fault: Unreachable | None = None
                try:
                    machine = (await self.ask(self.command.instances)).get(name)
                    if machine is None:
                        return
                    if machine.status != "DELETING":
                        await self.ask(self.command.run, "delete", name)
                except Unreachable as error:
                    fault = error
                if (fault and not fault.retryable) or time.monotonic() > deadline:
                    why = f": {fault.cause}" if fault else ""
                    raise Unreachable(
                        f"the instance {name} is not known to be deleted, and may still cost money{why}",
                        f"look again with: prefect-tao brev sweep; by hand: brev delete {name}",
                    )
                await asyncio.sleep(min(self.pause, 1.0) if fault is None else self.pause)


SEE_CONSOLE = "the Brev console says more"


class _NotReady:
    """What is known of a machine that is not ready, and how often something went wrong."""

    def __init__(self, name: str) -> None:
        self.name, self.why, self.failures = name, "it is looked for", 0
        self._doubtful_since = 0.0

    @property
    def words(self) -> str:
        return f"the instance {self.name} is not ready: {self.why}"

    def doubt(self, said: str) -> None:
        """Brev made nothing and gave no reason; raises Unreachable when that has lasted too long."""
        now = time.monotonic()
        self._doubtful_since = self._doubtful_since or now
        self.why = f"Brev did not make it: {said}"
        if now - self._doubtful_since > DOUBT_SECONDS:
            raise Unreachable(self.words, "try again in a while; by hand: brev ls", retryable=False)


def _told(err: str) -> str:
    """The lines in which the command gives its reasons."""
    lines = [line.strip() for line in err.splitlines() if any(word in line.lower() for word in REFUSALS)]
    return "; ".join(dict.fromkeys(lines)) or err.strip()
