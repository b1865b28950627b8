"""`KinesisModel`: every operation of the Kinesis service as a method. The caller passes in the time.

No method waits, draws a random number or reads a clock, so the same calls give the same responses. The model is not
safe for use by several threads.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from leasehold.core.model import ShardId
from leasehold.kinesis_model import listing, reading, resharding, writing
from leasehold.kinesis_model.account import Account
from leasehold.kinesis_model.api_errors import (
    in_use_error,
    invalid_argument_error,
    limit_exceeded_error,
    not_found_error,
    validation_error,
)
from leasehold.kinesis_model.consumers import Consumer
from leasehold.kinesis_model.listing import ListQuery, ShardsPage
from leasehold.kinesis_model.reading import RecordsPage, ShardIterator, StartingPosition
from leasehold.kinesis_model.record_log import memory_bytes
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.kinesis_model.shard import ShardState
from leasehold.kinesis_model.stream import (
    HOUR_MS,
    RECORD_KIB_DEFAULT,
    RETENTION_HOURS_MAX,
    RETENTION_HOURS_MIN,
    CreateShards,
    Epochs,
    Merge,
    PendingChange,
    Reshard,
    Scale,
    Split,
    StreamConfig,
    StreamMode,
    StreamState,
    StreamStatus,
)
from leasehold.kinesis_model.stream_clock import StreamClock
from leasehold.kinesis_model.writing import PutFailure, PutRequest, PutResult

ON_DEMAND_SHARDS: Final = 4
CONSUMERS_MAX: Final = 20
TAGS_MAX: Final = 50
SCALINGS_PER_DAY_MAX: Final = 10
RECORD_KIB_MAX: Final = 10_240
# A client that copies its buffer for each frame is still fast with events of this size.
EVENT_BYTES_MAX: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription of a consumer to a shard. It ends at `ends_ms`, or earlier if another one replaces it."""

    stream_name: str
    consumer_name: str
    shard_id: ShardId
    subscription_id: int
    next_number: int
    ends_ms: int


