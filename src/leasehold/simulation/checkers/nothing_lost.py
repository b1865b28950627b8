"""No record is lost: a checkpoint passes a record only after a handler has done it, or it was put aside."""

from __future__ import annotations

from leasehold.simulation.checkers.base import Checker
from leasehold.simulation.ownership import LeaseChange


class NothingLost(Checker):
    """Follows the checkpoint of every lease."""

    promise = "nothing-lost"

    def lease_changed(self, change: LeaseChange) -> None:
        if change.after is None or (change.before and change.before.checkpoint == change.after.checkpoint):
            return
        book = self.scene.ledger.shard(change.after.shard_id)
        if book.first_after(change.after.checkpoint) > book.first_open_index():
            place = book.places[book.first_open_index()]
            self.broken(
                f"{change.row.key} moved to {change.after.checkpoint} over record {place}, which nobody has done"
            )

    def all_stopped(self) -> None:
        for shard, book in self.scene.ledger.shards.items():
            if book.first_open_index() < len(book.places):
                self.broken(f"{shard}: record {book.places[book.first_open_index()]} was never done")
