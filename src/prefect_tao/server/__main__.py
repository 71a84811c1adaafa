"""`python -m prefect_tao.server`: the server of this machine, as long as anyone uses it."""

from __future__ import annotations

import fcntl
import socket
import sys

from prefect_tao.jobs.errors import InvalidInput, TaoError
from prefect_tao.server.hosting import AlreadyServed, check_port, serve
from prefect_tao.server.joining import TAKEN
from prefect_tao.server.server_home import ServerHome, take

HOST, PORT = "127.0.0.1", 4200


def main() -> int:
    """Serve; 0 when all users have gone."""
    home = ServerHome.here()
    with home.open("users.lock") as users:
        try:
            serve(home, HOST, _port(), lambda: not take(users, fcntl.LOCK_EX), home.say)
        except AlreadyServed:
            return TAKEN
        except TaoError as error:
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


def _port() -> int:
    """The one people know, if it is free: then `prefect-tao ui` can take its place without a change of address."""
    try:
        check_port(HOST, PORT)
    except InvalidInput:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            return int(probe.getsockname()[1])
    return PORT


if __name__ == "__main__":
    sys.exit(main())
