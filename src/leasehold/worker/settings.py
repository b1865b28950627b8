"""What a consumer can be told, as frozen values in small groups. Each checks itself, and says what to do instead.

Where the values come from (keywords, environment, a file) is the business of `options`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Final

from leasehold.config.settings import FleetSettings, ObserveSettings, ReadSettings
from leasehold.core.model import InitialPosition
from leasehold.core.position import TRIM_HORIZON
from leasehold.core.records.deaggregation import DeaggregationSettings
from leasehold.errors import ConfigError
from leasehold.worker.dead_letters import DeadLetterFunction

# Of the grace period, what handlers may use; the rest is for the last checkpoints and for releasing the leases.
HANDLERS_SHARE_OF_GRACE: Final = 0.8


class OnPoison(Enum):
    """What becomes of a record on which the handler keeps failing."""

    HOLD = "hold"  # go on trying; the shard waits, all others go on
    DEAD_LETTER = "dead_letter"  # put it aside, go on
    STOP_SHARD = "stop_shard"  # give the shard up for now; whoever takes it next tries again
    STOP_WORKER = "stop_worker"  # drain the other shards, release everything, raise
    SKIP = "skip"  # pass over it, and say so


class Checkpointing(Enum):
    """Who decides when a position is stored."""

    AUTOMATIC = "automatic"  # it follows the handlers that have returned
    MANUAL = "manual"  # only `batch.checkpoint()` and `prepare().commit()` move it


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """One of several streams: its name, ARN or identifier, and where it begins if not where all do."""

    name: str
    initial_position: InitialPosition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerIdentity:
    """Which stream or streams, in whose name. All members with one application name share the shards among them."""

    stream: str = ""
    streams: tuple[StreamSettings, ...] = ()  # several in one lease table; all members should have the same
    application: str = ""
    worker_id: str = ""  # unique; empty: host, process and a random part
    # A consumer that must not lose a record begins at the oldest one. It matters only while there are no leases.
    initial_position: InitialPosition = field(default_factory=lambda: InitialPosition(TRIM_HORIZON))

    def __post_init__(self) -> None:
        if self.stream and self.streams:
            raise ConfigError(
                f"stream={self.stream!r} and streams={self._names()}: give one of the two; leases of a single stream "
                "and of several have different keys"
            )
        for name, example in (("stream", "orders"), ("application", "billing")):
            if not getattr(self, name) and not (name == "stream" and self.streams):
                raise ConfigError(
                    f"{name} is missing: Consumer({name}={example!r}), LEASEHOLD_{name.upper()} or {name} in the file"
                )
        for name in (names := self._names()):
            if names.count(name) > 1:
                raise ConfigError(f"streams={names}: {name} is there twice")

    def _names(self) -> list[str]:
        return [each.name for each in self.streams]

    @property
    def initial_positions(self) -> Mapping[str, InitialPosition]:
        """The streams, and where each begins."""
        if not self.streams:
            return {self.stream: self.initial_position}
        return {each.name: each.initial_position or self.initial_position for each in self.streams}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionSettings:
    """How AWS is reached, and where the leases are. What is None is left to the AWS SDK's own chain."""

    leases: str = "dynamodb"  # or sqlite:///file for one machine
    lease_table: str | None = None  # None: named like the application
    region: str | None = None
    profile: str | None = None
    role_arn: str | None = None
    role_external_id: str | None = None  # what the role's owner asks for, in another account
    role_session_name: str | None = None
    kinesis_endpoint: str | None = None
    dynamodb_endpoint: str | None = None
    cloudwatch_endpoint: str | None = None
    s3_endpoint: str | None = None  # for dead letters

    def __post_init__(self) -> None:
        if self.leases != "dynamodb" and not self.leases.startswith("sqlite:///"):
            raise ConfigError(
                f"leases={self.leases!r}: expected 'dynamodb', or 'sqlite:///leases.sqlite' (one machine; four "
                "slashes begin an absolute path)"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """When a batch is full: whichever limit is reached first."""

    max_records: int = 500
    max_bytes: int = 5 * 1024 * 1024
    max_wait: timedelta = timedelta(seconds=1)  # of its first record; 0: whatever has arrived

    def __post_init__(self) -> None:
        for name in ("max_records", "max_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)}: a batch holds at least 1")
        if self.max_wait < timedelta(0):
            raise ConfigError(f"max_wait={self.max_wait}: expected 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorSettings:
    """What happens when a handler raises: try again, find the record, then `on_poison`. Never skips by default."""

    retries: int = 5
    retry_initial_wait: timedelta = timedelta(milliseconds=200)  # the first wait at most; it doubles
    retry_max_wait: timedelta = timedelta(seconds=30)
    bisect: bool = True
    on_poison: OnPoison | None = None  # None: dead_letter where dead_letters are given, else hold
    dead_letters: str | DeadLetterFunction | None = (
        None  # a file, an object store prefix (s3://...), or a function
    )

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ConfigError(f"retries={self.retries}: expected 0 or more")
        if not timedelta(0) < self.retry_initial_wait <= self.retry_max_wait:
            raise ConfigError(
                f"retry_initial_wait={self.retry_initial_wait}, retry_max_wait={self.retry_max_wait}: expected 0 < retry_initial_wait <= retry_max_wait"
            )
        wanted = self.dead_letters is not None
        if self.on_poison is not None and (self.on_poison is OnPoison.DEAD_LETTER) != wanted:
            raise ConfigError(
                f"on_poison={self.on_poison.value!r} with dead_letters={self.dead_letters!r}: name a place for dead "
                "letters with on_poison='dead_letter', and only with it"
            )

    @property
    def poison(self) -> OnPoison:
        """What becomes of a record on which the handler keeps failing."""
        return self.on_poison or (OnPoison.HOLD if self.dead_letters is None else OnPoison.DEAD_LETTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSettings:
    """When the position of a shard is stored. A crash repeats what was done since."""

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
    """How this process runs handlers, and how it stops."""

    grace: timedelta = timedelta(seconds=25)  # Kubernetes kills after 30
    max_handlers: int = 64  # that run at one time

    def __post_init__(self) -> None:
        if self.grace <= timedelta(0):
            raise ConfigError(f"grace={self.grace}: expected more than 0")
        if self.max_handlers < 1:
            raise ConfigError(f"max_handlers={self.max_handlers}: expected at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlingSettings:
    """Everything about one handler. What the decorator says goes before what the consumer says."""

    batch: BatchSettings = field(default_factory=BatchSettings)
    errors: ErrorSettings = field(default_factory=ErrorSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerSettings:
    """Everything about one consumer."""

    identity: ConsumerIdentity
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    handling: HandlingSettings = field(default_factory=HandlingSettings)
    process: ProcessSettings = field(default_factory=ProcessSettings)
    fleet: FleetSettings = field(default_factory=FleetSettings)
    read: ReadSettings = field(default_factory=ReadSettings)
    deaggregation: DeaggregationSettings = field(default_factory=DeaggregationSettings)
    observe: ObserveSettings = field(default_factory=ObserveSettings)
