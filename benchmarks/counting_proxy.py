"""A TCP proxy on loopback that counts the DynamoDB requests that pass through it, by operation."""

from __future__ import annotations

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

TARGET = re.compile(rb"(?i)x-amz-target: *DynamoDB_\d+\.(\w+)\r\n")
CHUNK = 64 * 1024
LINE_MAX = 200  # a header that is cut in two by a chunk is looked at again as a whole


class CountingProxy:
    """Forwards everything unchanged. `counts` grows while requests pass."""

    def __init__(self, target_url: str) -> None:
        self._target = urlsplit(target_url)
        self.counts: Counter[str] = Counter()
        self.url = ""

    async def serve(self, started: threading.Event, stop: asyncio.Event) -> None:
        """Listen on a free port until told to stop."""
        server = await asyncio.start_server(self._join, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        started.set()
        await stop.wait()
        server.close()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection(self._target.hostname, self._target.port)
        await asyncio.gather(
            self._forward(reader, there_writer, count=True),
            self._forward(there_reader, writer, count=False),
        )

    async def _forward(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, count: bool
    ) -> None:
        rest = b""
        try:
            while data := await reader.read(CHUNK):
                if count:
                    rest = self._counted(rest + data)
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass  # a member was killed, which is what the benchmark does
        finally:
            writer.close()

    def _counted(self, data: bytes) -> bytes:
        """Count whole headers; returns what may be the beginning of one."""
        end = 0
        for match in TARGET.finditer(data):
            self.counts[match[1].decode()] += 1
            end = match.end()
        return data[max(end, len(data) - LINE_MAX) :]


@contextmanager
def counting_proxy(target_url: str) -> Iterator[CountingProxy]:
    """A proxy in a thread of its own."""
    proxy, started, stop = CountingProxy(target_url), threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await proxy.serve(started, stop)

    # A run of its own ends whatever is still being forwarded.
    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    started.wait()
    try:
        yield proxy
    finally:
        loops[0].call_soon_threadsafe(stop.set)
        thread.join()
