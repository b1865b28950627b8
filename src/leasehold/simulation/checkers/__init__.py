"""One file a promise. A checker hears of everything that happens, and says when the promise is broken."""

from __future__ import annotations

from typing import Final

from leasehold.simulation.checkers.attributes import UnknownAttributesSurvive
from leasehold.simulation.checkers.balance import BalancedAndStill
from leasehold.simulation.checkers.base import Checker as Checker
from leasehold.simulation.checkers.buffer import BufferWithinBudget
from leasehold.simulation.checkers.call_budget import CallsWithinBudget
from leasehold.simulation.checkers.caught_up import LagToZero
from leasehold.simulation.checkers.checkpoints import CheckpointsNeverGoBack
from leasehold.simulation.checkers.clean_stop import CleanStop
from leasehold.simulation.checkers.coverage import LeasesCoverTheHashRange
from leasehold.simulation.checkers.exactly_once import SinkEqualsProduced
from leasehold.simulation.checkers.gaps import LossesAreTold
from leasehold.simulation.checkers.no_bugs import NoBugs
from leasehold.simulation.checkers.nothing_lost import NothingLost
from leasehold.simulation.checkers.order import OrderWithinAnOwnership
from leasehold.simulation.checkers.owned import EveryShardOwned
from leasehold.simulation.checkers.parents import ParentsBeforeChildren
from leasehold.simulation.checkers.repeats import CleanHandoversRepeatNothing
from leasehold.simulation.checkers.stale_owners import StaleOwnersStop
from leasehold.simulation.checkers.unfinished import NoCheckpointPastAnUnfinishedHandler

CHECKERS: Final[tuple[type[Checker], ...]] = (
    NothingLost,
    LossesAreTold,
    OrderWithinAnOwnership,
    CheckpointsNeverGoBack,
    NoCheckpointPastAnUnfinishedHandler,
    StaleOwnersStop,
    CleanHandoversRepeatNothing,
    ParentsBeforeChildren,
    LeasesCoverTheHashRange,
    UnknownAttributesSurvive,
    SinkEqualsProduced,
    BufferWithinBudget,
    NoBugs,
    EveryShardOwned,
    LagToZero,
    BalancedAndStill,
    CallsWithinBudget,
    CleanStop,
)
