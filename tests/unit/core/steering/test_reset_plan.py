"""Plans of a reset: which leases move, are created or stay, and which move together."""

from dataclasses import replace

import pytest

from leasehold.core.leases.lease_row import LeaseListing
from leasehold.core.model import HashRange, Lease, Pin, Shard, ShardId, WorkerId, lease_key
from leasehold.core.position import LATEST, SHARD_END, TRIM_HORIZON, Position
from leasehold.core.shards.shard_graph import ShardGraph, shard_graph
from leasehold.core.steering.reset_plan import (
    OLDEST,
    LeaseMove,
    NewLease,
    ResetGroup,
    ResetPlan,
    ShardStart,
    describe_move,
    group_by_family,
    moves_to_write,
    plan_reset,
    plan_to_json,
    plan_to_rows,
    shards_to_reset,
)
from leasehold.core.steering.reset_target import ToLatest, ToOldest, ToRecord, ToTime, parse_reset_target
from leasehold.errors import BlockedLeasesError, ConfigError, MalformedRowError, NotFoundError

ANNA = WorkerId("anna")
P, L, R, M, X = (ShardId(name) for name in ("s-0", "s-1", "s-2", "s-3", "s-9"))
END = ShardStart(Position("199"), is_at_end=True)


def family() -> ShardGraph:
    """P was split into L and R, which were merged into M. X is no relative."""
    return shard_graph(
        [
            Shard(P, HashRange(0, 9), "100", "199"),
            Shard(L, HashRange(0, 4), "200", "299", (P,)),
            Shard(R, HashRange(5, 9), "200", "299", (P,)),
            Shard(M, HashRange(0, 9), "300", None, (L, R)),
            Shard(X, HashRange(10, 99), "100"),
        ]
    )


def lease(shard: ShardId, checkpoint: Position, owner: WorkerId | None = None) -> Lease:
    parents = family().shards[shard].parents
    return Lease(
        key=lease_key(shard), shard_id=shard, checkpoint=checkpoint, owner=owner, parents=frozenset(parents)
    )


def plan(leases: list[Lease], starts: dict[ShardId, ShardStart], *, only_forward: bool = False) -> ResetPlan:
    return plan_reset(family(), LeaseListing(tuple(leases)), starts, only_forward=only_forward)


def summary(found: ResetPlan) -> dict[str, str]:
    moves = {str(move.lease.shard_id): f"to {move.to}" for move in found.moves}
    return moves | {str(each.lease.shard_id): f"new at {each.lease.checkpoint}" for each in found.create}


def test_a_finished_shard_takes_its_descendants_with_it() -> None:
    """They go to their first record and wait. Shards that are no relatives stay."""
    leases = [
        lease(P, SHARD_END),
        lease(L, SHARD_END),
        lease(R, Position("250")),
        lease(M, TRIM_HORIZON),
        lease(X, Position("5")),
    ]
    found = plan(leases, {P: ShardStart(Position("150"))})
    assert summary(found) == {P: "to 150", L: "to TRIM_HORIZON", R: "to TRIM_HORIZON"}
    assert [each.shard_id for each in found.unchanged] == [M]


def test_deleted_leases_of_ancestors_are_created_again_in_their_order() -> None:
    """Without a lease of L and R, M would not wait for them."""
    found = plan([lease(M, Position("350"))], {P: OLDEST})
    assert summary(found) == {
        P: "new at TRIM_HORIZON",
        L: "new at TRIM_HORIZON",
        R: "new at TRIM_HORIZON",
        M: "to TRIM_HORIZON",
    }
    assert found.create[0].lease.shard_id == P


def test_a_merged_shard_that_begins_anew_gets_markers_of_finished_parents() -> None:
    """A member would read parents without a lease again. P is no parent of it."""
    found = plan([lease(M, Position("350"))], {P: END, L: END, R: END, M: OLDEST})
    assert summary(found) == {L: "new at SHARD_END", R: "new at SHARD_END", M: "to TRIM_HORIZON"}
    assert found.create[0].lease.children == {M}
    assert summary(plan([lease(M, Position("350"))], {M: OLDEST})) == summary(found)


def test_shards_that_end_before_the_target_are_not_touched_once_they_are_finished() -> None:
    """An unfinished one goes to its last record: a member finds its end and creates nothing twice."""
    leases = [lease(P, Position("120")), lease(L, TRIM_HORIZON)]
    target = ShardStart(Position("310"))
    found = plan(leases, {P: END, L: replace(END, position=Position("299")), R: END, M: target})
    assert summary(found) == {P: "to 199", L: "to 299", R: "new at 199", M: "new at 310"}
    finished = [lease(P, SHARD_END), lease(L, SHARD_END), lease(R, SHARD_END), lease(M, Position("310"))]
    assert plan(finished, {P: END, L: END, R: END, M: target}).is_empty


def test_latest_only_moves_forward_and_an_owned_lease_may_be_further_than_its_checkpoint() -> None:
    """The owner may have delivered more than it has stored, so only a free lease is known to be there."""
    start = {X: ShardStart(Position("50"))}
    assert plan([lease(X, Position("60"), ANNA)], start, only_forward=True).is_empty
    assert summary(plan([lease(X, LATEST, ANNA)], start, only_forward=True)) == {X: "to 50"}
    (move,) = plan([lease(X, Position("40"), ANNA)], start, only_forward=True).moves
    held = lease(X, Position("55"), ANNA)
    group = ResetGroup((move,), ())
    assert moves_to_write(group, {held.key: held}) == []
    assert moves_to_write(group, {held.key: lease(X, SHARD_END)}) == []
    assert plan([lease(X, Position("50"))], start).is_empty
    for other in (lease(X, Position("50"), ANNA), replace(lease(X, Position("50")), pin=Pin(Position("70")))):
        assert summary(plan([other], start)) == {X: "to 50"}


