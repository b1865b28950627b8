"""Reports the rows of the lease table that cannot be read: while this lasts, and when it ends."""

from __future__ import annotations

from typing import Final

from leasehold.core.events import Observer, RowIgnored, RowRecovered, RowRejected
from leasehold.core.leases.lease_row import LeaseListing

CONSEQUENCE: Final = "until then its shard and all descendants of that shard get no lease and are not started"
# A table may contain any number of rows of other programs.
_IGNORED_MAX: Final = 1_000


class RejectedRows:
    """What this process has reported about the rows of one table."""

    def __init__(self) -> None:
        self._rejected: set[str] = set()
        self._ignored: set[str] = set()

    def report(self, listing: LeaseListing, observe: Observer) -> None:
        """Report the rows that a read of the whole table could not parse, and those that it can parse again."""
        for error in listing.rejected:
            observe(RowRejected(error.key, error.problem, CONSEQUENCE))
        rejected = {error.key for error in listing.rejected}
        for key in sorted(self._rejected - rejected):
            observe(RowRecovered(key))
        self._rejected = rejected
        for error in listing.ignored:
            if error.key not in self._ignored and len(self._ignored) < _IGNORED_MAX:
                self._ignored.add(error.key)
                observe(RowIgnored(error.key, error.problem))
