"""Settings as frozen values, in small groups by concern. Each checks itself, and says what to do instead."""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum

from leasehold.errors import ConfigError


def milliseconds(duration: timedelta) -> int:
    """A duration as the core counts it."""
    return duration // timedelta(milliseconds=1)


class Mode(Enum):
    """How the members of a fleet share out its leases."""

    AUTO = "auto"  # join what is there; a new fleet gets a leader
    LEADER = "leader"  # one member, elected, assigns leases by load (KCL 3.x)
    PEER = "peer"  # every member takes its own share (KCL 2.x)


class BalanceBy(Enum):
    """What a leader evens out."""

    LOAD = "load"  # throughput of the shards, and how busy the members are
    COUNT = "count"  # the number of leases


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """How a member keeps its leases and shares the shards with others.

    `failover_after` must be the same for every member, Java's included (there: failoverTimeMillis).
    """

    mode: Mode = Mode.AUTO
    failover_after: timedelta = timedelta(seconds=10)
    refresh_every: timedelta = timedelta(seconds=1.8)  # at the lease table, unless heartbeats bring the news
    max_leases: int | None = None  # for this member, and as a leader for each; None: no limit
    leases_to_acquire: int | None = None  # free leases to take in one look; None: a fair share at once
    handoff_timeout: timedelta = timedelta(seconds=30)  # for the old owner to finish what it has in hand
    stalled_after: timedelta = timedelta(minutes=15)  # without any progress a shard is given up
    cooldown_after_failure: timedelta = timedelta(seconds=10)  # before a shard that we gave up is taken again
    check_parents_every: timedelta = timedelta(
        seconds=1
    )  # how often a shard asks whether its parents have ended
    first_audit_after: timedelta = timedelta(seconds=60)
    audit_every: timedelta = timedelta(seconds=120)
    audit_confirmations: int = 3
    clean_up_every: timedelta = timedelta(seconds=60)
    ignore_unexpected_child_shards: bool = False
    leader_lock_duration: timedelta = timedelta(seconds=15)  # a leader that is silent for so long is replaced
    balance_by: BalanceBy = BalanceBy.LOAD
    max_kbps: int | None = None  # whoever delivers more gets no further lease from the leader; None: no limit

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            if isinstance(value, timedelta) and value <= timedelta(0):
                raise ConfigError(f"{setting.name}={value}: expected more than 0")
        if self.audit_confirmations < 1:
            raise ConfigError(
                f"audit_confirmations={self.audit_confirmations}: expected at least 1; the KCL's default is 3"
            )
        if self.failover_after < timedelta(seconds=1):
            raise ConfigError(
                f"failover_after={self.failover_after}: less than a second would cost a healthy member its leases "
                "with every slow write; the KCL's default is 10 seconds"
            )
        if not timedelta(seconds=5) <= self.leader_lock_duration <= timedelta(minutes=10):
            raise ConfigError(
                f"leader_lock_duration={self.leader_lock_duration}: expected 5 seconds to 10 minutes; shorter costs a healthy leader its "
                "place with every slow write, longer leaves a fleet alone"
            )
        for name in ("max_leases", "leases_to_acquire", "max_kbps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}: expected at least 1, or None for no limit")
        if self.refresh_every * 2 > self.failover_after:
            raise ConfigError(
                f"refresh_every={self.refresh_every} is more than half of failover_after={self.failover_after}: "
                "a silent owner would be noticed late"
            )

    @property
    def renew_every(self) -> timedelta:
        """Half the failover time: a heartbeat that does not get through is put again several times before that."""
        return self.failover_after / 2

    @property
    def leader_refresh_every(self) -> timedelta:
        """How often a leader looks: so much later than a heartbeat it sees it, at most."""
        return self.failover_after * 0.4

    @property
    def lease_valid_for(self) -> timedelta:
        """How long a heartbeat proves a lease to ourselves: a little less than others wait, so that we stop first."""
        return self.failover_after * 0.9

    @property
    def snapshot_max_age(self) -> timedelta:
        """How long a look at the table is good for creating leases: far less than finished ones stay there."""
        return self.clean_up_every / 2

    @property
    def keep_finished_for(self) -> timedelta:
        """How long a finished lease is left in the table: nobody who looked before it was there creates it again."""
        return self.clean_up_every * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How shards are read by polling. Kinesis allows 5 calls and 2 MB a second and shard, shared by all readers."""

    records_per_call: int = 10_000
    calls_per_second: float = 5.0
    bytes_per_second: int = 2_000_000
    idle_poll_every: timedelta = timedelta(seconds=1)  # at the tip of a shard
    buffer_bytes: int = 64 * 1024 * 1024  # read ahead, for all shards of the process together
    check_gaps_when_behind: timedelta = timedelta(
        hours=20
    )  # retention is 24 h at least; look for trimmed records then

    def __post_init__(self) -> None:
        if not 1 <= self.records_per_call <= 10_000:
            raise ConfigError(
                f"records_per_call={self.records_per_call}: Kinesis gives 1 to 10,000 records a call"
            )
        if not 0 < self.calls_per_second <= 5:
            raise ConfigError(f"calls_per_second={self.calls_per_second}: Kinesis allows 5 a shard")
        if self.bytes_per_second < 1:
            raise ConfigError(
                f"bytes_per_second={self.bytes_per_second}: Kinesis allows up to 2,000,000 a shard"
            )
        if self.buffer_bytes < 1024 * 1024:
            raise ConfigError(f"buffer_bytes={self.buffer_bytes}: less than one record of 1 MiB")
        if self.idle_poll_every < timedelta(milliseconds=200):
            raise ConfigError(
                f"idle_poll_every={self.idle_poll_every}: Kinesis allows 5 calls a second and shard"
            )


class MetricsLevel(Enum):
    """How much is published to CloudWatch, where every metric costs money. The KCL's levels."""

    NONE = "none"
    SUMMARY = "summary"  # what alarms need
    DETAILED = "detailed"  # and every call


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSettings:
    """How a member can be watched. Logs are always there; they are configured as any other Python logging."""

    status_port: int | None = None  # serves /health and /metrics; 0: any free port; None: neither
    status_host: str = "127.0.0.1"  # another address is open to everyone who can reach it
    stuck_after: timedelta = timedelta(minutes=5)  # without moving; more than the longest batch takes
    cloudwatch_metrics: MetricsLevel = MetricsLevel.NONE

    def __post_init__(self) -> None:
        if self.status_port is not None and not 0 <= self.status_port <= 65_535:
            raise ConfigError(
                f"status_port={self.status_port}: expected 0 to 65535, or None for no status server"
            )
        if not self.status_host:
            raise ConfigError(
                "status_host is empty, which means every address: write 0.0.0.0 if you want that"
            )
        if self.stuck_after < timedelta(seconds=1):
            raise ConfigError(
                f"stuck_after={self.stuck_after}: expected at least a second, and more than the longest batch takes"
            )
