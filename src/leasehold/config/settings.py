"""Settings as frozen values, grouped by concern. Each group checks its values and says what to change."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from datetime import timedelta
from enum import Enum
from typing import Final

from leasehold.errors import ConfigError

_NAMESPACE: Final = re.compile(r"(?!AWS/|:)[A-Za-z0-9._/#: -]{1,255}")
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
    """How leases are assigned: `auto` joins the existing fleet, and gives a new fleet a leader; `leader`: one
    member, elected, assigns by load (KCL 3.x); `peer`: each member takes its share (KCL 2.x).

    KCL: clientVersionConfig
    """
    failover_after: timedelta = timedelta(seconds=10)
    """A lease that has not been renewed for so long is free. Must be the same for all members, Java members
    included.

    KCL: failoverTimeMillis
    """
    refresh_every: timedelta = timedelta(seconds=1.8)
    """How often a member reads the lease table; less often under a leader of ours, which nudges its members."""
    max_leases: int | None = None
    """The most leases of this member; a leader with this setting applies it to each member.

    Unit: leases
    Default: no limit
    KCL: maxLeasesForWorker
    """
    leases_to_acquire: int | None = None
    """Free leases that this member takes in one refresh; a leader with this setting assigns so many to each member
    in one decision, and decides again after `refresh_every` while leases remain.

    Unit: leases
    Default: its whole share
    """
    leases_to_request: int | None = None
    """Leases of others that this member requests in one refresh to even out the numbers; a leader with this setting
    lets so many be moved at one time.

    Unit: leases
    Default: a quarter of what it lacks
    KCL: maxLeasesToStealAtOneTime
    """
    handoff: bool = True
    """Whether leases move by handoff, which repeats nothing. With false they are taken by force, and the batch in
    flight is repeated: for [fleets with KCL 1.x](docs/java.md#joining), whose members know no handoff.

    KCL: isGracefulLeaseHandoffEnabled
    """
    handoff_timeout: timedelta = timedelta(seconds=30)
    """The time for an owner to finish its batch; after that it declines the request. An owner that does not react
    loses the lease. Must be the same for all members, Java members included.

    KCL: gracefulLeaseHandoffTimeoutMillis
    """
    stalled_after: timedelta = timedelta(minutes=15)
    """A shard without progress for so long is given up (one from which nothing was ever read, after a minute)."""
    cooldown_after_failure: timedelta = timedelta(seconds=10)
    """How long a member waits before it takes a shard again that was given up."""
    check_parents_every: timedelta = timedelta(seconds=1)
    """How often a shard checks whether its parents have ended.

    KCL: parentShardPollIntervalMillis
    """
    first_audit_after: timedelta = timedelta(seconds=60)
    """When a member first searches for shards without a lease, after its start."""
    audit_every: timedelta = timedelta(seconds=120)
    """How often it does so after that.

    KCL: leasesRecoveryAuditorExecutionFrequencyMillis
    """
    audit_confirmations: int = 3
    """How many audits in a row must see a shard without a lease before it gets one.

    Unit: audits
    KCL: leasesRecoveryAuditorInconsistencyConfidenceThreshold
    """
    clean_up: bool = True
    """Whether leases of finished shards are deleted; with false they stay, and are harmless.

    KCL: cleanupLeasesUponShardCompletion
    """
    clean_up_every: timedelta = timedelta(seconds=60)
    """How often leases of finished shards are looked for.

    KCL: leaseCleanupIntervalMillis
    """
    keep_finished_for: timedelta | None = None
    """How long such a lease stays at least. 5 minutes in the KCL.

    Default: twice `clean_up_every`
    KCL: completedLeaseCleanupIntervalMillis
    """
    ignore_unexpected_child_shards: bool = False
    """Whether a list of shards is used although it has a child of a shard that is still open: the stream was resharded
    while the list was read. With false, the shards are listed again.

    KCL: ignoreUnexpectedChildShards
    """
    delete_former_streams_after: timedelta | None = None
    """When to delete leases of streams [that nobody reads](docs/worker.md#streams-that-come-and-go); at least two
    failover times.

    Default: never
    """
    on_recreated_stream: OnRecreatedStream = OnRecreatedStream.FAIL
    """What to do if [the stream was deleted and created
    again](docs/worker.md#a-stream-that-was-deleted-and-created-again): `fail`, or `start_over` at the oldest
    record of the new stream.

    """
    leader_lock_duration: timedelta = timedelta(seconds=15)
    """A leader is replaced when a standby has seen no heartbeat of it for so long. 120 s in the KCL.

    KCL: dynamoDbLockBasedLeaderLeaseDurationInMillis
    """
    balance_by: BalanceBy = BalanceBy.LOAD
    """What a leader evens out: `load` (throughput, processor use) or `count` (the number of leases).

    KCL: leaseAssignmentStrategy
    """
    max_kbps: int | None = None
    """A member that delivers more gets no further lease from the leader.

    Unit: kB a second
    Default: no limit
    KCL: maxThroughputPerHostKBps
    """
    balance_threshold: float = 10.0
    """A leader balances by load if a member is further from the mean load than this, and than two points of
    processor use.

    Unit: percent of the mean
    KCL: reBalanceThresholdPercentage
    """
    balance_step: float = 100.0
    """How much of a member's load above the mean one round of balancing moves. With less than 100, set
    `balance_every` so that reports show the effect of a round, `60s` or more.

    Unit: percent
    KCL: dampeningPercentage
    """
    balance_every: timedelta = timedelta(seconds=1)
    """The least time between two rounds of balancing; a leader decides every 0.4 failover times. In the KCL it is a
    number of assignment intervals, 60 s.

    KCL: varianceBalancingFrequency
    """
    balance_overshoot: bool = True
    """Whether a member may give a lease that is larger than its part above the mean, if the loads become more even.

    KCL: allowThroughputOvershoot
    """
    newest_report_weight: float = 0.5
    """The weight of a member's newest report in its processor use, as its leader computes it; 1 ignores all earlier
    reports.

    Unit: 0 to 1
    KCL: workerMetricsEMAAlpha
    """
    max_utilisation: int = 100
    """How much of its processor this member wants to use at most: a leader relieves it above, and balances no lease
    to it that would bring it above. 100 is no limit. The KCL's `OperatingRange`, `maxUtilization`.

    Unit: percent
    """

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
    """The most records of one GetRecords call.

    Unit: records
    KCL: maxRecords
    """
    calls_per_second: float = 5.0
    """The most calls a second and shard. Kinesis allows 5, for all readers of the shard together: leave some for
    others.

    Unit: calls a second and shard
    KCL: idleTimeBetweenReadsInMillis
    """
    bytes_per_second: int = 2_000_000
    """The most bytes a second and shard. Kinesis allows 2 MB, for all readers of the shard together.

    Unit: bytes a second and shard
    """
    idle_poll_every: timedelta = timedelta(seconds=1)
    """How often a shard is polled at its tip.

    KCL: idleTimeBetweenReadsInMillis
    """
    buffer_bytes: int = 64 * 1024 * 1024
    """Records that are read and not yet handled, in the whole process: above this limit, reading stops.

    Unit: bytes
    KCL: maxPendingProcessRecordsInput
    """
    check_gaps_when_behind: timedelta = timedelta(hours=20)
    """A reader that is so far behind checks for trimmed records. Retention is at least 24 hours."""

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
    """How shards are read: `polling`; `fan_out`, [enhanced fan-out](docs/worker.md#enhanced-fan-out); `auto`:
    fan-out, or polling where Kinesis refuses it.

    KCL: retrievalSpecificConfig, retrievalMode
    """
    consumer_name: str | None = None
    """The registered consumer for fan-out; it is registered if it does not exist.

    Default: the application
    KCL: consumerName
    """
    consumer_arn: str | None = None
    """A registered consumer that exists, instead of a name; for one stream.

    KCL: consumerArn
    """
    http2: bool = False
    """Whether to subscribe over HTTP/2: [fewer connections](docs/worker.md#enhanced-fan-out), more processor time.
    Needs the extra `http2`.

    """

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


class MetricsOutput(Enum):
    """Where metrics go besides Prometheus and CloudWatch's API."""

    NONE = "none"
    EMF = "emf"  # CloudWatch's embedded metric format, on stdout
    OPENTELEMETRY = "opentelemetry"  # the extra `opentelemetry`


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveSettings:
    """How to monitor a member. Logs are always written; configure them with Python's logging."""

    status_port: int | None = None
    """The port of `/health` and `/metrics`; 0 takes any free port, and logs it.

    Default: no server
    """
    status_host: str = "127.0.0.1"
    """The address that it listens on. Another address than this machine's own must be set explicitly; then everyone
    who can reach it can read both.

    """
    stuck_after: timedelta = timedelta(minutes=5)
    """How long a shard may have work without progress before it is [unhealthy](docs/observing.md#health). Choose
    more than your longest batch takes.

    KCL: logWarningForTaskAfterMillis
    """
    cloudwatch_metrics: MetricsLevel = MetricsLevel.NONE
    """What is published to [CloudWatch](docs/observing.md#cloudwatch) by its API: `none`, `summary` or `detailed`.

    KCL: metricsLevel
    """
    metrics: MetricsOutput = MetricsOutput.NONE
    """Where metrics go besides: `emf`, CloudWatch's metrics [on stdout](docs/observing.md#metrics-on-stdout);
    `opentelemetry`, [OpenTelemetry](docs/observing.md#opentelemetry).

    KCL: metricsBackend, openTelemetry
    """
    metrics_level: MetricsLevel = MetricsLevel.SUMMARY
    """What is written to stdout: `summary` or `detailed`."""
    metrics_namespace: str | None = None
    """The namespace in CloudWatch.

    Default: the application
    KCL: namespace
    """
    metrics_dimensions: str | None = None
    """Which [dimensions](docs/observing.md#cloudwatch) metrics have in CloudWatch, and constant ones:
    `Operation,Service=orders`.

    Default: those of the KCL
    KCL: metricsEnabledDimensions
    """

    def __post_init__(self) -> None:
        if self.status_port is not None and not 0 <= self.status_port <= 65_535:
            raise ConfigError(
                f"status_port={self.status_port}: expected 0 to 65535, or None for no status server"
            )
        if not self.status_host:
            raise ConfigError("status_host is empty, which would mean every address: write 0.0.0.0 for that")
        if self.metrics_level is MetricsLevel.NONE:
            raise ConfigError("metrics_level='none': set metrics='none' instead")
        if self.metrics_namespace is not None and not _NAMESPACE.fullmatch(self.metrics_namespace):
            raise ConfigError(
                f"metrics_namespace={self.metrics_namespace!r}: expected up to 255 letters, digits and . - _ / # :, "
                "not beginning with AWS/"
            )
        if self.stuck_after < timedelta(seconds=1):
            raise ConfigError(
                f"stuck_after={self.stuck_after}: expected at least a second, and more than the longest batch takes"
            )
