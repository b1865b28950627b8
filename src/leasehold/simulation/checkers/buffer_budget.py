"""A process holds no more bytes than its budget, but for what one answer may turn out larger than expected."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from leasehold.core.events import Event, LeaseLost, LeaseReleased, ReadingStarted, ShardEnded
from leasehold.core.model import ShardId
from leasehold.fleet.reading.chunking import weight_of
from leasehold.ports import Page
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.ownership import Delivery
from leasehold.simulation.process import SimulatedProcess

# An answer is reserved for by the weight of the last one, and may turn out larger; so may the answers of all shards
# that are asked at one time.
_SURPRISES = 2.0
_SURPRISE_OF_A_SHARD = 0.125


class BufferWithinBudget(Checker):
    """Adds up what the stream gave to a process and no handler has done."""

    promise = "buffer-within-budget"

    def __init__(self, scene: WorldView, report: Report) -> None:
        super().__init__(scene, report)
        self._held: defaultdict[SimulatedProcess, dict[ShardId, dict[int, int]]] = defaultdict(dict)
        self._shards: dict[int, ShardId] = {}

    def page_read(self, process: SimulatedProcess, page: Page) -> None:
        if not page.records:
            return
        shard = self._shard_of(int(page.records[0].sequence_number))
        mine = self._held[process].get(shard) if shard else None
        if mine is None:
            return
        for record in page.records:
            mine[int(record.sequence_number)] = weight_of([record])
        held = sum(sum(each.values()) for each in self._held[process].values())
        surprises = _SURPRISES + _SURPRISE_OF_A_SHARD * len(self._held[process])
        limit = self.scene.settings.read.buffer_bytes * surprises
        if held > limit:
            self.broken(f"{process.name} holds {held} bytes, {limit:.0f} at most are allowed")

    def delivery_done(self, delivery: Delivery) -> None:
        mine = self._held[delivery.process].get(delivery.shard)
        if mine:
            last = self.scene.ledger.shard(delivery.shard).places[delivery.last][0]
            self._forget(mine, [number for number in mine if number <= last])

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        match event:
            case ReadingStarted(shard=shard):
                self._held[process][shard] = {}
            case LeaseLost(shard=shard) | LeaseReleased(shard=shard) | ShardEnded(shard=shard):
                self._held[process].pop(shard, None)

    def process_gone(self, process: SimulatedProcess) -> None:
        self._held.pop(process, None)

    def _forget(self, mine: dict[int, int], numbers: Iterable[int]) -> None:
        for number in numbers:
            del mine[number]

    def _shard_of(self, number: int) -> ShardId | None:
        for shard in self.scene.stream.shards.values():
            if number in shard.numbers:
                return shard.id
        return None
