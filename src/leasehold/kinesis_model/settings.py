"""What a test can change about the service: limits, delays and lifetimes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from leasehold.errors import ConfigError

_NUMBER_MAX: Final = 2**53  # any time that is added to it is still an integer of 64 bits


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """The behaviour of the service. The defaults are those of AWS, with three exceptions: nothing is throttled, changes
    of a stream take no time, and the memory for records is limited.
    """

    enforce_limits: bool = False
    # How long a stream stays CREATING, UPDATING or DELETING.
    status_delay_ms: int = 0
    # Whether the response with the last records of a closed shard also ends it. If not, an empty response follows.
    shard_end_with_last_records: bool = False
    iterator_lifetime_ms: int = 300_000
    list_token_lifetime_ms: int = 300_000
    subscription_lifetime_ms: int = 300_000
    takeover_after_ms: int = 5_000
    heartbeat_ms: int = 5_000
    shards_max: int = 20_000
    # The memory for the records of all streams. AWS has no such limit.
    stored_bytes_max: int = 2**31

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if type(value) is not (bool if item.type == "bool" else int) or not 0 <= value <= _NUMBER_MAX:
                raise ConfigError(f"{item.name}={value!r:.80}: expected {item.type}, from 0 to {_NUMBER_MAX}")
        if self.heartbeat_ms == 0:
            raise ConfigError(
                "heartbeat_ms=0: a subscription at the tip would send empty events without pause; use at least 1"
            )
