"""The batch of a lease that has begun and is not committed: the records from the checkpoint to the pin."""

from __future__ import annotations

from dataclasses import dataclass

from leasehold.core.exactly_once.pinned_batch import pin_metadata
from leasehold.core.leases.lease_view import short_position
from leasehold.core.model import Lease
from leasehold.core.position import Position
from leasehold.core.shown_text import shown


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """Where the batch ends. `records` is None if its writer has not counted them.

    If `is_fixed`, a member of Leasehold has pinned it: every attempt at it has the same records. The pending checkpoint
    of a Java member is only shown to its next record processor.
    """

    end: Position
    records: int | None
    is_fixed: bool

    @property
    def words(self) -> str:
        """The number of records and the end."""
        end = f"up to {shown(short_position(self.end))}"
        return end if self.records is None else f"{self.records:,} record{'s' * (self.records != 1)} {end}"


def find_open_batch(lease: Lease) -> OpenBatch | None:
    """The batch that a lease has pinned; None if there is none. An empty one ends where it begins."""
    if lease.pin is None or lease.pin.end == lease.checkpoint:
        return None
    metadata = pin_metadata(lease)
    return OpenBatch(
        lease.pin.end,
        None if metadata is None else metadata.records,
        is_fixed=metadata is not None or lease.session is not None,
    )
