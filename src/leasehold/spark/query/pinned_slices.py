"""Fetches the slice of one shard, pins its end in the lease, and only then delivers its records.

Any number of attempts at a slice, concurrent or one after the other, deliver the same records. The first pin decides
where the slice ends; the other attempts drop the records behind it, or read on up to it. An attempt delivers nothing if
the lease has another owner.

The pin also has the number of records. An attempt that gets fewer has found a data loss: records were trimmed after the
first attempt. Trimming is not always visible from the records themselves, because an iterator at TRIM_HORIZON skips
trimmed records.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from leasehold.config.settings import ReadSettings
from leasehold.core.events import Event, GapFound, Observer, with_stream
from leasehold.core.exactly_once.pinned_batch import (
    DeliverNothing,
    DeliverUpTo,
    GenerationId,
    PinMetadata,
    RetryPin,
    generation_end,
    pin_metadata,
    pin_metadata_to_bytes,
    resolve_refused_pin,
)
from leasehold.core.exactly_once.query_offset import ReadStart
from leasehold.core.exactly_once.slice_limits import SliceLimits, count_within, has_late_record
from leasehold.core.model import ChildShard, Lease
from leasehold.core.position import AT_TIMESTAMP, LATEST, Position
from leasehold.core.record import UserRecord
from leasehold.core.records.deaggregation import DeaggregationSettings
from leasehold.core.records.iterators import Gap
from leasehold.core.records.pacing import quota_wait_ms
from leasehold.core.records.record_columns import UserRecordSequence, as_user_records, join_user_records
from leasehold.errors import DataLossError, UnavailableError
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.chunking import RECORD_OVERHEAD_BYTES, Demand, ReadChunk
from leasehold.fleet.reading.read_request import ReadContext, ReadRequest
from leasehold.fleet.reading.shard_reader import read_shard
from leasehold.fleet.reading.stream_consumer import StreamConsumer
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Clock, Stream
from leasehold.tasks import retry

# After so many failed writes the task fails, and Spark decides whether to retry it.
_ATTEMPTS_MAX: Final = 12
# A slice counts as full at this share of its limit in bytes.
FULL_SHARE: Final = 0.95


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """The part of a plan for one shard. `lease` is the copy from which the plan was made."""

    lease: Lease
    generation_id: GenerationId
    start: ReadStart
    limits: SliceLimits
    stream: str  # its name in the options
    redeliver_to: Position | None = None  # an earlier owner pinned this slice: deliver it with our metadata
    replay_to: Position | None = None  # this generation pinned it before: deliver it without a write
    iterator: str | None = None  # points right behind `start`, if it has not expired
    follows_parent: bool = False  # a parent was read to its end: no record of this shard may be missing

    @property
    def begins_at(self) -> Position:
        """Where the slice begins, in terms of the lease. A pin is committed unless it is redelivered or replayed."""
        pin = self.lease.pin
        is_repeated = self.redeliver_to is not None or self.replay_to is not None
        return self.lease.checkpoint if pin is None or is_repeated else pin.end


@dataclass(frozen=True, slots=True)
class PinnedSlice:
    """The records of a pinned slice. They may be delivered, as a whole and in this order."""

    plan: SlicePlan
    records: Sequence[UserRecord]
    end: Position


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a pin says about a slice: where it ends, and how many records it has; None if a worker pinned it.

    `known_ms` is when this attempt learned of the pin. Pages that were requested before may be older than the pin.
    """

    end: Position
    records: int | None
    known_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReaderPorts:
    """The ports and settings for reading and pinning slices of one stream."""

    stream: Stream
    table: LeaseTable
    clock: Clock
    rng: random.Random
    observe: Observer
    budget: ByteBudget
    read: ReadSettings
    deaggregation: DeaggregationSettings
    fail_on_data_loss: bool
    consumer: StreamConsumer | None = None  # None: slices are polled


