"""Settings as frozen values, grouped by concern. Each group checks its values and says what to change."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from typing import Final

from leasehold.errors import ConfigError

_CONSUMER_NAME: Final = re.compile(r"[a-zA-Z0-9_.-]{1,128}")
_CONSUMER_ARN: Final = re.compile(r"arn:[^:]+:kinesis:[^:]*:[0-9]+:stream/[^:/]+/consumer/[^:/]+:[0-9]+")


def milliseconds(duration: timedelta) -> int:
    """Convert a duration to whole milliseconds, the unit of the core."""
    return duration // timedelta(milliseconds=1)


class Mode(Enum):
    """How the members of a fleet assign its leases."""

    AUTO = "auto"  # join the mode of the existing fleet; a new fleet elects a leader
    LEADER = "leader"  # an elected leader assigns leases by load (KCL 3.x)
    PEER = "peer"  # each member takes its own fair share (KCL 2.x)


class BalanceBy(Enum):
    """What a leader balances."""

    LOAD = "load"  # the throughput of the shards and the load of the members
    COUNT = "count"  # the number of leases


class OnRecreatedStream(Enum):
    """What to do if the stream was deleted and created again under its name, so that its leases are outdated."""

    FAIL = "fail"  # stop with an error; nothing is changed
    START_OVER = "start_over"  # let all leases begin at the oldest record of the new stream


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSettings:
    """How a member keeps its leases and shares the shards with other members.

    `failover_after` must be the same for all members, including Java members (there: failoverTimeMillis).
    It has more than 12 attributes because each setting of a fleet is one.
    """

    mode: Mode = Mode.AUTO
    failover_after: timedelta = timedelta(seconds=10)
    refresh_every: timedelta = timedelta(seconds=1.8)  # reads of the lease table, unless nudges replace them
    max_leases: int | None = None  # of this member, and as a leader of each member; None: no limit
    # Free leases that a member gets in one refresh, also from a leader that has this setting; None: its whole share.
    leases_to_acquire: int | None = None
    # Leases of other members that a member requests in one refresh, or that a leader moves in one round; None: by need.
    leases_to_request: int | None = None
    # Leases move by handoff, which repeats nothing. False: they are taken by force, as beside members that know none.
    handoff: bool = True
    handoff_timeout: timedelta = timedelta(seconds=30)  # for the old owner to finish its delivered records
    stalled_after: timedelta = timedelta(minutes=15)  # a shard without progress is released after this time
    cooldown_after_failure: timedelta = timedelta(
        seconds=10
    )  # before a member takes a shard again that failed
    check_parents_every: timedelta = timedelta(seconds=1)  # while a shard waits for the end of its parents
    first_audit_after: timedelta = timedelta(seconds=60)
    audit_every: timedelta = timedelta(seconds=120)
    audit_confirmations: int = 3
    clean_up: bool = True  # delete the leases of finished shards; False: they stay for ever
    clean_up_every: timedelta = timedelta(seconds=60)
    keep_finished_for: timedelta | None = None  # how long they stay at least; None: twice clean_up_every
    ignore_unexpected_child_shards: bool = False
    delete_former_streams_after: timedelta | None = (
        None  # leases of streams that no member reads; None: never
    )
    on_recreated_stream: OnRecreatedStream = OnRecreatedStream.FAIL
    leader_lock_duration: timedelta = timedelta(seconds=15)  # a leader that is silent for so long is replaced
    balance_by: BalanceBy = BalanceBy.LOAD
    max_kbps: int | None = None  # the leader assigns no more leases to a member above it; None: no limit
    balance_threshold: float = (
        10.0  # percent of the mean load: balancing starts if a member is further from it
    )
    balance_step: float = 100.0  # percent of a member's excess load that one round of balancing moves
    balance_every: timedelta = timedelta(seconds=1)  # the least time between two rounds
    balance_overshoot: bool = True  # a lease may move that is larger than the excess of its member
    newest_report_weight: float = 0.5  # of a member's newest report in its utilisation, for the leader
    max_utilisation: int = 100  # percent; a leader relieves this member above it; 100: no limit

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
                f"failover_after={self.failover_after}: with less than a second, a healthy member loses its leases "
                "at each slow write; the KCL's default is 10 seconds"
            )
        if self.delete_former_streams_after and self.delete_former_streams_after < self.failover_after * 2:
            raise ConfigError(
                f"delete_former_streams_after={self.delete_former_streams_after}: expected at least twice "
                f"failover_after={self.failover_after}, so that a lease in use is never deleted, or None to keep leases"
            )
        if not timedelta(seconds=5) <= self.leader_lock_duration <= timedelta(minutes=10):
            raise ConfigError(
                f"leader_lock_duration={self.leader_lock_duration}: expected 5 seconds to 10 minutes; with less, a "
                "healthy leader is replaced at each slow write, with more, a fleet stays long without a leader"
            )
        if self.finished_age_min < self.clean_up_every * 2:
            raise ConfigError(
                f"keep_finished_for={self.keep_finished_for}: expected at least twice clean_up_every="
                f"{self.clean_up_every}; a delayed member could create a deleted lease again"
            )
        for name in ("max_leases", "leases_to_acquire", "leases_to_request", "max_kbps"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value}: expected at least 1, or None for no limit")
        for name, most in (("balance_threshold", 100), ("balance_step", 100), ("newest_report_weight", 1)):
            if not 0 < getattr(self, name) <= most:
                raise ConfigError(f"{name}={getattr(self, name)}: expected more than 0, and at most {most}")
        if not 1 <= self.max_utilisation <= 100:
            raise ConfigError(
                f"max_utilisation={self.max_utilisation}: expected 1 to 100 percent; 100 means no limit"
            )
        if self.refresh_every * 2 > self.failover_after:
            raise ConfigError(
                f"refresh_every={self.refresh_every} is more than half of failover_after={self.failover_after}: "
                "the fleet would notice a silent owner late"
            )

    @property
    def renew_every(self) -> timedelta:
        """The interval of heartbeats: half the failover time, so that a failed heartbeat can be retried in time."""
        return self.failover_after / 2

    @property
    def leader_refresh_every(self) -> timedelta:
        """The interval of a leader's refreshes, and so the longest delay until it sees a heartbeat."""
        return self.failover_after * 0.4

    @property
    def lease_valid_for(self) -> timedelta:
        """How long a heartbeat is valid for its owner: less than the failover time, so that the owner stops first."""
        return self.failover_after * 0.9

    @property
    def snapshot_max_age(self) -> timedelta:
        """The age up to which a table snapshot may be used to create leases: far less than `finished_age_min`."""
        return self.clean_up_every / 2

    @property
    def finished_age_min(self) -> timedelta:
        """How long a finished lease stays in the table, so that no member creates it again from an old snapshot."""
        return self.keep_finished_for or self.clean_up_every * 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadSettings:
    """How shards are polled. Kinesis allows 5 calls and 2 MB per second and shard, for all readers together."""

    records_per_call: int = 10_000
    calls_per_second: float = 5.0
    bytes_per_second: int = 2_000_000
    idle_poll_every: timedelta = timedelta(seconds=1)  # at the tip of a shard
    buffer_bytes: int = 64 * 1024 * 1024  # read-ahead of all shards of the process together
    # Retention is at least 24 hours. A reader so far behind checks for trimmed records.
    check_gaps_when_behind: timedelta = timedelta(hours=20)

    def __post_init__(self) -> None:
        if not 1 <= self.records_per_call <= 10_000:
            raise ConfigError(
                f"records_per_call={self.records_per_call}: Kinesis returns 1 to 10,000 records per call"
            )
        if not 0 < self.calls_per_second <= 5:
            raise ConfigError(f"calls_per_second={self.calls_per_second}: Kinesis allows 5 per shard")
        if self.bytes_per_second < 1:
            raise ConfigError(
                f"bytes_per_second={self.bytes_per_second}: Kinesis allows up to 2,000,000 per shard"
            )
        if self.buffer_bytes < 1024 * 1024:
            raise ConfigError(f"buffer_bytes={self.buffer_bytes}: less than one record of 1 MiB")
        if self.idle_poll_every < timedelta(milliseconds=200):
            raise ConfigError(
                f"idle_poll_every={self.idle_poll_every}: Kinesis allows 5 calls per second and shard"
            )


