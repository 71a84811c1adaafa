"""A network that takes its time, between what is measured and the S3 server on the loopback."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

METHODS = (b"GET ", b"PUT ", b"POST ", b"HEAD ", b"DELETE ")
CHUNK = 256 * 1024


@contextmanager
def slow_network(port: int, seconds: float) -> Iterator[int]:
    """A way to `port` that holds back the start of every request; yields its own port."""
    words = [sys.executable, "-m", "benchmarks.slow_network", str(port), str(seconds)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert process.stdout
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


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
