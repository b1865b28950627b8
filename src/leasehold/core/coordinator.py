"""Whether a leader shares out the leases of a fleet, from the KCL's migration row. Two who share out would fight."""

from __future__ import annotations

from typing import Final

from leasehold.core.row_writes import Row

# In the lease table (KCL 3.5+), or in `<application>-CoordinatorState` (KCL 3.0 to 3.4).
MIGRATION_KEY: Final = "Migration3.0"
COORDINATOR_TABLE_SUFFIX: Final = "-CoordinatorState"
COORDINATOR_KEY_ATTRIBUTE: Final = "key"

_LED: Final = frozenset({"CLIENT_VERSION_3X", "CLIENT_VERSION_3X_WITH_ROLLBACK"})


def is_led(migration: Row | None) -> bool:
    """True if members of this fleet get their leases from a leader (KCL 3.x), false if they take them (2.x, peers)."""
    return migration is not None and migration.get("cv", {}).get("S") in _LED
