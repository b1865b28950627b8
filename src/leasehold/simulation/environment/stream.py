"""The stream as one process reads it: the local server's model of Kinesis, over the simulated network.

Reads have the quirks of the real service: iterators that expire early, and empty pages although more records follow.
The list of all streams is reached over the network, too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from leasehold.adapters.memory.directory import MemoryDirectory
from leasehold.adapters.memory.stream import MemoryStream
from leasehold.core.model import Shard, ShardId, StreamIdentifier
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter
from leasehold.errors import IteratorExpiredError
from leasehold.ports import Page, Stream, StreamDirectory, StreamFilter
from leasehold.simulation.environment.network import Dependency, Network
from leasehold.simulation.environment.process import SimulatedProcess
from leasehold.simulation.environment.table import run_synchronously

T = TypeVar("T")


@dataclass(slots=True)
class StreamQuirks:
    """How often reads show behaviour that is rare but correct."""

    rng: random.Random
    expired_chance: float = 0.0
    empty_chance: float = 0.0

    def clear(self) -> None:
        """End the quirks."""
        self.expired_chance = self.empty_chance = 0.0


class PageListener(Protocol):
    """Gets what processes read."""

    def page_read(self, process: SimulatedProcess, stream: str, page: Page) -> None: ...


class ProcessStream(Stream):
    """One stream, read by one process over the network."""

    def __init__(
        self,
        stream: MemoryStream,
        *,
        name: str,
        network: Network,
        process: SimulatedProcess,
        quirks: StreamQuirks,
        listener: PageListener,
    ) -> None:
        self._stream = stream
        self._name = name
        self._network = network
        self._process = process
        self._quirks = quirks
        self._listener = listener

    async def get_identifier(self) -> StreamIdentifier:
        """Return the account, name and creation time of the stream."""
        return await self._call("identifier", lambda: run_synchronously(self._stream.get_identifier()))

    async def get_retention_ms(self) -> int:
        """Return how long the stream keeps a record."""
        return await self._call("retention", lambda: run_synchronously(self._stream.get_retention_ms()))

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        """Return all shards, or those that match the filter."""
        return await self._call(
            "list_shards", lambda: run_synchronously(self._stream.list_shards(shard_filter))
        )

    async def get_iterator(self, shard: ShardId, start: IteratorStart) -> str:
        """Return a shard iterator from `start` on."""
        return await self._call(
            "iterator", lambda: run_synchronously(self._stream.get_iterator(shard, start))
        )

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        """Return the next records."""
        page = await self._call("get_records", lambda: self._read_page(iterator, limit))
        self._listener.page_read(self._process, self._name, page)
        return page

    async def close(self) -> None:
        """Do nothing: other processes read the same stream."""

    def _read_page(self, iterator: str, limit: int) -> Page:
        quirks = self._quirks
        if quirks.expired_chance and quirks.rng.random() < quirks.expired_chance:
            raise IteratorExpiredError("iterator expired before its time")
        page = run_synchronously(self._stream.get_records(iterator, limit=limit))
        if quirks.empty_chance and page.records and quirks.rng.random() < quirks.empty_chance:
            return Page((), iterator, 1_000)
        return page

    async def _call(self, name: str, serve: Callable[[], T]) -> T:
        return await self._network.call(self._process, Dependency.STREAM, name, serve)


class ProcessDirectory(StreamDirectory):
    """The streams of the account, listed and opened by one process over the network."""

    def __init__(
        self,
        directory: MemoryDirectory,
        network: Network,
        process: SimulatedProcess,
        open_stream: Callable[[str], ProcessStream],
    ) -> None:
        self._directory = directory
        self._network = network
        self._process = process
        self._open_stream = open_stream

    async def list_streams(self, which: StreamFilter) -> Mapping[str, StreamIdentifier]:
        """Return all streams that match."""
        return await self._network.call(
            self._process,
            Dependency.STREAM,
            "list_streams",
            lambda: run_synchronously(self._directory.list_streams(which)),
        )

    def open_stream(self, name: str, identifier: StreamIdentifier | None = None) -> Stream:  # noqa: ARG002
        """Open a stream by its name."""
        return self._open_stream(name)

    async def close(self) -> None:
        """Do nothing: other processes list the same streams."""
