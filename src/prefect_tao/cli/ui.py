"""`prefect-tao ui`: Prefect's server with its UI, on a Postgres of its own, for all commands on this machine."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from prefect_tao.server.server_home import ServerHome

EPILOG = """\b
Example:
  prefect-tao ui --port 4201
"""


def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 4200,
    host: Annotated[str, typer.Option(help="Address to listen on; anyone who reaches it can read saved secrets.")] = (
        "127.0.0.1"
    ),
) -> None:
    """Start the Prefect server and its UI here. Other commands find it by themselves, and their runs are there too."""
    from prefect_tao.cli.screen import Screen, console
    from prefect_tao.cli.ticking import Ticker
    from prefect_tao.server.hosting import AlreadyServed, serve
    from prefect_tao.server.server_home import ServerHome

    home, ticker = ServerHome.here(), Ticker(Screen(console()))

    def tell(text: str) -> None:
        home.say(text)
        ticker.tell(text)

    def is_wanted() -> bool:
        ticker.stop()  # it is asked as soon as the server is ready
        return True

    typer.echo("Ctrl-C stops the server, never a job.")
    try:
        serve(home, host, port, is_wanted, tell)
    except AlreadyServed:
        ticker.stop()  # nothing is started here
        _stay(home, f"http://{host}:{port}/api")
    finally:
        ticker.stop()


def _stay(home: ServerHome, url: str) -> None:
    """A server runs here: keep it up at least as long as this command. Raises InvalidInput."""
    from prefect_tao.cli.running import join_shown
    from prefect_tao.jobs.errors import InvalidInput

    found = join_shown(home)
    if found != url:
        raise InvalidInput(
            f"a server of this machine runs already, at {found.removesuffix('/api')}",
            "use that one, or stop what started it; with another PREFECT_HOME there can be a second one",
        )
    typer.echo(f"It runs already; it stays at least until you press Ctrl-C here: {url.removesuffix('/api')}")
    while home.running() == url:
        time.sleep(0.5)
