"""Interfaces to the outside (ports): what the fleet needs from stores, streams and clocks. Adapters implement them.

All of them are asynchronous, because the fleet is. A lost race is a return value; a failure of a service is an
exception from `leasehold.errors`.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from leasehold.core.leases.row_writes import Row, RowWrite
from leasehold.core.model import ChildShard, Shard, ShardId, StreamIdentifier
from leasehold.core.record import Record
from leasehold.core.records.iterators import IteratorStart
from leasehold.core.shards.archived_shards import ArchivedShard
from leasehold.core.shards.lease_creation import ShardFilter


@dataclass(frozen=True, slots=True)
class Applied:
    """The write was applied. `row` is the row after it, None after a deletion."""

    row: Row | None


@dataclass(frozen=True, slots=True)
class Refused:
    """The condition did not hold. `row` is the current row, None if there is none."""

    row: Row | None


class RowStore(Protocol):
    """One table of rows with conditional writes: DynamoDB, a SQLite file, or memory.

    A read of a single row is consistent: it returns every write that was confirmed before the read began. A scan may
    miss recent writes, unless it is asked to be consistent. Rows use DynamoDB's attribute types; unknown attributes are
    kept.

    A write that raises `UnavailableError` may or may not have been applied. A write that raises `ThrottledError` was
    not.
    """

    async def prepare(self) -> None:
        """Create the table and its index of owners if they are missing. Waits for the table, not for the index."""
        ...

    async def create_owner_index(self) -> None:
        """Create the index of owners if it is missing, for a table that was prepared without one. Does not wait for
        it.
        """
        ...

    async def get(self, key: str) -> Row | None:
        """The current row, or None. A consistent read."""
        ...

    async def write(self, write: RowWrite) -> Applied | Refused:
        """Apply one write if its condition holds."""
        ...

    async def write_transaction(self, writes: Sequence[RowWrite]) -> bool:
        """Apply all writes, or none if one condition does not hold. Returns whether they were applied."""
        ...

    async def scan(self, *, segments: int = 1, is_consistent: bool = False) -> Sequence[Row]:
        """Every row, read page by page in `segments` parallel scans. May miss recent writes, unless `is_consistent`."""
        ...

    async def keys_owned_by(self, owner: str) -> Sequence[str] | None:
        """Keys of the rows whose `leaseOwner` is `owner`, from the index. May miss recent writes.

        None if there is no index that can be read yet. Then the caller has to scan.
        """
        ...

    async def close(self) -> None:
        """Close connections and threads. The rows stay."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """One GetRecords response. At the end of a shard `next_iterator` is None and `children` lists the child shards.

    A page of an archive has `UserRecord`s instead: all that belong to one Kinesis record are in one page.
    """

    records: Sequence[Record]
    next_iterator: str | None
    millis_behind: int | None = None
    children: tuple[ChildShard, ...] = ()


class Stream(Protocol):
    """One Kinesis stream, read by polling."""

    async def get_identifier(self) -> StreamIdentifier:
        """Account, name and creation time: the name of a stream in a lease table of several streams.

        Raises NotFoundError, ThrottledError, UnavailableError.
        """
        ...

    async def get_retention_ms(self) -> int:
        """How long the stream keeps a record. Raises as `get_identifier`."""
        ...

    async def list_shards(self, shard_filter: ShardFilter | None = None) -> Sequence[Shard]:
        """All pages of the shards that are still retained, or of those that match the filter."""
        ...

    async def list_archived(self, from_ms: int | None = None) -> Sequence[ArchivedShard]:  # noqa: ARG002
        """The shards whose records can also be read from an archive, from this time on; also shards that have left the
        stream. None without an archive.
        """
        return ()

    async def get_iterator(self, shard: ShardId, start: IteratorStart) -> str:
        """A shard iterator that starts at `start`. It expires after five minutes. NotFoundError: the shard is gone."""
        ...

    async def get_records(self, iterator: str, *, limit: int) -> Page:
        """The next records, at most `limit` and ten megabytes. An empty page does not mean the end of the shard.

        Raises IteratorExpiredError, ThrottledError, NotFoundError, UnavailableError.
        """
        ...

    async def close(self) -> None:
        """Close connections and threads."""
        ...


@dataclass(frozen=True, slots=True)
class ConsumerDescription:
    """A registered consumer of a stream, for enhanced fan-out. `status` is CREATING, ACTIVE or DELETING."""

    name: str
    arn: str
    status: str
    created_ms: int

    @property
    def is_active(self) -> bool:
        """Only an ACTIVE consumer can subscribe."""
        return self.status == "ACTIVE"


@dataclass(frozen=True, slots=True)
class SubscriptionEvent:
    """One event of a subscription. It has no records if none arrived for a while.

    `continuation` is a sequence number at which a later subscription continues, even if the event has no records. It
    is the number of the last record, or a higher one before the next record. At the end of a shard it is None, and
    `children` lists the child shards.
    """

    records: Sequence[Record]
    continuation: str | None
    millis_behind: int | None = None
    children: tuple[ChildShard, ...] = ()


class Subscription(Protocol):
    """A subscription of a consumer to a shard: an iterator of events, which the service ends after five minutes.

    The caller asks for one event at a time. An adapter holds back the connection, not the caller, while no event is
    requested. The iterator stops after the event at the end of the shard, or when the service ends the subscription in
    an orderly way. Every other end is an error: InUseError if another subscription replaced this one, NotFoundError
    if the consumer or the shard is gone, ThrottledError, or UnavailableError for a connection that broke, bytes that
    cannot be decoded included. After an error or a cancelled `__anext__`, only `close` is called.
    """

    def __aiter__(self) -> Subscription: ...

    async def __anext__(self) -> SubscriptionEvent: ...

    def has_received(self) -> bool:
        """Whether a part of an event has arrived since the last call. Never, if events arrive whole."""
        return False

    async def close(self) -> None:
        """Close the connection at once. Safe to call more than once; never raises a ServiceError."""
        ...


class FanOut(Protocol):
    """The registered consumers of one stream, and their subscriptions to its shards (enhanced fan-out)."""

    async def register_consumer(self, name: str) -> ConsumerDescription:
        """Register a consumer. It can subscribe once it is ACTIVE.

        Raises InUseError if one of this name exists; ThrottledError also if the stream has its 20 consumers.
        """
        ...

    async def describe_consumer(self, name_or_arn: str) -> ConsumerDescription:
        """Describe a consumer of this stream, by name or ARN. NotFoundError: there is none."""
        ...

    async def list_consumers(self) -> Sequence[ConsumerDescription]:
        """All pages of the consumers of the stream."""
        ...

    async def deregister_consumer(self, arn: str) -> None:
        """Delete a consumer. Its subscriptions end. NotFoundError: there is none."""
        ...

    async def require_stream(self) -> None:
        """Raise NotFoundError if the stream does not exist, or is being deleted."""
        ...

    async def subscribe(self, consumer_arn: str, shard: ShardId, start: IteratorStart) -> Subscription:
        """Subscribe a consumer to a shard. Returns once the service has accepted the subscription.

        It replaces an earlier subscription of the consumer to the shard, unless that one began less than five seconds
        ago: then InUseError. Also raises NotFoundError (no such consumer, stream or shard), ThrottledError,
        UnavailableError.
        """
        ...

    async def close(self) -> None:
        """Close connections and threads."""
        ...


@dataclass(frozen=True, slots=True)
class StreamFilter:
    """Which streams of an account to list: those whose name and whose tags match. An empty text matches all.

    A tag is `key` or `key=value`.
    """

    prefix: str = ""
    tag: str = ""

    def matches_tags(self, tags: Mapping[str, str]) -> bool:
        """Whether the tags of a stream match."""
        key, sign, value = self.tag.partition("=")
        return not self.tag or (key in tags and (not sign or tags[key] == value))


class StreamDirectory(Protocol):
    """The streams of an account: lists and opens them."""

    async def list_streams(self, which: StreamFilter) -> Mapping[str, StreamIdentifier]:
        """The identifiers of all streams that can be read, by name. Streams that are being deleted are left out.

        Raises ThrottledError, UnavailableError, ServiceError.
        """
        ...

    def open_stream(self, name: str, identifier: StreamIdentifier | None = None) -> Stream:
        """Open a stream by its name, its ARN or its identifier. The caller closes it."""
        ...

    async def close(self) -> None:
        """Close connections and threads, but not the streams that were opened."""
        ...


@dataclass(frozen=True, slots=True)
class Created:
    """The object did not exist and was created."""


@dataclass(frozen=True, slots=True)
class Exists:
    """An object with that name exists. It may be the caller's own, if an earlier attempt succeeded and its response
    was lost.
    """


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One entry of a listing."""

    key: str
    size_bytes: int
    modified_ms: int | None = field(
        default=None, compare=False
    )  # by the store's clock; None: the store has none