async def fetch_and_pin(plan: SlicePlan, ports: ReaderPorts) -> PinnedSlice | None:
    """Fetch and pin the slice of a plan. Returns None if nothing may or can be delivered."""
    if plan.replay_to is not None and not await _may_replay(plan, ports):
        return None
    async with _fetching(plan, ports) as fetched:
        end = plan.replay_to or plan.redeliver_to
        if end is None:
            await fetched.fill(plan.limits)
            pinned = await _pin(plan, ports, fetched.end or plan.begins_at, fetched)
        else:
            pinned = Pinned(end, _records_of(plan.lease))
            await fetched.fill_to(pinned)
            if plan.replay_to is None:
                pinned = await _pin(plan, ports, end, fetched)
        if pinned is None or pinned.end <= plan.begins_at:
            return None
        await fetched.fill_to(pinned)
        return PinnedSlice(plan, fetched.records_of(pinned), pinned.end)


async def _may_replay(plan: SlicePlan, ports: ReaderPorts) -> bool:
    """True if the generation delivered records from the shard, and no later pin has replaced its own."""
    end = generation_end(await ports.table.get(plan.lease.key), plan.generation_id)
    return end == plan.replay_to and end is not None and end > plan.begins_at


async def _pin(plan: SlicePlan, ports: ReaderPorts, end: Position, fetched: _Fetched) -> Pinned | None:
    """Pin the end of the slice. Returns what is pinned, or None if this task must not deliver the slice."""
    lease = plan.lease
    metadata = fetched.metadata(plan.generation_id, end, ports.clock)
    generation = (plan.generation_id.query_id, plan.generation_id.number)
    for _ in range(_ATTEMPTS_MAX):
        write = (
            partial(ports.table.pin, lease, end, metadata, generation)
            if plan.redeliver_to is None
            else partial(ports.table.repin, lease, metadata, generation)
        )
        outcome = await retry(write, clock=ports.clock, rng=ports.rng, attempts_max=_ATTEMPTS_MAX)
        if isinstance(outcome, Lease):
            return Pinned(end, fetched.records.count_to(end))
        match resolve_refused_pin(lease, plan.generation_id, outcome.current):
            case DeliverUpTo(pinned_end):
                return Pinned(pinned_end, _records_of(outcome.current), ports.clock.now_ms())
            case RetryPin(now):
                lease = now
            case DeliverNothing():
                return None
    raise UnavailableError(f"lease {lease.key}: not pinned in {_ATTEMPTS_MAX} attempts; try again")


def _records_of(lease: Lease | None) -> int | None:
    metadata = pin_metadata(lease) if lease else None
    return metadata.records if metadata else None


@asynccontextmanager
async def _fetching(plan: SlicePlan, ports: ReaderPorts) -> AsyncIterator[_Fetched]:
    observe = with_stream(plan.lease.stream, ports.observe)
    losses = _Losses(plan.lease, observe, ports.fail_on_data_loss)
    metadata = pin_metadata(plan.lease)

    reading = read_shard(
        ReadRequest(
            shard=plan.lease.shard_id,
            start=plan.start.position,
            initial=plan.start.initial,
            hash_range=plan.lease.hash_range,
            iterator=plan.iterator,
            follows_parent=plan.follows_parent,
            record_weight=metadata.record_weight if metadata else None,
            demand=_demand(plan, metadata),
            wait_ms=quota_wait_ms(metadata.quota_at_ms, ports.clock.wall_ms()) if metadata else 0,
            in_one_call=_is_limited_by_bytes(plan.limits),
        ),
        ReadContext(
            stream=ports.stream,
            settings=ports.read,
            deaggregation=ports.deaggregation,
            budget=ports.budget,
            clock=ports.clock,
            rng=ports.rng,
            observe=losses.observe_reader,
            consumer=ports.consumer if _may_subscribe(plan) else None,
            subscribes_once=True,
        ),
    )
    async with reading as chunks:
        yield _Fetched(plan, chunks, ports.budget.release, losses)


def _may_subscribe(plan: SlicePlan) -> bool:
    """False if the slice was delivered before: its end is known, and an event says less about the tip than a page.

    Also False for a start at LATEST or at a time: the slice may be empty, and an idle subscription says so only after
    seconds.
    """
    is_repeated = plan.redeliver_to is not None or plan.replay_to is not None
    return not is_repeated and plan.start.position not in {LATEST, AT_TIMESTAMP}