def test_a_plan_is_outdated_if_a_shard_ended_or_its_lease_was_deleted() -> None:
    """Its children have begun."""
    (move,) = plan([lease(X, Position("40"), ANNA)], {X: OLDEST}).moves
    group = ResetGroup((move,), ())
    assert moves_to_write(group, {move.lease.key: lease(X, SHARD_END)}) is None
    assert moves_to_write(group, {}) is None
    held = lease(X, Position("55"), ANNA)
    assert moves_to_write(group, {held.key: held}) == [(held, TRIM_HORIZON)]


def test_only_relatives_move_together() -> None:
    """X is written as soon as its own owner has handed over."""
    leases = [
        lease(P, SHARD_END),
        lease(L, Position("250")),
        lease(R, Position("250")),
        lease(X, Position("5")),
    ]
    groups = group_by_family(plan(leases, {P: OLDEST, X: OLDEST}), family())
    assert sorted(sorted(move.lease.shard_id for move in group.moves) for group in groups) == [[P, L, R], [X]]


def test_unknown_shards_and_unreadable_rows_are_refused() -> None:
    """Nothing is planned around a row that nobody can read."""
    with pytest.raises(NotFoundError, match="no such shard"):
        shards_to_reset(family(), ShardId("s-7"))
    listing = LeaseListing((lease(P, SHARD_END),), (MalformedRowError("s-1", "leaseCounter: text"),))
    with pytest.raises(BlockedLeasesError, match="row of shard s-1"):
        plan_reset(family(), listing, {P: OLDEST})


def test_the_table_shows_what_comes_again_or_is_skipped() -> None:
    """In time, if the arrivals are known."""
    old = lease(X, Position("40"), ANNA)
    back = LeaseMove(old, Position("20"), is_forward=False, arrived_ms=3_700_000, arrives_ms=100_000)
    assert describe_move(back) == "1 h 0 min again"
    assert describe_move(replace(back, is_forward=True)) == "1 h 0 min skipped"
    assert describe_move(replace(back, arrived_ms=None)) == "records come again"
    rows = plan_to_rows(
        ResetPlan((replace(back, to=TRIM_HORIZON),), (NewLease(lease(P, SHARD_END), was_read=True),))
    )
    assert rows == [
        ("s-0", "-", "no lease", "SHARD_END", "stays finished"),
        ("s-9", "anna", "40", "TRIM_HORIZON", "all retained records again"),
    ]


def test_a_new_lease_of_an_unread_shard_skips_the_records_before_it() -> None:
    """The table and the JSON say so. A shard that was read, and whose lease was deleted, is read again."""
    found = plan([lease(P, SHARD_END)], {X: ShardStart(Position("150"), is_newest=True)}, only_forward=True)
    assert plan_to_rows(found) == [("s-9", "-", "no lease", "150", "records before it are skipped")]
    (created,) = plan_to_json(found)["create"]
    assert (created["key"], created["is_forward"]) == (X, True)
    empty = plan([lease(P, SHARD_END)], {X: ShardStart(TRIM_HORIZON, is_newest=True)}, only_forward=True)
    assert plan_to_rows(empty)[0][-1] == "from its first record"
    again = plan([lease(L, Position("250"))], {P: ShardStart(Position("150"))})
    assert plan_to_rows(again)[0][2:] == ("no lease", "150", "is read again")
    assert [new.is_forward for new in again.create] == [False]


def test_a_position_that_stays_is_not_a_move() -> None:
    """At the newest record an owner cannot have delivered more. Elsewhere its lease is taken, at the same position."""
    owned = lease(X, Position("50"), ANNA)
    for start in (ShardStart(Position("50"), is_newest=True), ShardStart(Position("50"), is_at_end=True)):
        assert plan([owned], {X: start}).unchanged == (owned,)
    pinned = replace(owned, pin=Pin(Position("70")))
    assert summary(plan([pinned], {X: ShardStart(Position("50"), is_newest=True)})) == {X: "to 50"}
    (move,) = plan([owned], {X: ShardStart(Position("50"))}).moves
    assert describe_move(move).startswith("unchanged; ")


def test_records_of_the_same_millisecond_have_no_duration() -> None:
    """0 s would say that nothing is skipped."""
    move = LeaseMove(lease(X, Position("40")), Position("41"), is_forward=True, arrived_ms=5, arrives_ms=5)
    assert describe_move(move) == "records are skipped"
    assert describe_move(replace(move, to=Position("39"), is_forward=False)) == "records come again"


def test_targets() -> None:
    """Each text has one meaning, or is refused with all forms."""
    assert parse_reset_target("LATEST") == ToLatest()
    assert parse_reset_target("trim_horizon") == ToOldest()
    assert parse_reset_target("4959:3") == ToRecord(Position("4959", 3))
    assert parse_reset_target("2026-11-15T12:00:00Z") == ToTime(1_794_744_000_000)
    for text in ("yesterday", "2026-11-15T12:00:00", "shard_end", "-5", ""):
        with pytest.raises(ConfigError, match="expected latest"):
            parse_reset_target(text)