class ObjectStore(Protocol):
    """Named objects below one root: S3 or a compatible store, a folder, or memory.

    An object is created whole or not at all, and is never replaced. After a confirmed `put_if_absent`, reads and
    listings return the object. UnavailableError: the call may have been executed; retry it.
    """

    async def put_if_absent(self, key: str, body: bytes) -> Created | Exists:
        """Create an object, unless one with that name exists. Of several concurrent calls, exactly one creates it."""
        ...

    async def size(self, key: str) -> int | None:
        """The size of an object in bytes; None if it does not exist."""
        ...

    async def get(self, key: str) -> bytes | None:
        """The content of an object; None if it does not exist."""
        ...

    async def delete(self, key: str) -> None:
        """Delete an object. Does nothing if it does not exist."""
        ...

    def list_after(self, offset: str, *, prefix: str = "") -> AsyncGenerator[Sequence[StoredObject], None]:
        """The objects below `prefix` (whole segments) whose names sort after `offset`, page by page, in any order."""
        ...


class LoadMeter(Protocol):
    """Measures how busy this member is."""

    async def percent(self) -> float | None:
        """Load since the last call, 0 to 100; None if unknown, as at the first call."""
        ...


class Clock(Protocol):
    """The clock of this process."""

    def now_ms(self) -> int:
        """Monotonic time, used to decide whether leases have expired. Never jumps; not comparable between machines."""
        ...

    def wall_ms(self) -> int:
        """Epoch time. For display only, never to decide ownership."""
        ...

    async def sleep_ms(self, duration_ms: int) -> None:
        """Wait."""
        ...
