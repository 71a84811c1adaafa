"""What the fault machine must be able to do to a platform, and to know of it, whatever the platform is."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum

from prefect_tao.jobs.handle import JobHandle
from prefect_tao.jobs.platform import Platform
from prefect_tao.jobs.request import JobRequest
from prefect_tao.jobs.state import JobState


class Event(StrEnum):
    """What can happen to a job without our doing."""

    ENDS_WELL = "ends well"
    FAILS = "fails"
    TAKEN_AWAY = "its machine is taken away"
    REQUEUED = "is restarted by the service"
    STOPPED = "is stopped by another person"
    FORGOTTEN = "what is over is forgotten"


@dataclass
class Client:
    """A process that uses the platform. `hinder` spoils one of its next requests; `cut` is kill -9."""

    platform: Platform
    hinder: Callable[[str], None]
    cut: Callable[[], None]


class World(ABC):
    """A platform under test: how to reach it, what can happen to it, and what is true there."""

    # What `Client.hinder` understands; the first one lets a request pass.
    faults: Sequence[str] = ("none",)
    events: Collection[Event] = ()
    pauses: Sequence[float] = (0.0, 0.1, 1.0)
    # How long jobs that may end, and those who wait for them, may take for it once nothing hinders them.
    settle_seconds: float = 60.0
    # Whether there are jobs that the platform really refuses.
    refuses: bool = False
    secrets: dict[str, str]

    @abstractmethod
    def new_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop in which everything happens."""

    @abstractmethod
    def client(self) -> Client:
        """A new process that uses the platform."""

    @abstractmethod
    def request(self, refused: bool = False) -> JobRequest:
        """A job that runs until `let_end`, or until something happens to it; or one that the platform refuses."""

    @abstractmethod
    async def happens(self, event: Event, key: str) -> None:
        """Let it happen to the job of `key` that runs, if one does."""

    @abstractmethod
    def set_away(self, away: bool) -> None:
        """Whether the platform answers."""

    @abstractmethod
    def let_end(self) -> None:
        """From now on every job ends well by itself, and nothing hinders anybody."""

    @abstractmethod
    def wrong(self) -> list[str]:
        """What must never happen and has, as far as the platform itself shows it."""

    @abstractmethod
    def ends(self, handle: JobHandle) -> set[JobState]:
        """How jobs of this name have ended; nothing while the only one lives."""

    @abstractmethod
    def live(self, key: str) -> list[str]:
        """What lives of a key and costs something, now or soon."""

    @abstractmethod
    def secrets_left(self) -> list[str]:
        """Where secrets of jobs that are over can still be found."""

    def has_begun(self, handle: JobHandle) -> bool:
        """Whether a job that was launched runs, waits or is over: nothing more has to be done to start it."""
        return True

    def set_full(self, full: bool) -> None:  # noqa: B027 - some platforms always have room
        """Whether there is no room to start jobs now."""

    def hours_pass(self) -> None:  # noqa: B027 - most remove at once what killed launchers have left
        """What killed launchers have left is old from now on."""

    def asked(self, key: str) -> None:  # noqa: B027 - only some look for it
        """A launch of `key` is asked for now."""

    def close(self) -> None:  # noqa: B027 - most leave nothing
        """The sequence is over."""
