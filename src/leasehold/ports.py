"""The seams to the outside: what the fleet needs, said without naming who provides it.

All of them are asynchronous, because the fleet is. A lost race is a returned value; a failure of the world is an
exception from `leasehold.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from leasehold.core.leases.row_writes import Row, RowWrite
from leasehold.core.model import ChildShard, Shard, ShardId, StreamIdentifier
from leasehold.core.record import Record
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.lease_creation import ShardFilter


@dataclass(frozen=True, slots=True)
class Applied:
    """The write took place. `row` is the row after it, None after a deletion."""

    row: Row | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The condition did not hold. `row` is the row as it is, None if there is none."""

    row: Row | None


class RowStore(Protocol):
    """One table of rows with conditional writes: DynamoDB, a SQLite file, or memory.

    Every read of a single row sees all writes that were answered before it began. A scan may be behind. Rows carry
    DynamoDB's attribute types, and attributes that nobody here knows are kept.

    A write that raises `UnavailableError` may or may not have happened. `ThrottledError` means that it did not.
    """

    async def prepare(self) -> None:
        """Create the table and its index of owners where they are missing. Waits for the table, not for the index."""
        ...

    async def create_owner_index(self) -> None:
        """Make sure that an index of owners is there, or being made; for a table that was prepared without one."""
        ...

    async def get(self, key: str) -> Row | None:
        """The row as it is now, or None."""
        ...

    async def write(self, write: RowWrite) -> Applied | Refused:
        """Apply one write if its condition holds."""
        ...

    async def write_transaction(self, writes: Sequence[RowWrite]) -> bool:
        """Apply all writes, or, when a condition does not hold, none. Says which of the two."""
        ...

    async def scan(self, *, segments: int = 1) -> Sequence[Row]:
        """Every row, read page by page, in `segments` parallel lanes. May miss the newest writes."""
        ...

    async def keys_owned_by(self, owner: str) -> Sequence[str] | None:
        """Keys of the rows whose `leaseOwner` is `owner`, through the index; may be behind.

        None when there is no index, or none that can be read yet: then only a scan knows.
        """
        ...

    async def close(self) -> None:
        """Give back connections and threads. Rows stay."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """One answer of a shard. `next_iterator` is None at its end, and then `children` names who goes on."""

    records: Sequence[Record]
    next_iterator: str | None
    millis_behind: int | None = None
    children: tuple[ChildShard, ...] = ()


class Stream(Protocol):
    """One Kinesis stream, read by polling."""

    async def identifier(self) -> StreamIdentifier:
        """Whose it is, what it is called and when it was made: the name of a stream in a table of several.

        Raises NotFoundError, ThrottledError, UnavailableError.
        """
        ...

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        """Every shard that is still retained, or those that the filter lets through. All pages."""
        ...

    async def iterator(self, shard: ShardId, start: IteratorStart) -> str:
        """A token for reading on from `start`; good for five minutes. NotFoundError: the shard is gone."""
        ...

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        """The next records, at most `limit` and ten megabytes. An empty page is not the end.

        Raises IteratorExpiredError, ThrottledError, NotFoundError, UnavailableError.
        """
        ...

    async def close(self) -> None:
        """Give back connections and threads."""
        ...


@dataclass(frozen=True, slots=True)
class Created:
    """The object was not there, and is now."""


@dataclass(frozen=True, slots=True)
class Exists:
    """An object of that name is there. It may be one's own: a client that tried twice hears this of its first try."""


@dataclass(frozen=True, slots=True)
class StoredObject:
    """An object as a listing shows it."""

    key: str
    size_bytes: int


class ObjectStore(Protocol):
    """Objects under names, below one root: S3 and its like, a folder, or memory.

    An object appears whole or not at all, and is never replaced. Whoever asks after an answered `put_if_absent` sees
    the object, in listings too. UnavailableError: the call may have happened; try again.
    """

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        """Write an object whole, unless there is one of that name. Of several at a time, one creates it."""
        ...

    async def size(self, key: str) -> int | None:
        """How many bytes an object has; None if there is none."""
        ...

    async def get(self, key: str) -> bytes | None:
        """An object's content; None if there is none."""
        ...

    def list_after(self, offset: str, *, prefix: str = "") -> AsyncIterator[Sequence[StoredObject]]:
        """The objects below `prefix` (whole segments) whose names come after `offset`, in portions, in any order."""
        ...


class LoadMeter(Protocol):
    """How busy this member is."""

    async def percent(self) -> float | None:
        """0 to 100, since the last call; None if it cannot be told, as at the first call."""
        ...


class Clock(Protocol):
    """Time, as this process sees it."""

    def now_ms(self) -> int:
        """Monotonic. Leases are judged by it; it never jumps, and means nothing to other machines."""
        ...

    def wall_ms(self) -> int:
        """Epoch time. For showing, never for deciding who owns what."""
        ...

    async def sleep_ms(self, duration_ms: int) -> None:
        """Wait."""
        ...
