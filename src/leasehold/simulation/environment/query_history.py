"""What a simulated Spark query did: the slices that its tasks delivered, and the batches that Spark committed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.model import LeaseKey
from leasehold.core.position import Position
from leasehold.simulation.environment.ledger import RecordKey
from leasehold.simulation.environment.process import SimulatedProcess


@dataclass(frozen=True, slots=True)
class DeliveredSlice:
    """The rows of one shard that a task passed on to the sink."""

    by: SimulatedProcess
    generation_id: GenerationId
    shard: LeaseKey
    records: tuple[RecordKey, ...]
    start: Position
    end: Position
    continues_poll: bool  # the driver polled the shard near its tip, and the task continues with its iterator
    has_gap: bool  # this attempt has reported that records of the shard were trimmed


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch that the source planned and Spark logged."""

    by: SimulatedProcess
    batch: int
    generation_id: GenerationId
    offset: str


@dataclass(frozen=True, slots=True)
class CommittedBatch:
    """A batch whose tasks have all succeeded, and which Spark commits to the sink."""

    by: SimulatedProcess
    batch: int
    generation_id: GenerationId
    slices: tuple[DeliveredSlice, ...]


@dataclass(frozen=True, slots=True)
class BoundedRun:
    """A run with `availableNow`. `produced` is the number of records of each shard when it began."""

    by: SimulatedProcess
    member: SimulatedProcess
    began_ms: int
    produced: Mapping[LeaseKey, int]


@dataclass(slots=True)
class QueryHistory:
    """Events in the life of a query after which some promises do not hold."""

    has_query: bool = False  # False: no Spark query in this run
    has_archive: bool = False  # it writes to the archive; otherwise to a sink that stores batch ids
    is_alone: bool = False  # no worker shares its stream
    # The operator continued after an error in a way that delivers records again.
    may_repeat: bool = False
    had_old_log: bool = False  # an old copy of the checkpoint location was put back
    fail_on_data_loss: set[SimulatedProcess] = field(default_factory=set)  # the executors with this option
    sink: dict[tuple[str, int], tuple[DeliveredSlice, ...]] = field(
        default_factory=dict
    )  # by query id and batch