class Retrieval(Enum):
    """How shards are read."""

    POLLING = "polling"  # GetRecords; 2 MB per second and shard, shared by all consumers that poll
    FAN_OUT = (
        "fan_out"  # SubscribeToShard; 2 MB per second and shard for each consumer, which AWS charges for
    )
    AUTO = "auto"  # fan_out, or polling if the service refuses it


@dataclass(frozen=True, slots=True, kw_only=True)
class FanOutSettings:
    """Whether shards are read by enhanced fan-out, and with which registered consumer."""

    retrieval: Retrieval = Retrieval.POLLING
    consumer_name: str | None = None  # None: named like the application, as in the Java KCL
    consumer_arn: str | None = None  # of a consumer that exists already; it is never registered
    http2: bool = False  # many subscriptions on one connection, for more processor time

    def __post_init__(self) -> None:
        if self.consumer_name is not None and self.consumer_arn is not None:
            raise ConfigError(
                f"consumer_name={self.consumer_name!r} and consumer_arn={self.consumer_arn!r}: give one of the two"
            )
        for name in ("consumer_name", "consumer_arn", "http2"):
            value = getattr(self, name)
            if value and self.retrieval is Retrieval.POLLING:
                raise ConfigError(
                    f"{name}={value!r} has no effect with retrieval='polling': set retrieval='fan_out' or 'auto'"
                )
        if self.consumer_name is not None and not _CONSUMER_NAME.fullmatch(self.consumer_name):
            raise ConfigError(
                f"consumer_name={self.consumer_name!r}: expected 1 to 128 letters, digits, '_', '.' and '-'"
            )
        if self.consumer_arn is not None and not _CONSUMER_ARN.fullmatch(self.consumer_arn):
            raise ConfigError(
                f"consumer_arn={self.consumer_arn!r}: expected arn:aws:kinesis:...:stream/NAME/consumer/NAME:TIME"
            )

    @property
    def is_fan_out(self) -> bool:
        """Whether to subscribe, at least at first."""
        return self.retrieval is not Retrieval.POLLING


class MetricsLevel(Enum):
    """How many metrics are published to CloudWatch, which charges for each. The levels are the KCL's."""

    NONE = "none"
    SUMMARY = "summary"  # the metrics that alarms need
    DETAILED = "detailed"  # and metrics of every call


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSettings:
    """How to monitor a member. Logs are always written; configure them with Python's logging."""

    status_port: int | None = None  # serves /health and /metrics; 0: any free port; None: no status server
    status_host: str = "127.0.0.1"  # any other address is open to everyone who can reach it
    stuck_after: timedelta = timedelta(minutes=5)  # without progress; more than the longest batch takes
    cloudwatch_metrics: MetricsLevel = MetricsLevel.NONE

    def __post_init__(self) -> None:
        if self.status_port is not None and not 0 <= self.status_port <= 65_535:
            raise ConfigError(
                f"status_port={self.status_port}: expected 0 to 65535, or None for no status server"
            )
        if not self.status_host:
            raise ConfigError("status_host is empty, which would mean every address: write 0.0.0.0 for that")
        if self.stuck_after < timedelta(seconds=1):
            raise ConfigError(
                f"stuck_after={self.stuck_after}: expected at least a second, and more than the longest batch takes"
            )
