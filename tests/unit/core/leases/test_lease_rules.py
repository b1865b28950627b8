"""What a refused heartbeat means, and what a row write does to a row."""

from dataclasses import replace

import pytest

from leasehold.core.leases import lease_rules
from leasehold.core.leases.lease_row import COUNTER_LIMIT, OWNER_SWITCHES, lease_from_row, lease_to_row
from leasehold.core.leases.lease_rules import Lost, StillHeld, interpret_failed_renewal
from leasehold.core.leases.row_writes import (
    DeleteRow,
    Equals,
    PutRow,
    Row,
    UpdateRow,
    may_apply,
    next_row,
    was_applied,
)
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, Pin, ShardId, WorkerId
from leasehold.core.position import Position
from leasehold.errors import CheckpointRejectedError

A, B = WorkerId("worker-a"), WorkerId("worker-b")
MINE = Lease(
    key=LeaseKey("shardId-1"),
    shard_id=ShardId("shardId-1"),
    checkpoint=Position("100"),
    counter=7,
    owner=A,
    session=LeaseSessionId("hold-1"),
)
IN_HANDOFF = replace(MINE, owner=B, checkpoint_owner=A)


@pytest.mark.parametrize(
    ("mine", "now", "meaning"),
    [
        pytest.param(MINE, None, Lost(None), id="the row is gone"),
        pytest.param(MINE, replace(MINE, owner=B, counter=8), Lost(B), id="taken by another"),
        pytest.param(MINE, replace(MINE, owner=None, counter=8), Lost(None), id="evicted"),
        pytest.param(
            MINE, replace(MINE, session=LeaseSessionId("hold-2")), Lost(A), id="a second process with our id"
        ),
        pytest.param(MINE, IN_HANDOFF, StillHeld(IN_HANDOFF), id="a leader asked for a handoff"),
        pytest.param(
            MINE, replace(MINE, owner=A, checkpoint_owner=A), Lost(A), id="an owner that hands over to itself"
        ),
        pytest.param(
            MINE,
            replace(MINE, owner=B, checkpoint_owner=B, session=LeaseSessionId("hold-2")),
            Lost(B),
            id="abnormal, and not even ours",
        ),
        pytest.param(
            MINE, replace(MINE, counter=9), StillHeld(replace(MINE, counter=9)), id="a task of ours pinned"
        ),
        pytest.param(
            IN_HANDOFF,
            replace(IN_HANDOFF, counter=8),
            StillHeld(replace(IN_HANDOFF, counter=8)),
            id="a task of ours promoted during a handoff",
        ),
        pytest.param(
            IN_HANDOFF, replace(MINE, owner=WorkerId("worker-c")), Lost(WorkerId("worker-c")), id="redirected"
        ),
    ],
)
def test_meaning_of_a_refused_heartbeat(mine: Lease, now: Lease | None, meaning: object) -> None:
    """The row as it is now says whether the lease is lost, asked for, or ours after all."""
    assert interpret_failed_renewal(mine, now) == meaning


def test_an_update_must_ask_for_an_existing_row() -> None:
    """DynamoDB creates a row that an update does not find; a rule without such a condition is a bug."""
    with pytest.raises(AssertionError, match="never creates"):
        UpdateRow(key="x", when=(), proof=())


def test_only_a_holder_writes_like_one() -> None:
    """A lease that was only read carries no holding to write with."""
    with pytest.raises(AssertionError, match="take"):
        lease_rules.renew(replace(MINE, session=None))


@pytest.mark.parametrize(("switches", "added"), [(0, 1), (COUNTER_LIMIT - 1, 1), (COUNTER_LIMIT, 0)])
def test_a_huge_count_of_owners_stays_as_it_is(switches: int, added: int) -> None:
    """Otherwise the row could not be parsed after the next take."""
    taken = lease_rules.take(replace(MINE, owner_switches=switches), B, LeaseSessionId("hold-2"))
    assert taken.add.get(OWNER_SWITCHES, 0) == added


@pytest.mark.parametrize("is_in_handoff", [False, True], ids=["held", "in handoff"])
@pytest.mark.parametrize("children", [frozenset(), frozenset({ShardId("shardId-3")})], ids=["none", "one"])
def test_the_lease_after_the_end_of_a_shard_equals_its_row(
    is_in_handoff: bool, children: frozenset[ShardId]
) -> None:
    """`finished` is what a read would return if nobody had written since."""
    known = frozenset({ShardId("shardId-2")})
    row = lease_to_row(replace(MINE, owner=None, session=None, owner_switches=4, children=known))
    row = _after(lease_rules.take(lease_from_row(row), A, LeaseSessionId("hold-1")), row)
    row = _after(lease_rules.pin(lease_from_row(row), Position("120"), b"metadata", ("query", 3)), row)
    if is_in_handoff:
        row = _after(lease_rules.request_handoff(lease_from_row(row), B), row)
    lease = lease_from_row(row)
    assert (lease.pin, lease.owner_switches) == (Pin(Position("120"), b"metadata"), 4)
    ended = lease_from_row(_after(lease_rules.finish(lease, children), row))
    assert lease_rules.finished(lease, children) == ended
    assert ended.children == (children or known)


def _after(write: UpdateRow, row: Row) -> Row:
    after = next_row(write, row)
    assert after is not None
    return after


def test_writes_on_rows() -> None:
    """Putting asks for no row, deleting is content with none, and each is recognised once it has landed."""
    row = {"k": {"S": "x"}, "n": {"N": "1"}}
    put = PutRow("x", row)
    assert may_apply(put, None)
    assert not may_apply(put, row)
    assert was_applied(put, row)
    gone = DeleteRow(key="x", when=(Equals("n", {"N": "1.0"}),))
    assert may_apply(gone, row)
    assert may_apply(gone, None)
    assert not may_apply(gone, {**row, "n": {"N": "2"}})
    assert next_row(gone, row) is None
    assert was_applied(gone, None)
    added = UpdateRow(key="x", when=(Equals("k", {"S": "x"}),), add={"n": 2, "m": 1}, remove=("z",), proof=())
    assert next_row(added, {**row, "z": {"NULL": True}}) == {
        "k": {"S": "x"},
        "n": {"N": "3"},
        "m": {"N": "1"},
    }


def test_a_batch_may_be_empty_but_never_ends_before_the_checkpoint() -> None:
    """Also if another client left a pin that ends before the checkpoint."""
    assert lease_rules.pin(MINE, MINE.checkpoint).set["pendingCheckpoint"] == {"S": "100"}
    outdated = replace(MINE, pin=Pin(Position("50")))
    with pytest.raises(CheckpointRejectedError, match="60"):
        lease_rules.pin(outdated, Position("60"))
