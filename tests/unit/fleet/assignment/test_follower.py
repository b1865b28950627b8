"""Which leases a member begins that a leader has assigned, and which leases of other members it may release."""

import asyncio
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from leasehold.adapters.memory.rows import MemoryRows
from leasehold.config.settings import milliseconds
from leasehold.core.leases.liveness import Observations, next_observations
from leasehold.core.model import InitialPosition, Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId
from leasehold.core.position import TRIM_HORIZON
from leasehold.fleet.assignment.follower import Follower
from leasehold.fleet.assignment.strategy import AssignmentContext
from leasehold.fleet.held_leases import HeldLeases
from leasehold.fleet.operations import Operations
from leasehold.fleet.streams import Streams
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.simulation.virtual_time import VirtualClock, run_in_virtual_time
from tests.unit.fleet.world import LEADER_SETTINGS, ListedStream

ME, OTHER = WorkerId("me"), WorkerId("other")
KEY = LeaseKey("s-1")
FREE = Lease(key=KEY, shard_id=ShardId("s-1"), checkpoint=TRIM_HORIZON, counter=4)
ASSIGNED = replace(FREE, owner=ME)
SESSION = LeaseSessionId("of another process")
FAILOVER_MS = milliseconds(LEADER_SETTINGS.failover_after)


def _follower(
    *,
    table: LeaseTable | None = None,
    held: frozenset[LeaseKey] = frozenset(),
    cooling: frozenset[LeaseKey] = frozenset(),
) -> Follower:
    held_leases = SimpleNamespace(keys=held, cooling_down=cooling)
    return Follower(
        AssignmentContext(
            table=table or LeaseTable(MemoryRows()),
            streams=Streams.single(ListedStream([]), "orders", InitialPosition(TRIM_HORIZON)),
            held_leases=cast("HeldLeases", held_leases),
            worker=ME,
            settings=LEADER_SETTINGS,
            operations=Operations(VirtualClock(), random.Random(1), lambda _: None),
        )
    )


def _seen(*versions: Lease, since_ms: int = 0) -> Observations:
    seen: Observations = {}
    for lease in versions:
        seen = next_observations(seen, [lease], since_ms)
    return seen


@pytest.mark.parametrize(
    ("lease", "begins"),
    [
        pytest.param(ASSIGNED, True, id="assigned"),
        pytest.param(FREE, False, id="free"),
        pytest.param(replace(FREE, owner=OTHER), False, id="assigned to another member"),
        pytest.param(replace(ASSIGNED, checkpoint_owner=OTHER), False, id="its owner still serves it"),
        pytest.param(replace(ASSIGNED, session=SESSION), False, id="a second process with our id serves it"),
    ],
)
def test_a_member_begins_what_is_assigned_to_it_and_served_by_nobody(lease: Lease, begins: bool) -> None:
    """A lease that names us may be another's: one that hands it over, or a process with the same worker id."""

    async def scenario() -> None:
        assert bool(_follower().leases_to_begin([lease], _seen(lease))) == begins

    run_in_virtual_time(scenario())


@pytest.mark.parametrize("reason", ["held", "cooling"])
def test_a_lease_that_is_held_or_was_just_given_up_is_not_begun(reason: str) -> None:
    """Other members should take a lease that this one could not read, although the leader has assigned it again."""

    async def scenario() -> None:
        busy = frozenset({KEY})
        follower = _follower(held=busy) if reason == "held" else _follower(cooling=busy)
        assert follower.leases_to_begin([ASSIGNED], _seen(ASSIGNED)) == []

    run_in_virtual_time(scenario())


@pytest.mark.parametrize(("later_ms", "begins"), [(0, False), (1, True)])
def test_a_session_that_is_silent_for_the_failover_time_is_replaced(later_ms: int, begins: bool) -> None:
    """It may be our own, from before a restart."""

    async def scenario() -> None:
        lease, follower = replace(ASSIGNED, session=SESSION), _follower()
        seen = _seen(lease, since_ms=VirtualClock().now_ms())
        await asyncio.sleep((FAILOVER_MS + later_ms) / 1_000)
        assert bool(follower.leases_to_begin([lease], seen)) == begins

    run_in_virtual_time(scenario())


@pytest.mark.parametrize(
    ("owner", "has_begun", "owner_after"),
    [
        pytest.param(OTHER, False, None, id="released to it, and not begun"),
        pytest.param(OTHER, True, OTHER, id="begun: it stops by itself, or has come back"),
        pytest.param(WorkerId("third"), False, WorkerId("third"), id="assigned to a third member since"),
    ],
)
def test_only_a_lease_that_a_stopped_member_has_not_begun_is_released(
    owner: WorkerId, has_begun: bool, owner_after: WorkerId | None
) -> None:
    """A member that has begun may still deliver records, and stores its last checkpoint before it releases."""

    async def scenario() -> None:
        table = LeaseTable(MemoryRows())
        await table.create(replace(FREE, counter=0))
        lease = await table.assign(replace(FREE, counter=0), owner)
        assert isinstance(lease, Lease)
        if has_begun:
            lease = await table.begin_session(lease, owner, SESSION)
            assert isinstance(lease, Lease)
        await _follower(table=table).release_from(OTHER, [KEY])
        now = await table.get(KEY)
        assert now is not None
        assert now.owner == owner_after
        assert now.session == (SESSION if has_begun else None)

    run_in_virtual_time(scenario())
