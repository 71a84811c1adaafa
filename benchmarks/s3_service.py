"""What the data path is measured against: an S3 server on the loopback, and a network that takes its time."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

METHODS = (b"GET ", b"PUT ", b"POST ", b"HEAD ", b"DELETE ")
CHUNK = 256 * 1024
SERVER = """
import logging, sys
from moto.server import ThreadedMotoServer
logging.getLogger("werkzeug").setLevel(logging.ERROR)
server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
"""


@contextmanager
def started(*words: str) -> Iterator[int]:
    """A process that prints its port and lives until we are done; yields the port."""
    process = subprocess.Popen(
        [sys.executable, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


def s3_server() -> AbstractContextManager[int]:
    """moto's S3 in a process of its own."""
    return started("-c", SERVER)


def slow_network(port: int, seconds: float) -> AbstractContextManager[int]:
    """A way to `port` that holds back the start of every request."""
    return started("-m", "benchmarks.s3_service", str(port), str(seconds))


async def forward(port: int, seconds: float) -> None:
    """Forward connections to `port`, each request later by `seconds`."""

    async def requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            if data.startswith(METHODS):
                await asyncio.sleep(seconds)
            writer.write(data)
            await writer.drain()
        writer.close()

    async def answers(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
        writer.close()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, sink = await asyncio.open_connection("127.0.0.1", port, limit=CHUNK)
        await asyncio.gather(requests(reader, sink), answers(there, writer), return_exceptions=True)

    server = await asyncio.start_server(connection, "127.0.0.1", 0, limit=CHUNK)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(forward(int(sys.argv[1]), float(sys.argv[2])))