def _is_limited_by_bytes(limits: SliceLimits) -> bool:
    """Whether the slice ends at a number of bytes and nowhere else, so that one call can fetch just what it takes.

    How many Kinesis records have so many user records, or arrived within a time, is not known before they are read.
    """
    return limits.size_bytes is not None and limits.records is None and limits.arrival_span_ms is None


def _demand(plan: SlicePlan, metadata: PinMetadata | None) -> Demand:
    # Without an iterator, the reader starts at the last delivered record, which it reads again and drops.
    repeated = int(plan.iterator is None and plan.start.position.is_record)
    repeated_bytes = repeated * max(0, ((metadata and metadata.record_weight) or 0) - RECORD_OVERHEAD_BYTES)
    records, size_bytes = plan.limits.records, plan.limits.size_bytes
    return Demand(
        None if records is None else records + repeated,
        None if size_bytes is None else size_bytes + repeated_bytes,
    )


@dataclass(slots=True)
class _Losses:
    """The losses that one attempt has found."""

    lease: Lease
    observe: Observer
    are_errors: bool
    is_reported: bool = False
    _gaps: list[Gap] = field(default_factory=list)  # found by the reader, and not looked at yet

    def observe_reader(self, event: Event) -> None:
        """Receive an event of the reader."""
        if isinstance(event, GapFound):
            self._gaps.append(event.gap)
        self.observe(event)

    def check_reader(self) -> None:
        """Raise DataLossError if the reader has found a gap and the options do not allow it."""
        while self._gaps:
            self._refuse(self._gaps.pop(), "they were read")

    def report_missing(self, gap: Gap) -> None:
        """Report, once, that records of a pin are missing. The reader need not have noticed it."""
        if not self.is_reported:
            self.observe(GapFound(self.lease.shard_id, gap))
            self._refuse(gap, "the batch was repeated")

    def _refuse(self, gap: Gap, lost_before: str) -> None:
        self.is_reported = True
        if self.are_errors:
            resumes = f"the first one left is {gap.resumes_at}" if gap.resumes_at else "none is left"
            raise DataLossError(
                f"shard {self.lease.key}: records after {gap.after} were trimmed before {lost_before}; {resumes}. Set "
                "failOnDataLoss=false to continue without them, and a longer retention of the stream to keep more"
            )


class _Records:
    """The records of the chunks read so far. They are joined when they are first looked at."""

    def __init__(self) -> None:
        self._parts: list[UserRecordSequence] = []
        self.count = 0
        self.size_bytes = 0

    def add(self, records: Sequence[UserRecord]) -> None:
        """Add the records of the next chunk."""
        part = as_user_records(records)
        if part:
            self._parts.append(part)
            self.count += len(part)
            self.size_bytes += part.payload_bytes

    @property
    def joined(self) -> UserRecordSequence:
        """All records."""
        if len(self._parts) != 1:
            self._parts = [join_user_records(self._parts)]
        return self._parts[0]

    def has_late(self, limits: SliceLimits) -> bool:
        """True if the last record arrived too late to share a slice with the first."""
        ends = [self._parts[0][0], self._parts[-1][-1]] if self.count else []
        return has_late_record(ends, limits)


@dataclass(frozen=True, slots=True)
class _Cut:
    """The records of `of` up to `end`."""

    end: Position
    of: UserRecordSequence
    records: UserRecordSequence


