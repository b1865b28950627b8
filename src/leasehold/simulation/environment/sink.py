"""The store that simulated handlers write to: an object is created only if no object has its name.

With two-phase handlers, the object's name is the range that was pinned in the lease before the object was written. So
retries and former owners create the same object, once. With plain handlers, records are only counted as done.
"""

from __future__ import annotations

from leasehold.core.model import LeaseKey
from leasehold.simulation.environment.ledger import RecordKey

ObjectName = tuple[LeaseKey, str, str]


class Sink:
    """All objects, and the records that were stored as dead letters."""

    def __init__(self, *, is_two_phase: bool) -> None:
        self.is_two_phase = is_two_phase
        self.objects: dict[ObjectName, tuple[tuple[LeaseKey, RecordKey], ...]] = {}
        self.dead_letters: set[tuple[LeaseKey, RecordKey]] = set()

    def create(self, name: ObjectName, keys: tuple[RecordKey, ...]) -> None:
        """Create an object, unless an object with this name exists."""
        self.objects.setdefault(name, tuple((name[0], key) for key in keys))
