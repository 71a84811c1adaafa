"""Which Prefect server flows use: the one that is set, else the one of this machine; and whether it answers."""

from __future__ import annotations

import asyncio
import logging
import os

from prefect import get_client
from prefect.context import FlowRunContext, refresh_global_settings_context
from prefect.settings import PREFECT_API_URL

from prefect_tao.jobs.errors import Unreachable
from prefect_tao.server.hosting import Tell
from prefect_tao.server.joining import join, join_running
from prefect_tao.server.server_home import ServerHome

ANSWER_SECONDS = 15.0
logger = logging.getLogger("prefect_tao")


def server_url() -> str | None:
    """The server that Prefect is set up to use, else the one that runs on this machine, which it then uses."""
    if _may_choose() and (found := join_running(ServerHome.here())):
        _use(found)
    return str(PREFECT_API_URL.value()) if PREFECT_API_URL.value() else None


def has_own_data() -> bool:
    """Whether a server that is started here would find anything saved."""
    home = ServerHome.here()
    return home.sqlite.exists() or home.postgres.exists()


def use_server(tell: Tell = logger.warning, every: float = 5.0) -> None:
    """Where there is no server, one is started, for as long as anyone uses it; `tell` hears of it. Raises Unreachable.

    Prefect's own temporary server is one for each process, and writes to a file that `prefect-tao ui` does not read.
    """
    if server_url() is None and _may_choose():
        _use(join(ServerHome.here(), tell, every))


def _may_choose() -> bool:
    """Not where one is set, nor within a flow of somebody's: that has begun on a server of its own."""
    return not PREFECT_API_URL.value() and FlowRunContext.get() is None


def _use(url: str) -> None:
    os.environ["PREFECT_API_URL"] = url  # for what this process starts, too
    refresh_global_settings_context()


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
            "start it with `prefect-tao ui`, or unset PREFECT_API_URL",
        )