@dataclass(slots=True)
class _Fetched:
    """The records read for one slice. They may be more than the slice will contain."""

    plan: SlicePlan
    chunks: AsyncIterator[ReadChunk]
    release: Callable[[int], None]
    losses: _Losses
    read: _Records = field(default_factory=_Records)
    read_through: Position | None = None
    millis_behind: int | None = None
    children: tuple[ChildShard, ...] | None = None
    record_weight: int | None = None
    quota_ms: int | None = None
    kept: int | None = None  # the number of records within the limits; None: all of them
    _cut: _Cut | None = None  # the last answer of `up_to`

    @property
    def records(self) -> UserRecordSequence:
        """The records read so far."""
        return self.read.joined

    @property
    def end(self) -> Position | None:
        """Where the slice should end. None if there is nothing to deliver and nothing to skip.

        This is always the position of a record, never SHARD_END: a KCL member may have to redeliver the slice.
        """
        return self.read_through if self.kept is None else self.records.position(self.kept - 1)

    def metadata(self, generation_id: GenerationId, end: Position, clock: Clock) -> bytes:
        """The metadata of the pin, for the next plan."""
        records = self.up_to(end)
        has_remainder = len(records) < self.read.count
        children = None if has_remainder else self.children
        has_more = has_remainder or bool(self.millis_behind)
        return pin_metadata_to_bytes(
            PinMetadata(
                generation_id,
                len(records),
                records.payload_bytes,
                self.millis_behind,
                has_more,
                children,
                self.record_weight,
                self._quota_at_ms(clock),
            )
        )

    def _quota_at_ms(self, clock: Clock) -> int | None:
        """The wall-clock time at which the shard has its quota again; None if it has it now."""
        left_ms = 0 if self.quota_ms is None else self.quota_ms - clock.now_ms()
        return clock.wall_ms() + left_ms if left_ms > 0 else None

    async def fill(self, limits: SliceLimits) -> None:
        """Read up to a limit, the tip or the end of the shard."""
        while not self._is_full(limits) and self.children is None:
            chunk = await self._next()
            if chunk.ends_page and not chunk.millis_behind:
                break
        kept = count_within(self.records, limits)
        self.kept = kept if kept < self.read.count else None

    async def fill_to(self, pinned: Pinned) -> None:
        """Read on up to the end of a pin, which is the position of a record that was delivered before."""
        while not self._has_read_to(pinned.end):
            chunk = await self._next() if self.children is None else None
            # The reader may have found the tip before the records of the pin arrived.
            is_current = chunk is not None and chunk.requested_ms >= pinned.known_ms
            is_at_tip = (
                is_current
                and chunk is not None
                and chunk.ends_page  # an earlier chunk of the page may be empty because its records were dropped
                and not chunk.records
                and chunk.millis_behind == 0
            )
            is_over = chunk is None or (is_at_tip and self.children is None)
            # A chunk without records may end at the pinned end: its records were dropped.
            if is_over and not self._has_read_to(pinned.end):
                # The tip, or the end of the shard, lies before the pinned end: the records in between were trimmed.
                self.losses.report_missing(Gap(self.read_through or self.plan.start.position, None, None))
                return
        if len(self.records_of(pinned)) < (pinned.records or 0):
            first = self.records[0] if self.records else None
            number, arrival_ms = (first.sequence_number, first.arrival_ms) if first else (None, None)
            self.losses.report_missing(Gap(self.plan.start.position, number, arrival_ms))

    def records_of(self, pinned: Pinned) -> UserRecordSequence:
        """The records of a pinned slice.

        If more were read than the pin has, the attempt that pinned has read later, after the oldest records were
        trimmed. It has the newest ones.
        """
        records = self.up_to(pinned.end)
        return records if pinned.records is None else records[max(0, len(records) - pinned.records) :]

    def up_to(self, end: Position) -> UserRecordSequence:
        """The records up to `end`. They may be fewer than were read.

        The last answer is kept: a pin asks for it three times, and to look for the end and to add up the sizes takes a
        tenth of the time of a slice.
        """
        if self._cut is None or self._cut.end != end or self._cut.of is not self.records:
            self._cut = _Cut(end, self.records, self.records[: self.records.count_to(end)])
        return self._cut.records

    def _has_read_to(self, end: Position) -> bool:
        return self.read_through is not None and self.read_through >= end

    async def _next(self) -> ReadChunk:
        chunk = await anext(self.chunks)
        self.release(chunk.size_bytes)
        self.losses.check_reader()
        self.read.add(chunk.records)
        self.read_through = chunk.read_through or self.read_through
        self.millis_behind = chunk.millis_behind
        self.children = chunk.children
        self.record_weight = chunk.record_weight or self.record_weight
        self.quota_ms = chunk.quota_ms
        return chunk

    def _is_full(self, limits: SliceLimits) -> bool:
        has_records = limits.records is not None and self.read.count >= limits.records
        # The last few records are not worth another call.
        has_bytes = limits.size_bytes is not None and self.read.size_bytes >= limits.size_bytes * FULL_SHARE
        return has_records or has_bytes or self.read.has_late(limits)
