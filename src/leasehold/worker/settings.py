"""Settings of a consumer as frozen values, grouped by concern. Each group checks its values and says what to change.

`options` reads the values from keywords, the environment and a file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Final

from leasehold.config.connection import DYNAMODB_TIMEOUT, ConnectionSettings
from leasehold.config.settings import FanOutSettings, FleetSettings, ObserveSettings, ReadSettings
from leasehold.core.leases.lease_row import TEXT_LENGTH_MAX, is_valid_text
from leasehold.core.model import InitialPosition
from leasehold.core.position import TRIM_HORIZON
from leasehold.core.records.deaggregation import DeaggregationSettings
from leasehold.core.stream_lists import StreamSettings, require_distinct
from leasehold.errors import ConfigError
from leasehold.worker.dead_letters import DeadLetterFunction

# The share of the grace period for handlers. The rest is for the last checkpoints and the release of the leases.
HANDLERS_SHARE_OF_GRACE: Final = 0.8


CONCURRENCY_MAX: Final = 1_000


class OnPoison(Enum):
    """What to do with a poison record, on which the handler fails in every attempt."""

    HOLD = "hold"  # retry for ever; the shard waits, all other shards continue
    DEAD_LETTER = "dead_letter"  # store it as a dead letter and continue
    STOP_SHARD = "stop_shard"  # release the shard; its next owner retries
    STOP_WORKER = "stop_worker"  # drain the other shards, release all leases, raise
    SKIP = "skip"  # continue without it, and report it


class Checkpointing(Enum):
    """What moves the checkpoint."""

    AUTOMATIC = "automatic"  # it follows the handlers that have returned
    MANUAL = "manual"  # only `batch.checkpoint()` and `prepare().commit()` move it


# Returns what `streams` accepts: a list of names, or a mapping of names to starts. May be async.
StreamsFunction = Callable[[], object]
ManyStreams = tuple[StreamSettings, ...] | StreamsFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerIdentity:
    """The streams and the application. All members of an application share its shards."""

    stream: str = ""
    """The name or the ARN of the stream.

    Default: required, or one of the next three
    KCL: streamName, streamArn, streamIdentifier
    """
    streams: ManyStreams = ()
    """Instead of `stream`: [several streams](docs/worker.md#several-streams), as a list of names, or as a mapping of
    names to starting positions; as text, `orders,returns=latest`. In a program, also a function, plain or async,
    that returns one of these, and is called again and again.

    KCL: streamTracker, appStreamTracker
    """
    streams_with_prefix: str = ""
    """Instead of `stream`: all streams whose names begin with it, [as they come and
    go](docs/worker.md#streams-that-come-and-go).

    KCL: streamTracker, appStreamTracker
    """
    streams_with_tag: str = ""
    """Instead of `stream`, or with `streams_with_prefix`: all streams with this tag, `key` or `key=value`.

    KCL: streamTracker, appStreamTracker
    """
    discover_streams_every: timedelta = timedelta(seconds=60)
    """How often streams are listed by prefix or tag, or the function that `streams` names is called."""
    application: str = ""
    """Members with the same application share the shards. It is also the name of the lease table and of the
    CloudWatch namespace.

    Default: required
    KCL: applicationName
    """
    worker_id: str = ""
    """The id of this member, unique in the fleet; at most 2,048 characters, no control characters.

    Default: host, process and a random part
    KCL: workerIdentifier
    """
    initial_position: InitialPosition = field(default_factory=lambda: InitialPosition(TRIM_HORIZON))
    """Where an application without leases begins: `trim_horizon` (or `earliest`), `latest`, a time with its zone
    (`2026-11-15T12:00:00Z`), or [one of the other forms of a time](docs/spark.md#times). Any other text is an
    error, and so is a time in the future. The KCL begins at `latest`, and loses records that arrive before its
    first checkpoint if that fails; here a new application reads everything that is retained unless configured
    otherwise. Once there are leases it has no effect.

    Default: `trim_horizon`
    KCL: initialPositionInStreamExtended
    """

    def __post_init__(self) -> None:
        if self.stream and self.is_multi_stream:
            other = "streams_with_prefix or streams_with_tag" if self.is_listed else "streams"
            raise ConfigError(
                f"stream={self.stream!r} and {other}: "
                "give one of the two; the leases of a single stream and of several streams have different keys"
            )
        if self.streams and self.is_listed:
            raise ConfigError(
                f"streams={self._names()} with streams_with_prefix or streams_with_tag: give a list, or what to list"
            )
        if self.discover_streams_every < timedelta(seconds=1):
            raise ConfigError(
                f"discover_streams_every={self.discover_streams_every}: expected at least a second; Kinesis allows 5 "
                "listings a second in the whole account"
            )
        for name, example in (("stream", "orders"), ("application", "billing")):
            if not getattr(self, name) and not (name == "stream" and self.is_multi_stream):
                raise ConfigError(
                    f"{name} is missing: Consumer({name}={example!r}), LEASEHOLD_{name.upper()} or {name} in the file"
                )
        if not callable(self.streams):
            require_distinct(self.streams)
        if self.worker_id and not is_valid_text(self.worker_id):
            raise ConfigError(
                f"worker_id={self.worker_id[:100]!r}: use at most {TEXT_LENGTH_MAX} characters and no control "
                "characters; members could not read the leases of this worker"
            )

    def _names(self) -> list[str]:
        return [] if callable(self.streams) else [each.name for each in self.streams]

    @property
    def is_listed(self) -> bool:
        """Whether the streams are those of a listing by prefix or tag."""
        return bool(self.streams_with_prefix or self.streams_with_tag)

    @property
    def is_discovering(self) -> bool:
        """Whether the streams are found while the consumer runs."""
        return self.is_listed or callable(self.streams)

    @property
    def is_multi_stream(self) -> bool:
        """Whether lease keys contain the stream."""
        return bool(self.streams) or self.is_listed

    @property
    def initial_positions(self) -> Mapping[str, InitialPosition]:
        """The start of each stream that is known from the settings, by the stream's name."""
        if callable(self.streams) or self.is_listed:
            return {}
        return self.starts(self.streams) if self.streams else {self.stream: self.initial_position}

    def starts(self, streams: Iterable[StreamSettings]) -> Mapping[str, InitialPosition]:
        """The start of each stream, by the stream's name."""
        return {each.name: each.initial_position or self.initial_position for each in streams}


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """When a batch is complete: at whichever limit is reached first."""

    max_records: int = 500
    """The most records of a batch.

    Unit: records
    """
    max_bytes: int = 5 * 1024 * 1024
    """The most bytes of a batch.

    Unit: bytes
    """
    max_wait: timedelta = timedelta(seconds=1)
    """How long the first record of a batch waits for more; 0: deliver what has arrived."""

    def __post_init__(self) -> None:
        for name in ("max_records", "max_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: a batch holds at least 1")
        if self.max_wait < timedelta(0):
            raise ConfigError(f"max_wait={self.max_wait}: expected 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSettings:
    """What happens when a handler raises: retry, search for the poison record, then `on_poison`.

    By default no record is skipped.
    """

    retries: int = 5
    """How often a batch that [fails](docs/worker.md#when-a-handler-fails) is retried, and after bisection a single
    record.

    Unit: attempts
    """
    retry_initial_wait: timedelta = timedelta(milliseconds=200)
    """The longest wait before the first retry; it doubles with each attempt.

    KCL: taskBackoffTimeMillis
    """
    retry_max_wait: timedelta = timedelta(seconds=30)
    """The longest wait before any retry.

    KCL: taskBackoffTimeMillis
    """
    bisect: bool = True
    """Whether a batch that fails is split, to find the poison record."""
    on_poison: OnPoison | None = None
    """What to do with a [poison record](docs/worker.md#when-a-handler-fails): `hold`, `dead_letter`, `stop_shard`,
    `stop_worker` or `skip`.

    Default: `dead_letter` if `dead_letters` is set, else `hold`
    """
    dead_letters: str | DeadLetterFunction | None = None
    """Where dead letters go: a file, a prefix in an object store (`s3://...`), or in a program a function."""

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ConfigError(f"retries={self.retries}: expected 0 or more")
        if not timedelta(0) < self.retry_initial_wait <= self.retry_max_wait:
            raise ConfigError(
                f"retry_initial_wait={self.retry_initial_wait}, retry_max_wait={self.retry_max_wait}: expected "
                "0 < retry_initial_wait <= retry_max_wait"
            )
        has_dead_letters = self.dead_letters is not None
        if self.on_poison is not None and (self.on_poison is OnPoison.DEAD_LETTER) != has_dead_letters:
            raise ConfigError(
                f"on_poison={self.on_poison.value!r} with dead_letters={self.dead_letters!r}: set dead_letters with "
                "on_poison='dead_letter', and only with it"
            )

    @property
    def poison(self) -> OnPoison:
        """The value of `on_poison`, or its default."""
        return self.on_poison or (OnPoison.HOLD if self.dead_letters is None else OnPoison.DEAD_LETTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """When the position of a shard is stored. After a crash, the records since then are delivered again."""

    checkpoint: Checkpointing = Checkpointing.AUTOMATIC
    """What moves the checkpoint: `automatic`, the handlers that have returned; `manual`, only `batch.checkpoint()`
    and `prepare().commit()`. A processor is always manual.

    """
    checkpoint_every: timedelta = timedelta(seconds=5)
    """How long a [checkpoint](docs/worker.md#checkpoints) waits at most for the next heartbeat; 0: store it after
    every batch. Not for a processor.

    """
    checkpoint_records: int | None = None
    """Store the checkpoint after so many records, if that comes first. Not for a processor.

    Unit: records
    """

    def __post_init__(self) -> None:
        if self.checkpoint_every < timedelta(0):
            raise ConfigError(f"checkpoint_every={self.checkpoint_every}: expected 0 or more")
        if self.checkpoint_records is not None and self.checkpoint_records < 1:
            raise ConfigError(
                f"checkpoint_records={self.checkpoint_records}: expected at least 1, or None for no such limit"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordSettings:
    """How a record handler is called."""

    concurrency: int = 1
    """How many records of a shard a [record handler](docs/worker.md#single-records) gets at one time, of different
    partition keys; at most 1,000.

    Unit: records
    """

    def __post_init__(self) -> None:
        if not 1 <= self.concurrency <= CONCURRENCY_MAX:
            raise ConfigError(f"concurrency={self.concurrency}: expected 1 to {CONCURRENCY_MAX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """How this process runs handlers and how it stops."""

    grace: timedelta = timedelta(seconds=25)
    """The time for a clean stop. Kubernetes kills after 30 seconds."""
    max_handlers: int = 64
    """The most handlers that run at one time.

    Unit: calls
    """
    measure_load: bool = True
    """Whether to measure processor use and report it to the leader. With false, the leader balances by throughput
    alone.

    KCL: disableWorkerMetrics
    """

    def __post_init__(self) -> None:
        if self.grace <= timedelta(0):
            raise ConfigError(f"grace={self.grace}: expected more than 0")
        if self.max_handlers < 1:
            raise ConfigError(f"max_handlers={self.max_handlers}: expected at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlingSettings:
    """All settings of one handler. Options of the decorator override settings of the consumer."""

    batch: BatchSettings = field(default_factory=BatchSettings)
    errors: ErrorSettings = field(default_factory=ErrorSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    records: RecordSettings = field(default_factory=RecordSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """All settings of one consumer."""

    identity: ConsumerIdentity
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    handling: HandlingSettings = field(default_factory=HandlingSettings)
    process: ProcessSettings = field(default_factory=ProcessSettings)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    read: ReadSettings = field(default_factory=ReadSettings)
    fan_out: FanOutSettings = field(default_factory=FanOutSettings)
    deaggregation: DeaggregationSettings = field(default_factory=DeaggregationSettings)
    observe: ObserveSettings = field(default_factory=ObserveSettings)

    def __post_init__(self) -> None:
        # The default is accepted with every failover time: nobody has chosen it.
        if self.connection.dynamodb_timeout > max(DYNAMODB_TIMEOUT, self.fleet.failover_after):
            raise ConfigError(
                f"dynamodb_timeout={self.connection.dynamodb_timeout} with failover_after={self.fleet.failover_after}: "
                "expected less; a heartbeat that waits so long loses its lease"
            )
        if self.fan_out.consumer_arn is not None and self.identity.is_multi_stream:
            raise ConfigError(
                f"consumer_arn={self.fan_out.consumer_arn!r} with several streams: it belongs to one of them; give "
                "consumer_name, which is registered for each stream"
            )
        if self.connection.archive is not None and self.identity.is_multi_stream:
            raise ConfigError(
                f"archive={self.connection.archive!r} with several streams: an archive has one stream; run a consumer "
                "for each stream"
            )
        if self.connection.archive is not None and self.fan_out.is_fan_out:
            raise ConfigError(
                f"archive={self.connection.archive!r} with retrieval={self.fan_out.retrieval.value!r}: history is read "
                "by polling; set retrieval='polling', and start again with fan-out when the archive was read"
            )
        if self.fleet.delete_former_streams_after is not None and not self.identity.is_multi_stream:
            raise ConfigError(
                f"delete_former_streams_after={self.fleet.delete_former_streams_after} with stream="
                f"{self.identity.stream!r}: it has an effect only with several streams; remove it"
            )