class KinesisModel:
    """All streams of one account."""

    def __init__(self, account: Account | None = None, settings: ServiceSettings | None = None) -> None:
        self.account = account or Account()
        self.settings = settings or ServiceSettings()
        self.streams: dict[str, StreamState] = {}
        self.epochs = Epochs()
        # At most this much memory is used by records. None: unknown, as after streams were restored from a file.
        self._memory_bound: int | None = None

    # Streams

    def create_stream(
        self,
        now_ms: int,
        name: str,
        *,
        shard_count: int | None = None,
        mode: StreamMode = StreamMode.PROVISIONED,
        tags: Mapping[str, str] | None = None,
        record_kib_max: int = RECORD_KIB_DEFAULT,
    ) -> None:
        """Create a stream. Its shards exist once it is ACTIVE."""
        if self._find(now_ms, name):
            raise in_use_error(f"Stream {name} under account {self.account.id} already exists.")
        count = self._require_shard_count(name, shard_count, mode)
        stream = StreamState(
            name=name,
            account=self.account,
            created_ms=now_ms,
            epochs=self.epochs,
            clock=StreamClock.start(now_ms),
            config=StreamConfig(mode=mode, record_kib_max=record_kib_max),
        )
        add_tags(stream, tags or {})
        self.streams[name] = stream
        self._begin_change(stream, StreamStatus.CREATING, now_ms, CreateShards(count))

    def delete_stream(self, now_ms: int, name: str, *, with_consumers: bool = False) -> None:
        """Delete a stream with its records."""
        stream = self.stream(now_ms, name)
        if stream.consumers and not with_consumers:
            raise in_use_error(
                f"Stream {stream.label} has {len(stream.consumers)} consumers. Deregister them, or set "
                "EnforceConsumerDeletion."
            )
        if stream.status is not StreamStatus.DELETING:
            self._begin_change(stream, StreamStatus.DELETING, now_ms)

    def stream(self, now_ms: int, name: str) -> StreamState:
        """Return a stream, in any status."""
        stream = self._find(now_ms, name)
        if stream is None:
            raise not_found_error(
                f"Stream {name} under account {self.account.id} not found (region {self.account.region})."
            )
        return stream

    def stream_names(self, now_ms: int, after: str | None = None) -> list[str]:
        """Return the sorted names of all streams, or of those after the given name."""
        for name in list(self.streams):
            self._find(now_ms, name)
        names = sorted(self.streams)
        return names[bisect_right(names, after) :] if after else names

    def open_shard_count(self) -> int:
        return sum(len(stream.open_shards) for stream in self.streams.values())

    def update_mode(self, now_ms: int, name: str, mode: StreamMode) -> None:
        stream = self._active_stream(now_ms, name)
        if stream.config.mode is not mode:
            stream.config.mode = mode
            self._begin_change(stream, StreamStatus.UPDATING, now_ms)

    def encrypt(self, now_ms: int, name: str, kms_key: str | None) -> None:
        """Store the name of the encryption key. The model encrypts nothing."""
        stream = self._active_stream(now_ms, name)
        stream.config.kms_key = kms_key
        self._begin_change(stream, StreamStatus.UPDATING, now_ms)

    def set_record_size(self, now_ms: int, name: str, record_kib_max: int) -> None:
        stream = self._active_stream(now_ms, name)
        stream.config.record_kib_max = record_kib_max
        self._begin_change(stream, StreamStatus.UPDATING, now_ms)

    def increase_retention(self, now_ms: int, name: str, hours: int) -> None:
        """Retain records for longer. Trimmed records do not come back."""
        stream = self._begin_retention_change(now_ms, name, hours)
        if hours < stream.config.retention_hours:
            raise invalid_argument_error(
                f"Requested retention period ({hours} hours) for stream {name} can not be shorter than existing "
                f"retention period ({stream.config.retention_hours} hours). Use DecreaseStreamRetentionPeriod."
            )
        stream.config.retention_hours = hours

    def decrease_retention(self, now_ms: int, name: str, hours: int) -> None:
        """Retain records for a shorter time. Older records are trimmed at once."""
        stream = self._begin_retention_change(now_ms, name, hours)
        if hours > stream.config.retention_hours:
            raise invalid_argument_error(
                f"Requested retention period ({hours} hours) for stream {name} can not be longer than existing "
                f"retention period ({stream.config.retention_hours} hours). Use IncreaseStreamRetentionPeriod."
            )
        stream.config.retention_hours = hours
        stream.trim()

    # Shards

    def split_shard(self, now_ms: int, name: str, shard_id: str, hash_key: int) -> None:
        self._reshard(now_ms, name, Split(ShardId(shard_id), hash_key))

    def merge_shards(self, now_ms: int, name: str, lower: str, upper: str) -> None:
        self._reshard(now_ms, name, Merge(ShardId(lower), ShardId(upper)))

    def update_shard_count(self, now_ms: int, name: str, target: int) -> int:
        """Scale to `target` shards of equal size. Returns the number of shards that were open before."""
        stream = self._active_stream(now_ms, name)
        before = len(stream.open_shards)
        self._require_scalings_left(stream)
        self._require_shards_left(max(0, target - before))
        self._reshard(now_ms, name, Scale(target))
        stream.scaled_at_ms.append(stream.clock.now_ms)
        return before

    def list_shards(self, now_ms: int, query: ListQuery, limit: int = listing.PAGE_DEFAULT) -> ShardsPage:
        """Return a page of shards. Refuse while the stream is CREATING or DELETING."""
        stream = self.stream(now_ms, query.stream_name)
        if stream.status in {StreamStatus.CREATING, StreamStatus.DELETING}:
            stream.require_active()
        return listing.list_shards(stream, query, limit, now_ms)

    def list_query_from_token(self, now_ms: int, token: str) -> ListQuery:
        return listing.query_from_token(token, now_ms, self.settings.list_token_lifetime_ms)

    # Records

    def put_record(self, now_ms: int, name: str, entry: PutRequest) -> PutResult:
        stream = self._readable_stream(now_ms, name)
        self._require_memory(now_ms, [entry])
        return writing.put_record(
            stream, entry, stream.clock.begin_write(), enforce_limits=self.settings.enforce_limits
        )

    def put_records(
        self, now_ms: int, name: str, entries: Sequence[PutRequest]
    ) -> list[PutResult | PutFailure]:
        stream = self._readable_stream(now_ms, name)
        self._require_memory(now_ms, entries)
        return writing.put_records(
            stream, entries, stream.clock.begin_write(), enforce_limits=self.settings.enforce_limits
        )

    def shard_iterator(self, now_ms: int, name: str, shard_id: str, start: StartingPosition) -> str:
        """Return an iterator at this position, as text."""
        stream = self._readable_stream(now_ms, name)
        next_number = reading.resolve_start(stream, stream.shard(shard_id), start, stream.clock.now_ms)
        return reading.iterator_to_text(ShardIterator(name, shard_id, next_number, now_ms))

    def iterator(self, now_ms: int, text: str) -> ShardIterator:
        """Decode an iterator. Refuse it if this server did not issue it or if it has expired."""
        return reading.iterator_from_text(text, now_ms, self.settings.iterator_lifetime_ms)

    def get_records(
        self, now_ms: int, iterator: ShardIterator, limit: int = reading.RECORDS_PER_PAGE_MAX
    ) -> RecordsPage:
        """Return the page of records at an iterator."""
        stream = self._readable_stream(now_ms, iterator.stream_name)
        shard = stream.shard(iterator.shard_id)
        reading.require_number_in_shard(shard, iterator.next_number)
        if self.settings.enforce_limits:
            reading.require_read_capacity(stream, shard, now_ms)
        page = self._read_page(stream, shard, iterator.next_number, limit, reading.BYTES_PER_PAGE_MAX)
        if self.settings.enforce_limits:
            shard.limits.count_read(now_ms, page.records.size)
        return page

    def next_iterator(self, now_ms: int, iterator: ShardIterator, page: RecordsPage) -> str | None:
        """Return the iterator after a page, or None after the last page of a closed shard."""
        if page.next_number is None:
            return None
        following = ShardIterator(iterator.stream_name, iterator.shard_id, page.next_number, now_ms)
        return reading.iterator_to_text(following)

    # Consumers

    def register_consumer(self, now_ms: int, stream_name: str, name: str) -> Consumer:
        stream = self._readable_stream(now_ms, stream_name)
        if name in stream.consumers:
            raise in_use_error(f"Consumer {name} under stream {stream.label} already exists.")
        if len(stream.consumers) >= CONSUMERS_MAX:
            raise limit_exceeded_error(
                f"Stream {stream.label} has {CONSUMERS_MAX} consumers, which is the limit. Deregister one first."
            )
        arn = self.account.consumer_arn(stream_name, name, now_ms)
        consumer = Consumer(name, arn, now_ms, now_ms + self.settings.status_delay_ms)
        stream.consumers[name] = consumer
        return consumer

    def consumer(self, now_ms: int, stream_name: str, name: str) -> Consumer:
        consumer = self.stream(now_ms, stream_name).consumers.get(name)
        if consumer is None:
            raise not_found_error(
                f"Consumer {name} under stream {stream_name} under account {self.account.id} not found."
            )
        return consumer

    def deregister_consumer(self, now_ms: int, stream_name: str, name: str) -> None:
        self.consumer(now_ms, stream_name, name)
        del self.stream(now_ms, stream_name).consumers[name]

    def subscribe(
        self, now_ms: int, consumer_arn: str, shard_id: str, start: StartingPosition
    ) -> Subscription:
        """Subscribe a consumer to a shard. A subscription that began `takeover_after_ms` ago is replaced."""
        name, stream_name = self.account.parse_consumer_arn(consumer_arn)
        stream = self._readable_stream(now_ms, stream_name)
        consumer = self.consumer(now_ms, stream_name, name)
        if consumer.arn != consumer_arn:
            raise not_found_error(
                f"Consumer {consumer_arn} not found: the consumer {name} was registered again as {consumer.arn}."
            )
        if consumer.status(now_ms) != "ACTIVE":
            raise in_use_error(f"Consumer {name} is not ACTIVE, instead in state {consumer.status(now_ms)}.")
        shard = stream.shard(shard_id)
        next_number = reading.resolve_start(stream, shard, start, stream.clock.now_ms)
        subscription_id = consumer.subscribe(shard.id, now_ms, self.settings.takeover_after_ms)
        ends_ms = now_ms + self.settings.subscription_lifetime_ms
        return Subscription(stream_name, name, shard.id, subscription_id, next_number, ends_ms)

    def is_current_subscription(self, now_ms: int, subscription: Subscription) -> bool:
        """False once another subscription replaced this one, or its consumer was deregistered."""
        stream = self._find(now_ms, subscription.stream_name)
        consumer = stream and stream.consumers.get(subscription.consumer_name)
        return bool(consumer and consumer.is_current(subscription.shard_id, subscription.subscription_id))

    def read_subscription(self, now_ms: int, subscription: Subscription, next_number: int) -> RecordsPage:
        """Return the next page of a subscription."""
        stream = self._readable_stream(now_ms, subscription.stream_name)
        shard = stream.shard(subscription.shard_id)
        return self._read_page(stream, shard, next_number, reading.RECORDS_PER_PAGE_MAX, EVENT_BYTES_MAX)

    def end_subscription(self, now_ms: int, subscription: Subscription) -> None:
        """End a subscription from the server's side. The consumer may subscribe again at once."""
        if self.is_current_subscription(now_ms, subscription):
            consumer = self.consumer(now_ms, subscription.stream_name, subscription.consumer_name)
            consumer.release(subscription.shard_id, subscription.subscription_id)

    # Helpers

    def _find(self, now_ms: int, name: str) -> StreamState | None:
        """Advance the clock of a stream, apply its pending change if that is due, and return the stream."""
        stream = self.streams.get(name)
        if stream is None:
            return None
        stream.clock.advance(now_ms)
        pending = stream.pending
        if pending and stream.clock.now_ms >= pending.due_ms:
            stream.pending = None
            if pending.status is StreamStatus.DELETING:
                del self.streams[name]
                return None
            if pending.reshard:
                resharding.apply_reshard(stream, pending.reshard, pending.due_ms)
        return stream

    def _active_stream(self, now_ms: int, name: str) -> StreamState:
        stream = self.stream(now_ms, name)
        stream.require_active()
        return stream

    def _readable_stream(self, now_ms: int, name: str) -> StreamState:
        stream = self.stream(now_ms, name)
        stream.require_readable()
        return stream

    def _begin_change(
        self, stream: StreamState, status: StreamStatus, now_ms: int, reshard: Reshard | None = None
    ) -> None:
        """Start a change. Without a delay it is applied before this method returns."""
        due_ms = stream.clock.advance(now_ms) + self.settings.status_delay_ms
        stream.pending = PendingChange(status, due_ms, reshard)
        self._find(now_ms, stream.name)

    def _reshard(self, now_ms: int, name: str, reshard: Reshard) -> None:
        stream = self._active_stream(now_ms, name)
        resharding.check_reshard(stream, reshard)
        if isinstance(reshard, Split):
            self._require_shards_left(1)
        self._begin_change(stream, StreamStatus.UPDATING, now_ms, reshard)

    def _read_page(
        self, stream: StreamState, shard: ShardState, next_number: int, records_max: int, bytes_max: int
    ) -> RecordsPage:
        return reading.read_page(
            stream,
            shard,
            next_number,
            stream.clock.now_ms,
            records_max=records_max,
            bytes_max=bytes_max,
            ends_with_last_records=self.settings.shard_end_with_last_records,
        )

    def _require_shard_count(self, name: str, shard_count: int | None, mode: StreamMode) -> int:
        if mode is StreamMode.ON_DEMAND:
            if shard_count is not None:
                raise validation_error(
                    f"Stream {name} is ON_DEMAND: leave out ShardCount, which is for PROVISIONED streams."
                )
            shard_count = ON_DEMAND_SHARDS
        if shard_count is None:
            raise validation_error(f"Stream {name} is PROVISIONED: ShardCount must be given.")
        self._require_shards_left(shard_count)
        return shard_count

    def _require_shards_left(self, more: int) -> None:
        current, limit = self.open_shard_count(), self.settings.shards_max
        if current + more > limit:
            raise limit_exceeded_error(
                f"This request would exceed the shard limit for the account {self.account.id} in "
                f"{self.account.region}. Current shard count for the account: {current}. Limit: {limit}. Number of "
                f"additional shards that would have resulted from this request: {more}."
            )

    def _require_memory(self, now_ms: int, entries: Sequence[PutRequest]) -> None:
        """Refuse records that would not fit. Memory is measured only if the upper bound has reached the limit."""
        limit = self.settings.stored_bytes_max
        more = sum(memory_bytes(entry.partition_key, entry.data) for entry in entries)
        if self._memory_bound is None or self._memory_bound + more > limit:
            self._memory_bound = self._measure_memory(now_ms)
            if self._memory_bound + more > limit:
                raise limit_exceeded_error(
                    f"The records of all streams take {self._memory_bound} bytes of memory, and stored_bytes_max is "
                    f"{limit}. Delete a stream, remove records (POST /_leasehold/trim), or raise the setting."
                )
        self._memory_bound += more

    def _measure_memory(self, now_ms: int) -> int:
        """Free the memory of expired records, and return the memory of all others."""
        streams = [self.streams[name] for name in self.stream_names(now_ms)]
        for stream in streams:
            stream.trim()
        return sum(shard.log.release_trimmed() for stream in streams for shard in stream.shards.values())

    def _require_scalings_left(self, stream: StreamState) -> None:
        stream.scaled_at_ms = [at for at in stream.scaled_at_ms if stream.clock.now_ms - at < 24 * HOUR_MS]
        if self.settings.enforce_limits and len(stream.scaled_at_ms) >= SCALINGS_PER_DAY_MAX:
            raise limit_exceeded_error(
                f"Stream {stream.label} has been scaled {SCALINGS_PER_DAY_MAX} times in 24 hours, which is the limit."
            )

    def _begin_retention_change(self, now_ms: int, name: str, hours: int) -> StreamState:
        if not RETENTION_HOURS_MIN <= hours <= RETENTION_HOURS_MAX:
            raise invalid_argument_error(
                f"Requested retention period ({hours} hours) is outside {RETENTION_HOURS_MIN}..{RETENTION_HOURS_MAX} "
                "hours."
            )
        stream = self._active_stream(now_ms, name)
        # First trim by the old period: a longer one must not bring records back.
        stream.trim()
        return stream


def add_tags(stream: StreamState, tags: Mapping[str, str]) -> None:
    """Add tags to a stream, or replace their values."""
    if len(stream.config.tags.keys() | tags.keys()) > TAGS_MAX:
        raise invalid_argument_error(f"Stream {stream.name} would have more than {TAGS_MAX} tags.")
    stream.config.tags.update(tags)
