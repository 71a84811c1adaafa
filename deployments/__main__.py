"""`python -m prefect_tao.deployments`: what `make deploy` runs, in the folder that has the prefect.yaml."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path

from prefect_tao.jobs.errors import TaoError
from prefect_tao.server.server_home import ServerHome

HERE = "http://127.0.0.1:4200/api"


def main() -> int:
    """Deploy, and say what to do next; 2 when that was not possible."""
    parser = argparse.ArgumentParser(prog="python -m prefect_tao.deployments", description=__doc__)
    parser.add_argument("--pool-type", choices=("process", "docker", "kubernetes"), help="of the work pool")
    given = parser.parse_args()
    sys.stdout.write("reading prefect.yaml, with all flows that it names\n")
    sys.stdout.flush()
    os.environ.setdefault("PREFECT_API_URL", ServerHome.here().running() or HERE)
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "WARNING")
    from prefect_tao.deployments.deploying import deploy, next_steps  # Prefect reads its settings at import

    try:
        asyncio.run(deploy(Path.cwd(), given.pool_type))
    except TaoError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(next_steps(f"{Path(sys.executable).parent}/prefect") + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
