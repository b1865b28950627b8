"""Where handlers put records: a store that creates an object only if there is none of that name.

With two phases an object is named by the range that was pinned in the lease before it was written, so any number of
retries and zombies make the same object once. Without, records are only counted as done.
"""

from __future__ import annotations

from leasehold.core.model import ShardId
from leasehold.simulation.ledger import RecordKey

ObjectName = tuple[ShardId, str, str]


class Sink:
    """All objects, and the records that were put aside as dead letters."""

    def __init__(self, *, is_two_phase: bool) -> None:
        self.is_two_phase = is_two_phase
        self.objects: dict[ObjectName, tuple[tuple[ShardId, RecordKey], ...]] = {}
        self.dead_lettered: set[tuple[ShardId, RecordKey]] = set()
        self.clashes: list[ObjectName] = []

    def create(self, name: ObjectName, places: tuple[RecordKey, ...]) -> bool:
        """Make an object; False if there is one of that name already."""
        content = tuple((name[0], place) for place in places)
        known = self.objects.setdefault(name, content)
        if known != content:
            self.clashes.append(name)
        return known is content
