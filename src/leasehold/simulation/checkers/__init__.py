"""The checkers, one file per promise. A checker follows a whole run and reports a broken promise."""

from __future__ import annotations

from typing import Final

from leasehold.simulation.checkers.archive_contents import ArchiveEqualsProduced
from leasehold.simulation.checkers.archive_reading import ReadersSeeEachRecordOnce
from leasehold.simulation.checkers.balance import BalancedAndStable
from leasehold.simulation.checkers.base import Checker as Checker
from leasehold.simulation.checkers.buffer_budget import BufferWithinBudget
from leasehold.simulation.checkers.call_budget import CallsWithinBudget
from leasehold.simulation.checkers.checkpoints import CheckpointsNeverGoBack
from leasehold.simulation.checkers.clean_handoffs import CleanHandoffsRepeatNothing
from leasehold.simulation.checkers.clean_stop import CleanStop
from leasehold.simulation.checkers.dead_letters import DeadLettersHoldThePoison
from leasehold.simulation.checkers.delivery_order import OrderByKey, OrderWithinASession
from leasehold.simulation.checkers.every_shard_owned import EveryShardOwned
from leasehold.simulation.checkers.former_streams import FormerStreams
from leasehold.simulation.checkers.hash_coverage import LeasesCoverTheHashRange
from leasehold.simulation.checkers.initial_position import BeginsAtTheInitialPosition
from leasehold.simulation.checkers.lag_to_zero import LagToZero
from leasehold.simulation.checkers.load import LoadIsEven
from leasehold.simulation.checkers.losses_reported import DataLossStopsTheQuery, LossesAreReported
from leasehold.simulation.checkers.no_bugs import NoBugs
from leasehold.simulation.checkers.nothing_lost import NothingLost
from leasehold.simulation.checkers.object_contents import NamesHaveOneContent, ObjectsAreNeverReplaced
from leasehold.simulation.checkers.one_leader import OneLeaderAtATime
from leasehold.simulation.checkers.one_subscription import OneSubscription
from leasehold.simulation.checkers.parents import ParentsBeforeChildren
from leasehold.simulation.checkers.pins_before_objects import PinnedBeforeWritten
from leasehold.simulation.checkers.query_batches import (
    BatchesEqualProduced,
    BoundedRunsReadAll,
    CommittedRowsAreNotRepeated,
    IdleQueriesPlanNothing,
    OldLogsAreRefused,
)
from leasehold.simulation.checkers.query_slices import (
    BatchEndsNeverMove,
    PinnedBeforeDelivered,
    RepeatedBatchesAreIdentical,
    RowsInOrder,
)
from leasehold.simulation.checkers.refusals import RefusalsAreTold
from leasehold.simulation.checkers.sink_contents import SinkEqualsProduced
from leasehold.simulation.checkers.stale_owners import StaleOwnersStop
from leasehold.simulation.checkers.unfinished_handlers import NoCheckpointPastAnUnfinishedHandler
from leasehold.simulation.checkers.unknown_attributes import UnknownAttributesSurvive
from leasehold.simulation.checkers.valid_leases import DeliversWhileValid

CHECKERS: Final[tuple[type[Checker], ...]] = (
    NothingLost,
    LossesAreReported,
    BeginsAtTheInitialPosition,
    OrderWithinASession,
    OrderByKey,
    CheckpointsNeverGoBack,
    NoCheckpointPastAnUnfinishedHandler,
    StaleOwnersStop,
    DeliversWhileValid,
    OneLeaderAtATime,
    DeadLettersHoldThePoison,
    CleanHandoffsRepeatNothing,
    ParentsBeforeChildren,
    LeasesCoverTheHashRange,
    FormerStreams,
    UnknownAttributesSurvive,
    SinkEqualsProduced,
    PinnedBeforeWritten,
    ObjectsAreNeverReplaced,
    NamesHaveOneContent,
    ArchiveEqualsProduced,
    ReadersSeeEachRecordOnce,
    PinnedBeforeDelivered,
    BatchEndsNeverMove,
    RepeatedBatchesAreIdentical,
    RowsInOrder,
    DataLossStopsTheQuery,
    OldLogsAreRefused,
    CommittedRowsAreNotRepeated,
    BoundedRunsReadAll,
    IdleQueriesPlanNothing,
    BatchesEqualProduced,
    BufferWithinBudget,
    OneSubscription,
    NoBugs,
    RefusalsAreTold,
    EveryShardOwned,
    LagToZero,
    BalancedAndStable,
    LoadIsEven,
    CallsWithinBudget,
    CleanStop,
)
