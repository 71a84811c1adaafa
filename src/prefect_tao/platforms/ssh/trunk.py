"""One login to a machine, by whatever carries it, and the channels on it."""

from __future__ import annotations

from abc import ABC, abstractmethod

# All read when they are used, so that tests can shorten them.
CONNECT_SECONDS = 15.0
OPEN_SECONDS = 15.0
KEEPALIVE_SECONDS = 30
# OpenSSH takes ten sessions on a connection and frees a place late.
ROOM = 8


class Channel(ABC):
    """A command that runs there. Methods raise Lost, also when `deadline` (of time.monotonic) has passed."""

    @abstractmethod
    def send(self, data: bytes, deadline: float) -> None:
        """Give all of `data` to the command."""

    @abstractmethod
    def receive(self, deadline: float) -> tuple[int, bytes] | None:
        """Some of its output (1) or error output (2); None when there will be no more."""

    @abstractmethod
    def end_input(self) -> None:
        """Nothing more will be sent."""

    @abstractmethod
    def close(self) -> None:
        """Let go of it."""


class Trunk(ABC):
    """One login. `room` is how many channels it carries at once; a retired one gets no further ones."""

    room = ROOM
    is_retired = False

    @property
    def is_usable(self) -> bool:
        """Whether new channels may be opened on it."""
        return not self.is_retired and self.is_active

    @property
    @abstractmethod
    def is_active(self) -> bool:
        """Whether the connection is there."""

    @abstractmethod
    def open(self, wire: str) -> Channel:
        """Start a command. Raises Busy, and Lost when the connection is of no use any more."""

    @abstractmethod
    def close(self) -> None:
        """End the login and all its channels."""
