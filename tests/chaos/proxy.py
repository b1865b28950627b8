"""TCP proxies on loopback, each in front of one server, that cut, delay, half-close and hold back what passes them."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlparse

from tests.chaos.fault_plan import NetworkFaultKind

DELAY_S = 0.4  # a piece; an answer that comes in several takes a multiple of it
_PIECE = 65_536


@dataclass(eq=False)
class Proxy:
    """Passes connections on to `target`, as well as `how` lets it. Lives on one event loop."""

    target: tuple[str, int]
    how: NetworkFaultKind | None = None
    hurt: int = 0  # connections that were cut or half-closed, or pieces that came late
    url: str = ""
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _calm: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None

    async def start(self) -> None:
        """Listen on a free port."""
        self._calm.set()
        self._server = await asyncio.start_server(self._joined, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def close(self) -> None:
        """Let go of everything."""
        assert self._server is not None
        self._server.close()
        self.calm()
        self._cut()

    def trouble(self, how: NetworkFaultKind) -> None:
        """From now on, connections suffer."""
        self.how = how
        self._calm.clear()
        if how is NetworkFaultKind.CUT:
            self._cut()

    def calm(self) -> None:
        """From now on, connections are fine. What was held back goes on."""
        self.how = None
        self._calm.set()

    def _cut(self) -> None:
        self.hurt += len(self._open) // 2
        for each in self._open:
            each.transport.abort()

    async def _joined(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        if self.how is NetworkFaultKind.CUT:
            to_client.transport.abort()
            self.hurt += 1
            return
        try:
            from_server, to_server = await asyncio.open_connection(*self.target)
        except OSError:
            to_client.transport.abort()
            return
        pair = {to_client, to_server}
        self._open |= pair
        requests = asyncio.create_task(self._pass_on(from_client, to_server, is_answer=False))
        try:
            with suppress(
                asyncio.CancelledError
            ):  # the end of all proxies; asyncio would tell it as an error
                await self._pass_on(from_server, to_client, is_answer=True)
                await requests
        finally:
            requests.cancel()
            self._open -= pair
            for each in pair:
                each.close()

    async def _pass_on(
        self, source: asyncio.StreamReader, target: asyncio.StreamWriter, *, is_answer: bool
    ) -> None:
        """One direction of a connection, until its source ends or a fault ends it."""
        with suppress(OSError):
            while piece := await source.read(_PIECE):
                if self.how is NetworkFaultKind.LOSE_ANSWERS and is_answer:
                    self.hurt += 1
                    break
                if self.how in {NetworkFaultKind.DELAY, NetworkFaultKind.HOLD}:
                    self.hurt += 1
                    await (
                        asyncio.sleep(DELAY_S) if self.how is NetworkFaultKind.DELAY else self._calm.wait()
                    )
                target.write(piece)
                await target.drain()
            if target.can_write_eof():
                target.write_eof()  # half-closed: the other direction may go on


@dataclass
class Proxies:
    """Proxies on an event loop of their own, commanded from other threads."""

    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.new_event_loop)
    _all: list[Proxy] = field(default_factory=list)

    def in_front_of(self, url: str) -> Proxy:
        """A new proxy for a server."""
        address = urlparse(url)
        assert address.hostname is not None
        assert address.port is not None
        proxy = Proxy((address.hostname, address.port))
        asyncio.run_coroutine_threadsafe(proxy.start(), self._loop).result()
        self._all.append(proxy)
        return proxy

    def trouble(self, proxy: Proxy, how: NetworkFaultKind) -> None:
        """Make the connections through a proxy suffer."""
        self._loop.call_soon_threadsafe(proxy.trouble, how)

    def calm(self, proxy: Proxy) -> None:
        """Leave them alone again."""
        self._loop.call_soon_threadsafe(proxy.calm)

    async def _close(self) -> None:
        for proxy in self._all:
            proxy.close()
        ours = asyncio.all_tasks() - {asyncio.current_task()}
        for task in ours:
            task.cancel()
        await asyncio.gather(*ours, return_exceptions=True)


@contextmanager
def proxies() -> Iterator[Proxies]:
    """Proxies that run until the block is left."""
    running = Proxies()
    thread = threading.Thread(target=running._loop.run_forever, name="proxies", daemon=True)
    thread.start()
    try:
        yield running
    finally:
        asyncio.run_coroutine_threadsafe(running._close(), running._loop).result()
        running._loop.call_soon_threadsafe(running._loop.stop)
        thread.join()
        running._loop.close()
