"""Which Prefect server flows will use, and whether it answers."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from prefect import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_HOME

from prefect_tao.jobs.errors import Unreachable

ANSWER_SECONDS = 15.0


def server_url() -> str | None:
    """The running server that Prefect is set up to use; without one it starts its own, which takes a while."""
    return str(PREFECT_API_URL.value()) if PREFECT_API_URL.value() else None


def has_own_data() -> bool:
    """Whether a server that Prefect starts by itself would find anything saved."""
    return Path(PREFECT_HOME.value(), "prefect.db").exists()


async def check_server() -> None:
    """Raise Unreachable when the server that Prefect is set up to use does not answer."""
    url = server_url()
    if url is None:
        return
    try:
        async with asyncio.timeout(ANSWER_SECONDS), get_client() as client:
            fault = await client.api_healthcheck()
    except Exception as error:
        fault = error
    if fault is not None:
        raise Unreachable(
            f"Prefect's server at {url} does not answer ({type(fault).__name__})",
            "start it with `prefect-tao ui`, or unset PREFECT_API_URL to use the embedded server",
        )


def stop_embedded() -> None:
    """Stop the server that Prefect started for this process; it would outlive a process that leaves at once."""
    if "prefect.server.api.server" not in sys.modules:  # then there is none, and the import would take seconds
        return
    from prefect.server.api.server import SubprocessASGIServer

    for server in list(SubprocessASGIServer._instances.values()):
        server.stop()
