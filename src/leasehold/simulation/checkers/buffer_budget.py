"""A process buffers no more bytes than its budget, plus an allowance for responses that are larger than expected.

A range that an earlier owner has pinned is not counted: it is buffered whole, even beyond the budget, if it is not
larger than the whole budget.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from leasehold.core.events import (
    Event,
    LeaseLost,
    LeaseReleased,
    OperationFailed,
    ReadingStarted,
    ShardEnded,
)
from leasehold.core.model import LeaseKey
from leasehold.fleet.reading.chunking import weight_of
from leasehold.kinesis_model.service import EVENT_BYTES_MAX
from leasehold.ports import Page
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.ownership import Delivery, LeaseChange
from leasehold.simulation.environment.process import Role, SimulatedProcess

# A read reserves the size of the last response, and the next response may be larger. This may happen for all shards
# that are read at the same time.
_OVERRUN = 2.0
_OVERRUN_PER_SHARD = 0.125
# The size of an event is not known before it arrives, so each shard may exceed the budget by one.
_EVENT_BYTES = 1.05 * EVENT_BYTES_MAX


class BufferWithinBudget(Checker):
    """Sums up the records that a process has read and no handler has done."""

    promise = "buffer-within-budget"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._held: defaultdict[SimulatedProcess, dict[LeaseKey, dict[int, int]]] = defaultdict(dict)
        self._pins: dict[LeaseKey, int] = {}  # the sequence number of the last pinned record
        # The pins that processes found when they began to read, until the first batch is done.
        self._found_pins: defaultdict[SimulatedProcess, dict[LeaseKey, int]] = defaultdict(dict)

    def lease_changed(self, change: LeaseChange) -> None:
        lease = change.after
        if lease is not None and lease.pin is not None and lease.pin.end.is_record:
            self._pins[lease.key] = int(lease.pin.end.sequence_number)
        elif lease is not None:
            self._pins.pop(lease.key, None)

    def page_read(self, process: SimulatedProcess, stream: str, page: Page) -> None:
        if not page.records:
            return
        number = int(page.records[0].sequence_number)
        shard = self.world.services.streams.key_of_number(stream, number)
        buffered = self._held[process].get(shard) if shard else None
        if buffered is None:
            return
        for record in page.records:
            buffered[int(record.sequence_number)] = weight_of([record])
        held = sum(sum(each.values()) for each in self._held[process].values())
        overrun = _OVERRUN + _OVERRUN_PER_SHARD * len(self._held[process])
        limit = self.world.settings.read.buffer_bytes * overrun
        if self.world.settings.fan_out.is_fan_out:
            limit += _EVENT_BYTES * len(self._held[process])
        limit += sum(self._pinned_bytes(process, shard) for shard in self._held[process])
        if held > limit:
            self.report(f"{process.name} buffers {held} bytes; {limit:.0f} are allowed")

    def _pinned_bytes(self, process: SimulatedProcess, shard: LeaseKey) -> int:
        end = self._found_pins[process].get(shard, -1)
        pinned = sum(size for number, size in self._held[process][shard].items() if number <= end)
        return pinned if pinned <= self.world.settings.read.buffer_bytes else 0

    def delivery_done(self, delivery: Delivery) -> None:
        self._found_pins[delivery.process].pop(delivery.shard, None)
        buffered = self._held[delivery.process].get(delivery.shard)
        if buffered:
            last = self.world.ledger.shard(delivery.shard).keys[delivery.last][0]
            self._forget(buffered, [number for number in buffered if number <= last])

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        if process.role is Role.EXECUTOR:
            return  # the limits of a batch bound what its tasks hold
        match event:
            case ReadingStarted(shard_key=shard):
                self._held[process][shard] = {}
                self._found_pins[process].pop(shard, None)
                if (pin := self._pins.get(shard)) is not None:
                    self._found_pins[process][shard] = pin
            case LeaseLost(shard_key=shard) | LeaseReleased(shard_key=shard) | ShardEnded(shard_key=shard):
                self._held[process].pop(shard, None)
            # Its lease may not be releasable, for example because its row is unreadable.
            case OperationFailed(operation=operation) if operation.startswith("serve "):
                self._held[process].pop(LeaseKey(operation.removeprefix("serve ")), None)

    def process_exited(self, process: SimulatedProcess) -> None:
        self._held.pop(process, None)
        self._found_pins.pop(process, None)

    def _forget(self, buffered: dict[int, int], numbers: Iterable[int]) -> None:
        for number in numbers:
            del buffered[number]
