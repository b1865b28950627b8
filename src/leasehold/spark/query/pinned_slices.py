"""Fetch, pin, then give away: one shard's slice of a batch, held back until its end is fixed in the lease.

Any number of attempts at one slice, at one time or after each other, give away the same records: the first that pins
decides where the slice ends, the others cut theirs to it or read on. An attempt that finds the lease in other hands
gives away nothing.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

from leasehold.config.settings import ReadSettings
from leasehold.core.backoff import backoff_ms
from leasehold.core.events import Event, GapFound, Observer
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
from leasehold.core.position import Position
from leasehold.core.record import UserRecord
from leasehold.core.records.deaggregation import DeaggregationSettings
from leasehold.core.records.iterators import Gap
from leasehold.errors import DataLossError, ThrottledError, UnavailableError
from leasehold.fleet.reading.chunking import Demand, payload_bytes
from leasehold.fleet.reading.shard_reader import ByteBudget, ReadChunk, read_shard
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.ports import Clock, Stream

# A write that cannot be put for so often is the trouble of whoever runs the task.
_ATTEMPTS_MAX: Final = 12
# Of its limit in bytes, at which a slice counts as full.
NEARLY: Final = 0.95


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """What a task is told about one shard. `lease` is the copy from which the plan was made."""

    lease: Lease
    generation_id: GenerationId
    start: ReadStart
    limits: SliceLimits
    redeliver_to: Position | None = None  # an earlier holder pinned this slice: deliver it, under our note
    replay_to: Position | None = None  # this generation pinned it before: deliver it, and write nothing
    iterator: str | None = None  # stands right after `start`, if it has not expired
    follows_parent: bool = False  # a parent was read to its end: this shard is wanted from its very beginning

    @property
    def begins_at(self) -> Position:
        """Where the slice begins, as the lease has it. A pin that is neither done again nor replayed is done."""
        pin = self.lease.pin
        is_done_again = self.redeliver_to is not None or self.replay_to is not None
        return self.lease.checkpoint if pin is None or is_done_again else pin.end


@dataclass(frozen=True, slots=True)
class PinnedSlice:
    """Records of one shard whose end is fixed: they may be given away, as a whole and in this order."""

    plan: SlicePlan
    records: tuple[UserRecord, ...]
    end: Position


@dataclass(frozen=True, slots=True)
class ReaderPorts:
    """What reading and pinning need."""

    stream: Stream
    table: LeaseTable
    clock: Clock
    rng: random.Random
    observe: Observer
    budget: ByteBudget
    read: ReadSettings
    deaggregation: DeaggregationSettings
    fail_on_data_loss: bool = True


async def pinned_slice(plan: SlicePlan, ports: ReaderPorts) -> PinnedSlice | None:
    """The shard's slice of the plan's batch; None where it delivers nothing."""
    if plan.replay_to is not None and not await _is_to_be_replayed(plan, ports):
        return None
    async with _fetching(plan, ports) as fetched:
        end = plan.replay_to or plan.redeliver_to
        if end is None:
            await fetched.fill(plan.limits)
            end = fetched.end or plan.begins_at
        else:
            await fetched.fill_to(end)
        if plan.replay_to is None:
            end = await _pinned(plan, ports, end, fetched)
        if end is None or end <= plan.begins_at:
            return None
        await fetched.fill_to(end)
        return PinnedSlice(plan, fetched.up_to(end), end)


async def _is_to_be_replayed(plan: SlicePlan, ports: ReaderPorts) -> bool:
    """Whether there were records, and nobody has taken over the delivery of them since."""
    end = generation_end(await ports.table.get(plan.lease.key), plan.generation_id)
    return end == plan.replay_to and end is not None and end > plan.begins_at


async def _pinned(plan: SlicePlan, ports: ReaderPorts, end: Position, fetched: _Fetched) -> Position | None:
    """Fix where the slice ends; returns where it does. None: it is no longer ours to deliver."""
    lease = plan.lease
    for attempt in range(_ATTEMPTS_MAX):
        try:
            if plan.redeliver_to is not None:
                outcome = await ports.table.repin(lease, fetched.note(plan.generation_id, end))
            else:
                outcome = await ports.table.pin(lease, end, fetched.note(plan.generation_id, end))
        except (ThrottledError, UnavailableError):
            if attempt == _ATTEMPTS_MAX - 1:
                raise
            await ports.clock.sleep_ms(backoff_ms(attempt, ports.rng.random()))
            continue
        if isinstance(outcome, Lease):
            return end
        match resolve_refused_pin(lease, plan.generation_id, outcome.current):
            case DeliverUpTo(pinned_end):
                return pinned_end
            case RetryPin(now):
                lease = now
            case DeliverNothing():
                return None
    raise UnavailableError(f"lease {lease.key}: not pinned in {_ATTEMPTS_MAX} attempts; try again")


@asynccontextmanager
async def _fetching(plan: SlicePlan, ports: ReaderPorts) -> AsyncIterator[_Fetched]:
    gaps: list[Gap] = []
    note = pin_metadata(plan.lease)

    def observe(event: Event) -> None:
        if isinstance(event, GapFound):
            gaps.append(event.gap)
        ports.observe(event)

    reading = read_shard(
        ports.stream,
        plan.lease.shard_id,
        start=plan.start.position,
        initial=plan.start.initial,
        hash_range=plan.lease.hash_range,
        settings=ports.read,
        deaggregation=ports.deaggregation,
        budget=ports.budget,
        clock=ports.clock,
        rng=ports.rng,
        observe=observe,
        iterator=plan.iterator,
        follows_parent=plan.follows_parent,
        record_weight=note.record_weight if note else None,
        demand=_wanted(plan.limits),
    )
    async with reading as slices:
        yield _Fetched(plan, slices, ports.budget.release, gaps, fail_on_gap=ports.fail_on_data_loss)


def _wanted(limits: SliceLimits) -> Demand:
    # The record at which a shard is entered comes once more, and is dropped.
    return Demand(None if limits.records is None else limits.records + 1, limits.size_bytes)


@dataclass(slots=True)
class _Fetched:
    """What was read of a shard for one slice. More may have been read than the slice will hold."""

    plan: SlicePlan
    slices: AsyncIterator[ReadChunk]
    release: Callable[[int], None]
    gaps: list[Gap]
    fail_on_gap: bool
    records: list[UserRecord] = field(default_factory=list)
    size_bytes: int = 0
    read_through: Position | None = None
    millis_behind: int | None = None
    children: tuple[ChildShard, ...] | None = None
    record_weight: int | None = None
    kept: int | None = None  # records within the limits, if not all are

    @property
    def end(self) -> Position | None:
        """Where the slice should end: None if there is nothing to deliver and nothing to skip.

        Never at the end of the shard itself: whoever has to do the slice again may be a reader that knows records only.
        """
        return self.read_through if self.kept is None else self.records[self.kept - 1].position

    def note(self, generation_id: GenerationId, end: Position) -> bytes:
        """What the next planner wants to know."""
        records = self.up_to(end)
        has_rest = len(records) < len(self.records)
        children = None if has_rest else self.children
        has_more = has_rest or (children is None and bool(self.millis_behind))
        return pin_metadata_to_bytes(
            PinMetadata(
                generation_id,
                len(records),
                payload_bytes(records),
                self.millis_behind,
                has_more,
                children,
                self.record_weight,
            )
        )

    async def fill(self, limits: SliceLimits) -> None:
        """Read until a limit, the tip or the end of the shard is reached."""
        while not self._is_full(limits) and self.children is None:
            piece = await self._next()
            if piece.ends_page and not piece.millis_behind:
                break
        kept = count_within(self.records, limits)
        self.kept = kept if kept < len(self.records) else None

    async def fill_to(self, end: Position) -> None:
        """Read on until everything up to `end` is there."""
        while self.children is None and (self.read_through is None or self.read_through < end):
            piece = await self._next()
            if not piece.records and piece.millis_behind == 0 and self.children is None:
                # The tip lies before an end that once was read: what was between has been trimmed.
                self._refuse_gap(Gap(self.read_through or self.plan.start.position, None, None))
                return

    def up_to(self, end: Position) -> tuple[UserRecord, ...]:
        """The records up to `end`, which may be fewer than were read."""
        count = len(self.records)
        while count and self.records[count - 1].position > end:
            count -= 1
        return tuple(self.records[:count])

    async def _next(self) -> ReadChunk:
        piece = await anext(self.slices)
        self.release(piece.size_bytes)
        while self.gaps:
            self._refuse_gap(self.gaps.pop())
        self.records.extend(piece.records)
        self.size_bytes += payload_bytes(piece.records)
        self.read_through = piece.read_through or self.read_through
        self.millis_behind = piece.millis_behind
        self.children = piece.children
        self.record_weight = piece.record_weight or self.record_weight
        return piece

    def _is_full(self, limits: SliceLimits) -> bool:
        has_records = limits.records is not None and len(self.records) >= limits.records
        # Another call for the last few records would cost more than they bring.
        has_bytes = limits.size_bytes is not None and self.size_bytes >= limits.size_bytes * NEARLY
        return has_records or has_bytes or has_late_record(self.records, limits)

    def _refuse_gap(self, gap: Gap) -> None:
        if self.fail_on_gap:
            shard = self.plan.lease.shard_id
            resumes = f"the first one left is {gap.resumes_at}" if gap.resumes_at else "none is left"
            raise DataLossError(
                f"shard {shard}: records after {gap.after} were trimmed before they were read; {resumes}. Set "
                "failOnDataLoss=false to go on without them, and a longer retention of the stream to keep more"
            )
