"""Reports the rows of the lease table that cannot be read: while this lasts, and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from leasehold.core.events import Observer, RowIgnored, RowRecovered, RowRejected
from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.leases.rejected_row import consequence_of
from leasehold.errors import MalformedRowError

REPORT_CONSEQUENCE: Final = "until then this worker counts as one without a report"
# A table may contain any number of rows of other programs.
_IGNORED_MAX: Final = 1_000


class RejectedRows:
    """What this process has reported about the rows of one table."""

    def __init__(self) -> None:
        self._leases: set[str] = set()
        self._reports: set[str] = set()
        self._ignored: set[str] = set()

    def report(self, listing: LeaseListing, observe: Observer) -> None:
        """Report the rows that a read of the whole table could not parse, and those that it can parse again."""
        self._leases = _report_changes(self._leases, listing.rejected, consequence_of, observe)
        for error in listing.ignored:
            if error.key not in self._ignored and len(self._ignored) < _IGNORED_MAX:
                self._ignored.add(error.key)
                observe(RowIgnored(error.key, error.problem))

    def report_worker_reports(self, rejected: Sequence[MalformedRowError], observe: Observer) -> None:
        """The same for the rows of worker reports, which not every read of the leases contains."""
        self._reports = _report_changes(self._reports, rejected, lambda _: REPORT_CONSEQUENCE, observe)


def _report_changes(
    before: set[str],
    rejected: Sequence[MalformedRowError],
    consequence: Callable[[str], str],
    observe: Observer,
) -> set[str]:
    """Report the rejected rows, and those of `before` that are not rejected any more. Returns the rejected keys."""
    for error in rejected:
        observe(RowRejected(error.key, error.problem, consequence(error.key)))
    keys = {error.key for error in rejected}
    for key in sorted(before - keys):
        observe(RowRecovered(key))
    return keys
