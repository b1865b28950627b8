"""What a Spark query promises about the slices of its tasks: pinned first, in order, identical in each attempt."""

from __future__ import annotations

import json
from collections.abc import Sequence

from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.model import LeaseKey
from leasehold.core.position import Position
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.ledger import RecordKey
from leasehold.simulation.environment.ownership import LeaseChange
from leasehold.simulation.environment.query_history import DeliveredSlice

_SliceId = tuple[GenerationId, LeaseKey]


class PinnedBeforeDelivered(Checker):
    """Remembers the end that each generation pinned. A task may deliver only up to that end."""

    promise = "pinned-before-delivered"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._ends: dict[_SliceId, Position] = {}

    def lease_changed(self, change: LeaseChange) -> None:
        pinned = pinned_slice(change)
        if pinned is not None:
            self._ends[pinned[0]] = pinned[1]

    def slice_delivered(self, delivered: DeliveredSlice) -> None:
        end = self._ends.get((delivered.generation_id, delivered.shard))
        if end is None or end != delivered.end:
            self.report(
                f"{delivered.by.name} delivers {delivered.shard} up to {delivered.end} in generation "
                f"{delivered.generation_id.number}, whose pin is {end}"
            )


class BatchEndsNeverMove(Checker):
    """A generation pins one end for each shard."""

    promise = "batch-ends-never-move"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._ends: dict[_SliceId, Position] = {}

    def lease_changed(self, change: LeaseChange) -> None:
        pinned = pinned_slice(change)
        if pinned is None:
            return
        (generation_id, shard), end = pinned
        first = self._ends.setdefault((generation_id, shard), end)
        if first != end:
            self.report(
                f"generation {generation_id.number} ends {shard} at {end}, and ended it at {first} before"
            )


class RepeatedBatchesAreIdentical(Checker):
    """Every attempt at a slice of a generation has the same rows.

    An attempt may lack rows that were trimmed, if the options allow a loss and it has reported the gap. The attempt
    that has read them may deliver later.
    """

    promise = "repeated-batches-are-identical"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._fullest: dict[_SliceId, DeliveredSlice] = {}

    def slice_delivered(self, delivered: DeliveredSlice) -> None:
        key = delivered.generation_id, delivered.shard
        other = self._fullest.setdefault(key, delivered)
        if other.records == delivered.records or self._is_reported_loss(other.records, delivered):
            return
        if self._is_reported_loss(delivered.records, other):
            self._fullest[key] = delivered
            return
        self.report(
            f"{delivered.by.name} delivers {len(delivered.records)} rows of {delivered.shard} in generation "
            f"{delivered.generation_id.number}; another attempt delivered {len(other.records)} others"
        )

    def _is_reported_loss(self, first: Sequence[RecordKey], delivered: DeliveredSlice) -> bool:
        if delivered.by in self.world.query.fail_on_data_loss or not delivered.has_gap:
            return False
        shard_ledger, kept = self.world.ledger.shard(delivered.shard), set(delivered.records)
        missing = [key for key in first if key not in kept]
        is_part = [key for key in first if key in kept] == list(delivered.records)
        return is_part and all(shard_ledger.index_of[key] < shard_ledger.trimmed_before for key in missing)


class RowsInOrder(Checker):
    """The rows of a slice are a contiguous run of the shard's records, except for trimmed records."""

    promise = "rows-in-order"

    def slice_delivered(self, delivered: DeliveredSlice) -> None:
        shard_ledger = self.world.ledger.shard(delivered.shard)
        indexes = [shard_ledger.index_of.get(key, -1) for key in delivered.records]
        kept = [index for index in indexes if index >= shard_ledger.trimmed_before]
        is_run = not kept or kept == list(range(kept[0], kept[0] + len(kept)))
        if -1 in indexes or indexes != sorted(set(indexes)) or not is_run:
            self.report(
                f"{delivered.by.name} delivers rows of {delivered.shard} that are not a run of its records"
            )


def pinned_slice(change: LeaseChange) -> tuple[_SliceId, Position] | None:
    """Return the generation, the shard and the end of the pin that a change leaves in a row."""
    lease = change.after
    if lease is None or lease.pin is None or lease.pin.state is None:
        return None
    try:
        state = json.loads(lease.pin.state)
        generation_id = GenerationId(state["query"], state["generation"])
    except (ValueError, KeyError, TypeError):
        return None  # the pin of a worker
    return (generation_id, lease.key), lease.pin.end
