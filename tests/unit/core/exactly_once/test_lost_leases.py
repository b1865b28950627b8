"""The comparison of leases with the log of a query, and the leases that the log can restore."""

import pytest

from leasehold.core.exactly_once.lost_leases import (
    BehindLog,
    LostLease,
    SkipsRecords,
    Unfinished,
    compare_lease,
    find_lost_leases,
    logged_shards,
    plan_restore,
)
from leasehold.core.exactly_once.query_offset import ReadStart, StreamOffset
from leasehold.core.model import (
    HashRange,
    InitialPosition,
    Lease,
    Pin,
    Shard,
    ShardId,
    StreamIdentifier,
    lease_key,
)
from leasehold.core.position import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Position
from leasehold.core.shards.shard_graph import shard_graph

TOP = 2**128
FROM_START, FROM_TIP = InitialPosition(TRIM_HORIZON), InitialPosition(LATEST)
AT_10 = ReadStart(Position("10"))


def shard(name: str, first: int, last: int, *parents: str, is_open: bool = True) -> Shard:
    """A shard with a part of the hash keys, in sixteenths."""
    keys = HashRange(first * TOP // 16, (last + 1) * TOP // 16 - 1)
    number = "1" if not parents else str(10 * len(name))
    return Shard(ShardId(name), keys, number, None if is_open else "99", tuple(map(ShardId, parents)))


# a was split into aa and ab, and aa into aaa and aab; b and c were merged into m.
GRAPH = shard_graph(
    [
        shard("a", 0, 7, is_open=False),
        shard("aa", 0, 3, "a", is_open=False),
        shard("ab", 4, 7, "a"),
        shard("aaa", 0, 1, "aa"),
        shard("aab", 2, 3, "aa"),
        shard("b", 8, 11, is_open=False),
        shard("c", 12, 15, is_open=False),
        shard("m", 8, 15, "b", "c"),
    ]
)


def log(*finished: str, released: tuple[str, ...] = (), **starts: ReadStart) -> StreamOffset:
    """An offset that names these shards. Released shards are known up to record 10."""
    return StreamOffset(
        {ShardId(name): start for name, start in starts.items()},
        {ShardId(name): AT_10 for name in released},
        frozenset(map(ShardId, finished)),
    )


def lease(name: str, at: Position = TRIM_HORIZON, pin: Position | None = None) -> Lease:
    return Lease(
        key=lease_key(ShardId(name)),
        shard_id=ShardId(name),
        checkpoint=at,
        pin=None if pin is None else Pin(pin),
    )


@pytest.mark.parametrize(
    ("found", "logged"),
    [
        (lease("aa"), log(aaa=AT_10)),  # an ancestor of a shard that the query reads
        (lease("a", Position("7")), log(aaa=AT_10)),
        (lease("a"), log("aa")),
        (lease("aa"), log("aa")),
        (lease("c"), log(m=AT_10)),
        (lease("aa"), log(released=("aab",))),
        (lease("aa"), log(released=("aa", "aab"))),
    ],
)
def test_a_finished_shard_with_an_unfinished_lease(found: Lease, logged: StreamOffset) -> None:
    """The log names the shard, or a descendant of it."""
    assert compare_lease(found, logged_shards(logged, GRAPH)) == Unfinished(found.shard_id, found)


@pytest.mark.parametrize(
    ("found", "logged", "lost"),
    [
        (lease("ab", LATEST), log("a"), True),
        (lease("aaa", LATEST), log("a"), True),
        (lease("aaa", AT_TIMESTAMP), log(a=AT_10), True),
        (lease("aaa", LATEST, pin=LATEST), log(a=AT_10), True),
        (lease("aaa", LATEST, pin=Position("5")), log(a=AT_10), False),
        (lease("aaa"), log("a"), False),
        (lease("aaa", Position("5")), log("a"), False),
        (lease("m", LATEST), log("a"), False),
        (lease("unlisted", LATEST), log("a"), False),
    ],
)
def test_a_lease_that_skips_records(found: Lease, logged: StreamOffset, lost: bool) -> None:
    """A descendant of a shard in the log begins at its first record, never at the tip."""
    expected: LostLease | None = SkipsRecords(found.shard_id, found) if lost else None
    assert compare_lease(found, logged_shards(logged, GRAPH)) == expected


def test_without_the_shards_of_the_stream_only_named_shards_are_compared() -> None:
    assert compare_lease(lease("aa"), logged_shards(log(aaa=AT_10), None)) is None
    assert compare_lease(lease("aa"), logged_shards(log("aa"), None)) == Unfinished(
        ShardId("aa"), lease("aa")
    )
    assert compare_lease(lease("aa"), logged_shards(log(aa=AT_10), None)) == BehindLog(
        ShardId("aa"), AT_10, lease("aa")
    )


@pytest.mark.parametrize(
    ("leased", "logged", "lost"),
    [
        ((), log(ab=AT_10), {"ab"}),
        ((), log("a"), {"a"}),
        ((), log("a", released=("m",)), {"a", "m"}),
        (("m",), log("a", released=("m",)), {"a"}),
        (("aaa",), log("a"), set()),  # finished and deleted
        (("aaa",), log(a=AT_10), set()),  # finished by another member, and deleted
        (("m",), log(b=AT_10), set()),
        ((), log(trimmed=AT_10), set()),
        ((), log("trimmed"), set()),
    ],
)
def test_missing_leases_are_lost_unless_a_descendant_has_one(
    leased: tuple[str, ...], logged: StreamOffset, lost: set[str]
) -> None:
    leases = [lease(name, Position("50")) for name in leased]
    assert {each.shard for each in find_lost_leases(leases, logged, GRAPH)} == lost


def test_a_row_that_cannot_be_read_is_not_missing() -> None:
    assert find_lost_leases([], log(ab=AT_10), GRAPH, {ShardId("ab")}) == []


def restored(
    *leases: Lease, logged: StreamOffset, initial: InitialPosition = FROM_START
) -> dict[str, Position]:
    """The leases that the plan creates, with their checkpoints."""
    plan = plan_restore(leases, logged, GRAPH, initial)
    assert {each.shard_id for each in plan.delete} <= {each.shard_id for each in leases}
    return {each.shard_id: each.checkpoint for each in plan.create}


def test_a_lost_table_is_restored_from_the_log() -> None:
    """Known shards continue, their siblings begin at their first record, and nothing finished is read again."""
    logged = log(aaa=AT_10, m=ReadStart(TRIM_HORIZON))
    assert restored(logged=logged) == {
        "aaa": Position("10"),
        "m": TRIM_HORIZON,
        "a": SHARD_END,  # so that ab begins
        "aa": SHARD_END,  # so that aab begins
        "ab": TRIM_HORIZON,
        "aab": TRIM_HORIZON,
        "b": SHARD_END,  # so that m, which has no record yet, does not wait for lost parents
        "c": SHARD_END,
    }
    assert restored(logged=logged, initial=FROM_TIP) == restored(logged=logged)


def test_children_of_a_finished_shard_are_restored() -> None:
    logged = log("b", "c", ab=AT_10, aaa=AT_10, aab=AT_10)
    assert restored(logged=logged)["m"] == TRIM_HORIZON
    assert restored(logged=logged, initial=FROM_TIP)["m"] == TRIM_HORIZON


def test_a_shard_that_the_query_never_knew_begins_where_shard_sync_lets_it_begin() -> None:
    """It is not known how far another member has read it, so no record of it is skipped."""
    logged = log(ab=AT_10, aaa=AT_10, aab=AT_10)
    for initial in (FROM_START, FROM_TIP):
        created = restored(logged=logged, initial=initial)
        assert (created["b"], created["c"]) == (TRIM_HORIZON, TRIM_HORIZON)
        assert "m" not in created, "its parents create it"


def test_leases_that_skip_records_are_replaced() -> None:
    """They hide that the leases of their ancestors are lost."""
    leases = [lease(name, LATEST) for name in ("aaa", "aab", "ab", "m")]
    plan = plan_restore(leases, log(a=AT_10, m=AT_10), GRAPH, FROM_TIP)
    assert {each.shard_id for each in plan.delete} == {"aaa", "aab", "ab"}
    assert {each.shard_id: each.checkpoint for each in plan.create} == {"a": Position("10")}


def test_restored_leases_belong_to_their_stream() -> None:
    """The leases of another stream with the same shard ids would not be found."""
    stream = StreamIdentifier("1:orders:17")
    for logged in (log(a=AT_10, m=AT_10), log("a", m=AT_10)):
        created = plan_restore([], logged, GRAPH, FROM_START, stream=stream).create
        assert created
        assert all(each.key == f"{stream}:{each.shard_id}" and each.stream == stream for each in created)


def test_the_time_of_latest_is_restored() -> None:
    at = ReadStart(AT_TIMESTAMP, 5)
    logged = log("a", ab=at, aaa=at, aab=at, m=at)
    for initial, checkpoint, latest_at in (
        (FROM_TIP, LATEST, 5),
        (InitialPosition(AT_TIMESTAMP, 5), AT_TIMESTAMP, None),
    ):
        plan = plan_restore([], logged, GRAPH, initial)
        begun = [each for each in plan.create if not each.checkpoint.is_shard_end]
        assert {(each.checkpoint, each.latest_at_ms) for each in begun} == {(checkpoint, latest_at)}


def test_nothing_is_restored_if_nothing_is_lost() -> None:
    leases = [lease(name, Position("50")) for name in ("aaa", "aab", "ab", "m")]
    plan = plan_restore(leases, log(aaa=AT_10, m=AT_10), GRAPH, FROM_START)
    assert (plan.delete, plan.create) == ((), ())


def test_leases_are_restored_from_a_list_in_the_middle_of_a_reshard() -> None:
    """The child is listed beside its open parent. It gets its lease at the end of the parent, as always."""
    graph = shard_graph([shard("a", 0, 7), shard("aa", 0, 3, "a"), shard("b", 8, 15)])
    plan = plan_restore([], log(b=AT_10), graph, FROM_START)
    assert {each.shard_id: each.checkpoint for each in plan.create} == {
        "b": Position("10"),
        "a": TRIM_HORIZON,
    }
