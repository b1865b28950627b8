"""What a test may change about the service: which limits hold, how long things take and live."""

from __future__ import annotations

from dataclasses import dataclass, fields

from leasehold.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """The behaviour of the service. The defaults are the service's own, except that nothing is throttled and
    nothing takes time.
    """

    enforce_limits: bool = False
    # How long CREATING, UPDATING and DELETING last.
    status_delay_ms: int = 0
    # The end of a closed shard comes with its last records, instead of in an empty answer after them.
    shard_end_with_last_records: bool = False
    iterator_lifetime_ms: int = 300_000
    list_token_lifetime_ms: int = 300_000
    subscription_lifetime_ms: int = 300_000
    takeover_after_ms: int = 5_000
    heartbeat_ms: int = 5_000
    shards_max: int = 20_000

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if type(value) is not (bool if item.type == "bool" else int) or value < 0:
                raise ConfigError(f"{item.name}={value!r}: expected {item.type}, not negative")
        if self.heartbeat_ms == 0:
            raise ConfigError(
                "heartbeat_ms=0: a subscription at the tip would send empty events without a pause"
            )
