"""The TCP proxy of all tests and benchmarks: on loopback, in front of one server. It counts requests and injects
network faults.
"""

import asyncio
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from urllib.parse import urlparse

DELAY_S = 0.4  # per chunk; a response in several chunks takes a multiple of it
CHUNK_BYTES = 65_536
HEADER_BYTES_MAX = 200  # the last bytes of a chunk are searched again, in case the chunk ends inside a header

_OPERATION = re.compile(rb"(?i)x-amz-target: *\w+\.(\w+)\r\n")


class NetworkFaultKind(Enum):
    """What can happen to connections."""

    CUT = "cut"  # open connections break, new ones are refused
    DELAY = "delayed"  # every chunk takes longer
    LOSE_RESPONSES = "responses lost"  # requests arrive; the connection is half-closed instead of a response
    HOLD = "held back"  # nothing passes; everything arrives late, when no client waits for it any more


@dataclass(eq=False)
class Proxy:
    """Forwards connections to `target`, with the current `fault`. Runs on the event loop of `Proxies`.

    `request_counts` counts AWS requests by operation; `injected` counts cut connections and lost or delayed chunks.
    """

    target: tuple[str, int]
    fault: NetworkFaultKind | None = None
    responses_to_cut: int = 0  # a test sets it: the next responses are swallowed and their connections cut
    interim_responses: bytes = b""  # a test sets it: sent before every response
    injected: int = 0
    request_counts: Counter[str] = field(default_factory=Counter)
    url: str = ""
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _is_clear: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port."""
        self._is_clear.set()
        self._server = await asyncio.start_server(self._serve_connection, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """Stop listening and cut all connections."""
        assert self._server is not None
        self._server.close()
        self.clear_fault()
        self._cut_all()

    def set_fault(self, fault: NetworkFaultKind) -> None:
        """Inject this fault into all connections from now on."""
        self.fault = fault
        self._is_clear.clear()
        if fault is NetworkFaultKind.CUT:
            self._cut_all()

    def clear_fault(self) -> None:
        """Forward everything again. Chunks that were held back are sent."""
        self.fault = None
        self._is_clear.set()

    def _cut_all(self) -> None:
        self.injected += len(self._writers) // 2  # each connection has two writers
        for writer in self._writers:
            writer.transport.abort()

    async def _serve_connection(
        self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter
    ) -> None:
        if self.fault is NetworkFaultKind.CUT:
            to_client.transport.abort()
            self.injected += 1
            return
        try:
            from_server, to_server = await asyncio.open_connection(*self.target)
        except OSError:
            to_client.transport.abort()
            return
        pair = {to_client, to_server}
        self._writers |= pair
        is_response_due = asyncio.Event()
        requests = asyncio.create_task(self._forward_requests(from_client, to_server, is_response_due))
        try:
            # `Proxies` cancels its tasks when it closes; asyncio would log that as an error.
            with suppress(asyncio.CancelledError):
                await self._forward_responses(from_server, to_client, is_response_due)
                await requests
        finally:
            requests.cancel()
            self._writers -= pair
            for writer in pair:
                writer.close()

    async def _forward_requests(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, is_response_due: asyncio.Event
    ) -> None:
        unparsed = b""
        with suppress(OSError):
            while chunk := await source.read(CHUNK_BYTES):
                unparsed = self._count_requests(unparsed + chunk)
                await self._wait_if_slow()
                is_response_due.set()
                target.write(chunk)
                await target.drain()
            _half_close(target)

    async def _forward_responses(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, is_response_due: asyncio.Event
    ) -> None:
        with suppress(OSError):
            while chunk := await source.read(CHUNK_BYTES):
                if self.responses_to_cut > 0:
                    self.responses_to_cut -= 1
                    self.injected += 1
                    target.transport.abort()
                    return
                if self.fault is NetworkFaultKind.LOSE_RESPONSES:
                    self.injected += 1
                    break
                await self._wait_if_slow()
                if is_response_due.is_set():
                    is_response_due.clear()
                    target.write(self.interim_responses)
                target.write(chunk)
                await target.drain()
            _half_close(target)

    async def _wait_if_slow(self) -> None:
        if self.fault is NetworkFaultKind.DELAY:
            self.injected += 1
            await asyncio.sleep(DELAY_S)
        elif self.fault is NetworkFaultKind.HOLD:
            self.injected += 1
            await self._is_clear.wait()

    def _count_requests(self, data: bytes) -> bytes:
        """Count the complete headers in `data`. Returns its tail, which may hold the start of another one."""
        end = 0
        for match in _OPERATION.finditer(data):
            self.request_counts[match[1].decode()] += 1
            end = match.end()
        return data[max(end, len(data) - HEADER_BYTES_MAX) :]


def _half_close(target: asyncio.StreamWriter) -> None:
    """End one direction of a connection. The other direction may continue."""
    if target.can_write_eof():
        target.write_eof()


@dataclass
class Proxies:
    """Proxies on one event loop, controlled from other threads."""

    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _proxies: list[Proxy] = field(default_factory=list)

    def start(self, url: str) -> Proxy:
        """Start a proxy in front of the server at `url`."""
        address = urlparse(url)
        assert address.hostname is not None
        assert address.port is not None
        proxy = Proxy((address.hostname, address.port))
        asyncio.run_coroutine_threadsafe(proxy.start(), self._loop).result()
        self._proxies.append(proxy)
        return proxy

    def set_fault(self, proxy: Proxy, fault: NetworkFaultKind) -> None:
        """Inject a fault into the connections through a proxy."""
        self._loop.call_soon_threadsafe(proxy.set_fault, fault)

    def clear_fault(self, proxy: Proxy) -> None:
        """End the fault of a proxy."""
        self._loop.call_soon_threadsafe(proxy.clear_fault)

    async def _close(self) -> None:
        for proxy in self._proxies:
            proxy.close()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def run_proxies() -> Iterator[Proxies]:
    """Proxies that run until the block ends."""
    proxies = Proxies()
    thread = threading.Thread(target=proxies._loop.run_forever, name="proxies", daemon=True)
    thread.start()
    try:
        yield proxies
    finally:
        asyncio.run_coroutine_threadsafe(proxies._close(), proxies._loop).result()
        proxies._loop.call_soon_threadsafe(proxies._loop.stop)
        thread.join()
        proxies._loop.close()


@contextmanager
def run_proxy(url: str) -> Iterator[Proxy]:
    """One proxy in front of the server at `url`, until the block ends."""
    with run_proxies() as proxies:
        yield proxies.start(url)
