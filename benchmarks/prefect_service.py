"""A Prefect server for a benchmark, the one that tests use."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import ROOT

sys.path.insert(0, str(ROOT / "tests" / "support"))
from prefect_server import PrefectServer


@contextmanager
def prefect_server() -> Iterator[dict[str, str]]:
    """The environment of a client that says nothing, with a server and a home of its own."""
    with tempfile.TemporaryDirectory() as folder:
        server = PrefectServer(Path(folder))
        server.start()
        try:
            quiet = {"PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}
            yield {**server.env, **quiet, "PREFECT_TAO_HOME": f"{folder}/tao"}
        finally:
            server.stop()
