"""The parameters of reading a shard: `ReadRequest` says what is read, `ReadContext` says how."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from leasehold.config.settings import ReadSettings
from leasehold.core.events import Observer
from leasehold.core.model import HashRange, InitialPosition, ShardId
from leasehold.core.position import Position
from leasehold.core.records.deaggregation import DeaggregationSettings
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.chunking import Demand
from leasehold.fleet.reading.stream_consumer import StreamConsumer
from leasehold.ports import Clock, Stream


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """One shard, and where to start.

    `initial` resolves a `start` that is not a record. `hash_range` is that of the shard, if known; user records of an
    aggregate outside of it belong to another shard. The last six are optional knowledge of the caller:

    - `iterator` points right after `start`, saves a GetShardIterator call, and shows that nothing was trimmed there;
    - `follows_parent`: a parent of the shard was read to its end, so a trimmed beginning of this shard is a gap;
    - `record_weight` from earlier reading of the shard saves a first, small call;
    - `demand` keeps the reader from fetching records that the consumer will not take;
    - `in_one_call`: the consumer takes all of its demand, and then nothing for a while;
    - `wait_ms`: the shard was read recently, and has its quota again after this time.
    """

    shard: ShardId
    start: Position
    initial: InitialPosition
    hash_range: HashRange | None = None
    iterator: str | None = None
    follows_parent: bool = False
    record_weight: int | None = None
    demand: Demand = field(default_factory=Demand)
    in_one_call: bool = False
    wait_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadContext:
    """The stream, the settings, and the ports that a reader uses. With a `consumer` it subscribes, else it polls.

    With `subscribes_once`, for short readings, it subscribes at most once, and only if that is possible without a wait.
    Otherwise it polls.
    """

    stream: Stream
    settings: ReadSettings
    deaggregation: DeaggregationSettings
    budget: ByteBudget
    clock: Clock
    rng: random.Random
    observe: Observer
    subscribes_once: bool
    consumer: StreamConsumer | None = None
