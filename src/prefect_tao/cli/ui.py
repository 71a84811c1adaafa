"""`prefect-tao ui`: Prefect's server with its UI, with the settings this product wants."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

EPILOG = """\b
Example:
  prefect-tao ui --port 4201
"""


def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on 127.0.0.1.")] = 4200,
    host: Annotated[str, typer.Option(help="Address to listen on; anyone who reaches it can read saved secrets.")] = (
        "127.0.0.1"
    ),
) -> None:
    """Start the Prefect server and its UI here. Runs made with the embedded server are there too."""
    from prefect_tao.settings import prepare_prefect

    prepare_prefect()
    # Whatever the port and the name under which a browser reaches the server; Prefect's own default names port 4200.
    os.environ.setdefault("PREFECT_SERVER_UI_API_URL", "/api")
    typer.echo(
        f"Prefect's server starts (about 20 s), then open http://{host}:{port}\n"
        f"In another terminal, so that your runs use it:  export PREFECT_API_URL=http://{host}:{port}/api\n"
        "Ctrl-C stops the server, never a job."
    )
    sys.stdout.flush()
    words = [sys.executable, "-m", "prefect", "--no-prompt", "server", "start", "--host", host, "--port", str(port)]
    os.execv(sys.executable, words)  # noqa: S606
