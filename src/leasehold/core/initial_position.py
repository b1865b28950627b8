"""Parses the setting that says where a fleet without leases starts to read."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

from leasehold.core.model import InitialPosition
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON
from leasehold.errors import ConfigError

_SENTINELS: Final = {"latest": LATEST, "trim_horizon": TRIM_HORIZON}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def parse_initial_position(value: object) -> InitialPosition:
    """Parse "trim_horizon", "latest", or a time with its zone.

    >>> parse_initial_position("2026-11-15T12:00:00Z").timestamp_ms
    1794744000000
    """
    if isinstance(value, InitialPosition):
        return value
    if isinstance(value, str):
        sentinel = _SENTINELS.get(value.strip().lower().replace("-", "_"))
        if sentinel is not None:
            return InitialPosition(sentinel)
    moment = _parse_time(value)
    if moment is None or moment.tzinfo is None:
        raise ConfigError(
            "expected 'trim_horizon', 'latest', or a time with its zone such as '2026-11-15T12:00:00Z'"
        )
    return InitialPosition(AT_TIMESTAMP, (moment - _EPOCH) // timedelta(milliseconds=1))


def _parse_time(value: object) -> datetime | None:
    if isinstance(value, datetime):
        return value
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None
