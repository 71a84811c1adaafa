"""Flows as plain calls, for scripts: the settings this product wants for Prefect, and an event loop around the flow."""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from prefect_tao.jobs.errors import JobCanceled

# Each holds unless the user has set it. Why: an outage of minutes at the end of a run must not lose its state; the
# embedded server needs up to half a minute to start; leases must survive a restart of the server; and a machine without
# the internet must not be asked to report usage to it.
PREFECT_DEFAULTS = {
    "PREFECT_CLIENT_MAX_RETRIES": "8",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
}


def prepare_prefect() -> None:
    """Set our defaults in the environment. Prefect reads it when it is imported, so call this before."""
    for name, value in PREFECT_DEFAULTS.items():
        os.environ.setdefault(name, value)


def plain_call(name: str) -> Callable[..., Any]:
    """The flow `name` as a function that runs it to its end and returns its result.

    The function raises what the flow raises, and JobCanceled when the run was cancelled.
    """
    prepare_prefect()
    flow = getattr(import_module("prefect_tao.flows"), name)
    cancelled: type[Exception] = import_module("prefect.exceptions").CancelledRun

    @functools.wraps(flow.fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return asyncio.run(flow(*args, **kwargs))
        except cancelled as error:
            raise JobCanceled(str(error)) from None

    return call
