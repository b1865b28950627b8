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
from leasehold.errors import ConfigError
from leasehold.worker.dead_letters import DeadLetterFunction

# The share of the grace period for handlers. The rest is for the last checkpoints and the release of the leases.
HANDLERS_SHARE_OF_GRACE: Final = 0.8


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


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """One of several streams: its name, ARN or identifier, and its own start if it differs from the common one."""

    name: str
    initial_position: InitialPosition | None = None


# Returns what `streams` accepts: a list of names, or a mapping of names to starts. May be async.
StreamsFunction = Callable[[], object]
ManyStreams = tuple[StreamSettings, ...] | StreamsFunction


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerIdentity:
    """The streams and the application. All members of an application share its shards."""

    stream: str = ""
    # Several in one lease table; the same for all members. Or a function that is asked for them again and again.
    streams: ManyStreams = ()
    streams_with_prefix: str = ""  # instead: all streams whose names begin with it, as they come and go
    streams_with_tag: str = ""  # instead: all streams with this tag, `key` or `key=value`
    discover_streams_every: timedelta = timedelta(seconds=60)
    application: str = ""
    worker_id: str = ""  # unique; empty: host, process and a random part
    # Used only for shards without leases. The oldest record by default, so that no record is missed.
    initial_position: InitialPosition = field(default_factory=lambda: InitialPosition(TRIM_HORIZON))

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
        for name in (names := self._names()):
            if names.count(name) > 1:
                raise ConfigError(f"streams={names}: {name} is listed twice")
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
    max_bytes: int = 5 * 1024 * 1024
    max_wait: timedelta = timedelta(seconds=1)  # of the first record; 0: deliver what has arrived

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
    retry_initial_wait: timedelta = timedelta(milliseconds=200)  # at most; it doubles with each attempt
    retry_max_wait: timedelta = timedelta(seconds=30)
    bisect: bool = True
    on_poison: OnPoison | None = None  # None: dead_letter if dead_letters is set, else hold
    # A file, an object store prefix (s3://...), or a function.
    dead_letters: str | DeadLetterFunction | None = None

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
    checkpoint_every: timedelta = timedelta(seconds=5)  # 0: after every batch
    checkpoint_records: int | None = None  # or after so many records, whichever comes first

    def __post_init__(self) -> None:
        if self.checkpoint_every < timedelta(0):
            raise ConfigError(f"checkpoint_every={self.checkpoint_every}: expected 0 or more")
        if self.checkpoint_records is not None and self.checkpoint_records < 1:
            raise ConfigError(
                f"checkpoint_records={self.checkpoint_records}: expected at least 1, or None for no such limit"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """How this process runs handlers and how it stops."""

    grace: timedelta = timedelta(seconds=25)  # for a clean stop; Kubernetes kills after 30 seconds
    max_handlers: int = 64  # that run at one time
    measure_load: bool = True  # report processor use to the leader

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
        if self.fleet.delete_former_streams_after is not None and not self.identity.is_multi_stream:
            raise ConfigError(
                f"delete_former_streams_after={self.fleet.delete_former_streams_after} with stream="
                f"{self.identity.stream!r}: it has an effect only with several streams; remove it"
            )
