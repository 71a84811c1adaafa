"""Listeners and their audience: events reach each listener in order, without secrets, and no listener can do harm."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from prefect_tao.jobs.events import Event, LogWritten
from prefect_tao.jobs.redacting import EventRedactor

logger = logging.getLogger("prefect_tao.listening")

HEAR_SECONDS = 60.0


class Listener:
    """Hears what happens. Logs are fetched from the platform only for a listener that wants them."""

    wants_logs = False

    async def hear(self, event: Event) -> None:
        """Take in one event; `match` those that matter and ignore the others."""


class Audience(Listener):
    """Several listeners as one: the only place where secrets are taken out and faults of listeners are caught.

    A listener that raises or does not return in time is logged, and hears nothing more.
    """

    def __init__(self, *listeners: Listener, secrets: Mapping[str, str] | None = None) -> None:
        self._listeners = list(listeners)
        self._redact = EventRedactor(secrets or {})

    @property
    def wants_logs(self) -> bool:  # type: ignore[override]
        """Whether any of those that still listen wants logs."""
        return any(listener.wants_logs for listener in self._listeners)

    async def hear(self, event: Event) -> None:
        """Pass the event on to all."""
        for safe in self._redact(event):
            for listener in list(self._listeners):
                if listener.wants_logs or not isinstance(safe, LogWritten):
                    await self._pass_on(listener, safe)

    async def _pass_on(self, listener: Listener, event: Event) -> None:
        try:
            async with asyncio.timeout(HEAR_SECONDS):
                await listener.hear(event)
        except (Exception, asyncio.CancelledError) as error:
            if is_own_cancellation(error):
                raise
            self._listeners.remove(listener)
            logger.warning("a listener failed and hears nothing more; its job goes on: %r", error)


def audience(listener: Listener | None) -> Audience:
    """The listener as an audience, unless it is one."""
    if isinstance(listener, Audience):
        return listener
    return Audience(listener) if listener else Audience()


def is_own_cancellation(error: BaseException) -> bool:
    """Whether the current task is being cancelled, and not something inside of what it called."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
