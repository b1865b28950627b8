"""What the dashboard shows, from facts: states, findings, workers, totals, and rows that are hostile."""

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from leasehold.core.finding import Explanation, Finding, Severity
from leasehold.core.model import HashRange, Lease, LeaseKey, LeaseSessionId, Pin, ShardId, WorkerId
from leasehold.core.observing.dashboard.fleet_changes import describe_changes, describe_workers, find_silent
from leasehold.core.observing.dashboard.fleet_history import POINTS_MAX, FleetHistory, Series
from leasehold.core.observing.dashboard.fleet_view import (
    empty_view,
    group_findings,
    judge_fleet,
    view_fleet,
    with_problem,
)
from leasehold.core.observing.dashboard.open_batch import OpenBatch, find_open_batch
from leasehold.core.observing.dashboard.shard_map import FamilyMember, Place, place_shards
from leasehold.core.observing.dashboard.view_changes import View, apply_change, diff_views
from leasehold.core.observing.explain.facts import FleetFacts, TableRead
from leasehold.core.position import SHARD_END, Position
from tests.dashboard.sample_fleets import (
    COSTS,
    SETTINGS,
    STEP_MS,
    SampleFleet,
    SampleShard,
    killed_and_restarted,
    killed_query,
    resharded_fleet,
    shard_id,
    small_fleet,
    unhealthy_fleet,
    view_after,
    view_at,
)

ROOT = HashRange(0, 2**128 - 1)
REPEATED = "unless it was complete, exactly the same records are delivered again, and then those after them"
LOW, HIGH = HashRange(0, 2**127 - 1), HashRange(2**127, 2**128 - 1)


def by_shard(view: View) -> dict[str, dict[str, Any]]:
    return {row["shard"]: row for row in view["shards"].values()}


def codes(row: dict[str, Any]) -> list[str]:
    return [finding["code"] for finding in row["findings"]]


def view_of(facts: FleetFacts) -> View:
    return view_fleet(
        facts, judge_fleet(facts, SETTINGS), FleetHistory(), SETTINGS, costs=COSTS, wall_ms=1_000_000
    )


def test_a_healthy_fleet_needs_no_attention() -> None:
    view, _ = view_after(small_fleet(), 5)
    assert (view["findings"], view["groups"], view["totals"]["problems"]) == ([], [], 0)
    assert {row["state"] for row in view["shards"].values()} == {"read"}
    assert view["leader"] == "orders-7d4f9c-m4tzq"
    assert {(row["name"], row["leases"], row["busy"], row["leader"]) for row in view["workers"].values()} == {
        ("orders-7d4f9c-x2x9k", 2, 41.0, False),
        ("orders-7d4f9c-m4tzq", 1, 27.5, True),
    }
    assert view["calls"]["heartbeats"] == 0.6  # three leases, renewed every five seconds
    assert [each["operation"] for each in view["calls"]["workers"]] == ["GetRecords", "ListShards"]


def test_heartbeats_are_counted_by_the_second() -> None:
    """Also where a second has many of them: 45,000 heartbeats in the 15 seconds between two reads."""
    facts = small_fleet().facts(4)
    renewed = tuple(replace(each, counter=each.counter + 15_000) for each in facts.before.leases)
    view = view_of(replace(facts, after=replace(facts.after, leases=renewed)))
    assert (facts.watched_ms, view["calls"]["heartbeats"]) == (15_000, 3_000)


def test_each_shard_has_the_sentences_of_explain_with_the_remedy() -> None:
    view, _ = view_after(unhealthy_fleet(), 5)
    rows = by_shard(view)
    assert {shard_id(3), shard_id(4)} == {key for key, row in rows.items() if row["state"] == "silent"}
    assert codes(rows[shard_id(5)])[0] == "stuck"
    assert "its handler hangs" in rows[shard_id(5)]["findings"][0]["remedy"]
    assert codes(rows[shard_id(6)])[0] == "retention_nearly_reached"
    assert codes(rows[shard_id(11)])[0] == "position_trimmed"
    assert rows[shard_id(7)]["state"] == "free"
    assert [finding["code"] for finding in view["findings"]] == ["unreadable_row"]
    groups = {group["code"]: group["count"] for group in view["groups"]}
    assert groups["owner_silent"] == 2
    assert view["groups"][0]["severity"] == "problem"
    assert all(
        each["remedy"] for each in [*view["findings"], *view["groups"]] if each["severity"] == "problem"
    )


def test_the_totals_are_those_of_the_list_of_findings() -> None:
    """A shard with a problem and a notice counts in both, as in the list."""
    frozen = SampleShard(number=0, low=0, high=1, is_frozen=True, lag=lambda step: 5_000 * step)
    throttled = SampleShard(number=1, low=0, high=1, is_stuck=True, lag=lambda _step: 90_000)
    facts = SampleFleet(shards=[frozen, throttled], leader=None).facts(4)
    reads = facts.lags[LeaseKey(shard_id(1))]
    last = replace(reads[-1], is_throttled=True)
    view = view_of(replace(facts, lags={**facts.lags, LeaseKey(shard_id(1)): (*reads[:-1], last)}))
    for severity, total in (("problem", "problems"), ("notice", "notices")):
        groups = sum(group["count"] for group in view["groups"] if group["severity"] == severity)
        fleet = sum(finding["severity"] == severity for finding in view["findings"])
        assert view["totals"][total] == groups + fleet
    assert codes(by_shard(view)[shard_id(1)]) == ["stuck", "reads_throttled"]
    assert (view["totals"]["problems"], view["totals"]["notices"]) == (1, 1)


def test_problems_and_notices_of_one_kind_are_separate_items() -> None:
    found = {
        LeaseKey(shard_id(number)): (Finding(code="free", severity=severity, text="", shard=None),)
        for number, severity in enumerate((Severity.NOTICE, Severity.PROBLEM, Severity.PROBLEM, Severity.OK))
    }
    groups = group_findings(Explanation((), found))
    assert [(group["severity"], group["count"]) for group in groups] == [("problem", 2), ("notice", 1)]


def test_a_rate_is_shown_while_its_worker_is_active() -> None:
    """The row of a killed worker still has its last throughput."""
    history = FleetHistory()
    views = [view_at(killed_query(), step, history) for step in range(6)]
    assert [view["totals"]["kbps"] for view in views] == [0.7, 0.7, 0.7, 0, 0, 0]
    assert {(row["kbps"], row["pace"]) for row in views[-1]["shards"].values()} == {(None, None)}
    assert [kbps for _, _, kbps in history.series([1])[1]] == [0.3, 0.3, 0.3, None, None, None]
    hot = [replace(shard, kbps=900.0) for shard in killed_query().shards]
    view, _ = view_after(replace(killed_query(), shards=hot), 6)
    assert "hot_shard" not in {group["code"] for group in view["groups"]}


def test_a_fleet_whose_leader_has_stopped_is_no_fleet_of_peers() -> None:
    """The last worker deletes its rows, so only earlier reads and the throughput show how the fleet was led."""
    owned, idle = small_fleet(), small_fleet()
    peers = replace(owned, leader=None, busy={})
    stopped = replace(idle, shards=[replace(each, owner=None) for each in idle.shards], leader=None, busy={})
    new = replace(stopped, shards=[replace(each, kbps=None) for each in stopped.shards])

    def modes(*fleets: SampleFleet) -> list[str]:
        history = FleetHistory()
        views = [view_at(fleet, step, history) for step, fleet in enumerate(fleets)]
        return [view["mode"] for view in views]

    assert modes(owned, stopped, new) == ["leader", "leader", "leader"]
    assert modes(stopped, peers) == ["leader", "peers"]
    killed = replace(peers, shards=[replace(each, is_frozen=True) for each in peers.shards])
    assert modes(owned, killed) == ["leader", "leader"]
    assert modes(peers, new, owned) == ["peers", "peers", "leader"]
    assert modes(new) == ["unknown"]


def test_nothing_is_judged_before_the_fleet_was_watched() -> None:
    """Two reads that are too close would show every owner as silent."""
    view = view_at(unhealthy_fleet(), 1, FleetHistory())
    assert not view["judged"]
    assert view["totals"]["problems"] == 0
    assert all(row["active"] for row in view["workers"].values())


def test_children_wait_and_parents_are_done() -> None:
    view, _ = view_after(resharded_fleet(), 4)
    rows = by_shard(view)
    assert view["totals"]["waiting"] == 8
    assert rows[shard_id(0)]["state"] == "done"
    assert rows[shard_id(30)]["state"] == "read"
    waiting = next(row for row in rows.values() if row["state"] == "waiting")
    assert codes(waiting) == ["waits_for_parents"]
    assert view["totals"]["handoffs"] == 1


def test_a_parent_that_is_only_named_is_trimmed_and_covers_its_children() -> None:
    parts = [
        SampleShard(number=number, low=low, high=low + 0.25, parents=(1,))
        for number, low in ((7, 0.5), (8, 0.75))
    ]
    view, _ = view_after(SampleFleet(shards=parts), 4)
    parent = by_shard(view)[shard_id(1)]
    assert (parent["state"], parent["place"]) == ("trimmed", [0, 1, 0.5, 1.0])


def test_a_shard_begins_after_its_parents_and_ends_where_its_children_begin() -> None:
    members = [
        FamilyMember(1, (), LOW),
        FamilyMember(2, (), HIGH),
        FamilyMember(3, (2,), HIGH),
        FamilyMember(4, (1, 3), ROOT),
    ]
    assert place_shards(members) == {
        1: Place(0, 2, 0.0, 0.5),
        2: Place(0, 1, 0.5, 1.0),
        3: Place(1, 2, 0.5, 1.0),
        4: Place(2, 3, 0.0, 1.0),
    }


@pytest.mark.parametrize(
    "members",
    [
        [FamilyMember(1, (2,), None), FamilyMember(2, (1,), None)],
        [FamilyMember(1, (1,), None)],
        [FamilyMember(1, (99,), None), FamilyMember(2, (1,), None), FamilyMember(3, (1,), None)],
        [],
    ],
)
def test_a_cycle_and_unknown_ranges_are_drawn_too(members: Sequence[FamilyMember]) -> None:
    places = place_shards(members)
    assert set(places) == {member.id for member in members}
    assert all(0 <= place.low < place.high <= 1 for place in places.values())


def test_hostile_rows_are_shortened_escaped_and_valid_json() -> None:
    """A page never gets a megabyte for a name, and never an infinity, which is no JSON."""
    facts = small_fleet().facts(4)
    hostile = [
        replace(facts.after.leases[0], owner=WorkerId("<script>alert(1)</script>")),
        replace(facts.after.leases[1], throughput_kbps=Decimal("1E+400")),
        Lease(key=LeaseKey("s" * 10**6), shard_id=ShardId("s" * 10**6), checkpoint=Position("1")),
        Lease(
            key=LeaseKey("x"),
            shard_id=ShardId("x"),
            checkpoint=Position("1"),
            owner=WorkerId("a\u202eb\x00" + "w" * 10**6),
            parents=frozenset(ShardId(f"p{number}") for number in range(1000)),
        ),
    ]
    view = view_of(replace(facts, after=replace(facts.after, leases=tuple(hostile))))
    encoded = json.dumps(view, allow_nan=False)
    assert len(encoded) < 60_000
    assert by_shard(view)["x"]["owner"].startswith("a\\u202eb\\x00www")
    assert by_shard(view)[shard_id(0)]["owner"] == "<script>alert(1)</script>"  # the page shows it as text
    assert by_shard(view)[shard_id(1)]["kbps"] is None


def test_a_change_contains_only_what_differs_and_leads_to_the_same_view() -> None:
    history = FleetHistory()
    views = [view_at(fleet, step, history) for fleet in (unhealthy_fleet(), small_fleet()) for step in (3, 4)]
    for before, after in pairwise(views):
        assert apply_change(before, diff_views(before, after)) == after
    change = diff_views(views[0], views[1])
    assert "application" not in change
    assert all("shard" not in row for row in change["shards"].values())
    assert diff_views(views[0], views[0]) == {}


def test_a_failed_read_keeps_the_last_view_and_says_why() -> None:
    view, _ = view_after(small_fleet(), 4)
    failed = with_problem(view, "the fleet cannot be read: table orders-archive does not exist")
    assert diff_views(view, failed) == {
        "unread": ["the fleet cannot be read: table orders-archive does not exist"]
    }
    assert set(empty_view(SETTINGS, 1)) == set(view)


def test_moves_ends_and_leaders_are_recent_changes() -> None:
    before = small_fleet().read(3)
    first, second, third = before.leases
    moved = replace(first, owner=WorkerId("bert"))
    ended = replace(second, checkpoint=SHARD_END)
    back = replace(third, checkpoint=Position("1"))
    after = replace(before, leases=(moved, ended, back), lock=None)
    told = [(change.kind, change.text) for change in describe_changes(before, after, 7)]
    assert told == [
        ("leader", "the leader released its lock"),
        ("ended", "it was read to its end"),
        ("moved", "it moved from orders-7d4f9c-x2x9k to bert"),
        ("moved_back", "its checkpoint was moved back"),
    ]


def test_a_kill_and_a_restart_are_told_with_what_happens_to_the_batch() -> None:
    view, _ = killed_and_restarted()
    query, end = "spark-deb7d58e209b7dcd", "5154..28070146"
    told = [(change["shard"], change["text"]) for change in reversed(view["changes"])]
    assert told == [
        (None, f"{query} is silent: it has sent no heartbeat for at least 15 s, and still owns 2 leases"),
        *(
            (
                shard_id(number),
                f"{query} began a new lease session. A batch is pinned, {40 + number} records up to {end}: {REPEATED}",
            )
            for number in range(2)
        ),
        (None, f"{query} is active again"),
    ]
    row = by_shard(view)[shard_id(1)]
    assert row["batch"] == {"words": f"41 records up to {end}", "fixed": True}
    assert (row["sessions"], row["moves"]) == (1, 3)
    assert view["at"] - view["began"] == 17 * STEP_MS


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ({"session": "a"}, {"session": "a"}, []),
        ({"session": None}, {"session": "b"}, []),  # a leader assigned it, and that was told
        (
            {"session": "a"},
            {"session": "b"},
            ["anna began a new lease session, and reads on after the checkpoint"],
        ),
        (
            {"session": None, "pin": Pin(Position("9"))},
            {"session": "b"},
            [f"anna began to read it. A batch is pinned, up to 9: {REPEATED}"],
        ),
        ({"owner": None}, {"session": "b"}, ["anna has taken it"]),
        ({"session": "a", "pin": Pin(Position("7"))}, {"owner": None}, ["anna released it"]),
        ({"pin": Pin(Position("9"))}, {"owner": WorkerId("java")}, ["it moved from anna to java"]),
    ],
)
def test_a_lease_session_is_told_if_something_follows_from_it(
    before: dict[str, object], after: dict[str, object], told: list[str]
) -> None:
    lease = Lease(key=LeaseKey("s"), shard_id=ShardId("s"), checkpoint=Position("7"), owner=WorkerId("anna"))
    reads = [
        TableRead(at_ms=0, leases=(replace(lease, **values),))  # type: ignore[arg-type]
        for values in (before, after)
    ]
    assert [change.text for change in describe_changes(reads[0], reads[1], 7)] == told


def test_batches_of_many_shards_are_one_sentence() -> None:
    shards = [
        SampleShard(number=number, low=0, high=1, session="a", pinned=number + 1) for number in range(5)
    ]
    before = SampleFleet(shards=shards).read(3)
    after = SampleFleet(shards=[replace(each, session="b") for each in shards]).read(3)
    (change,) = describe_changes(before, after, 7)
    assert change.text.startswith(
        "5 shards: worker-1 began a new lease session. The batch of each is pinned: "
    )


def test_only_a_pin_with_records_is_a_batch_in_progress() -> None:
    lease = small_fleet().read(3).leases[0]
    assert find_open_batch(lease) is None
    assert (
        find_open_batch(replace(lease, pin=Pin(lease.checkpoint))) is None
    )  # an empty slice of a Spark query
    java = find_open_batch(replace(lease, pin=Pin(Position("9"), b"mine")))
    assert java == OpenBatch(Position("9"), None, is_fixed=False)
    worker = find_open_batch(replace(lease, pin=Pin(Position("9")), session=LeaseSessionId("a")))
    assert worker == OpenBatch(Position("9"), None, is_fixed=True)


def test_a_worker_that_reports_is_not_silent() -> None:
    facts = killed_query().facts(6)
    (owner,) = facts.silent_owners
    assert find_silent(facts) == {owner}
    assert [change.kind for change in describe_workers((), facts, 7)] == ["silent"]
    assert describe_workers((owner,), facts, 7) == []
    reset = WorkerId("leasehold-reset-host-1:17:0a1b2c3d")
    leases = tuple(replace(lease, owner=reset) for lease in facts.after.leases)
    command = replace(
        facts, before=replace(facts.before, leases=leases), after=replace(facts.after, leases=leases)
    )
    assert find_silent(command) == frozenset()


def test_many_equal_changes_are_one_sentence() -> None:
    leases = resharded_fleet().read(3).leases
    (change,) = describe_changes(TableRead(at_ms=0, leases=()), TableRead(at_ms=1, leases=leases), 7)
    assert change.text == "300 shards: its lease was created"


def test_the_age_of_a_checkpoint_counts_from_when_it_moved() -> None:
    history = FleetHistory()
    for step in range(6):
        view = view_at(unhealthy_fleet(), step, history)
    rows = by_shard(view)
    assert (view["at"] - rows[shard_id(5)]["since"], rows[shard_id(5)]["exact"]) == (25_000, False)
    assert (view["at"] - rows[shard_id(0)]["since"], rows[shard_id(0)]["exact"]) == (0, True)


def test_a_series_keeps_its_newest_points() -> None:
    series = Series()
    for second in range(POINTS_MAX + 5):
        series.add(second, None if second % 2 else second, None)
    points = series.points()
    assert (len(points), points[0], points[-1]) == (
        POINTS_MAX,
        (5, None, None),
        (POINTS_MAX + 4, POINTS_MAX + 4, None),
    )


def test_the_history_of_shards_is_known_by_their_number_and_forgotten_with_them() -> None:
    view, history = view_after(small_fleet(), 5)
    number = next(int(key) for key, row in view["shards"].items() if row["shard"] == shard_id(2))
    assert len(history.series([number, 999])[number]) == 5
    view_at(SampleFleet(shards=[]), 6, history)
    assert history.series([number]) == {}
    assert history.shards.known == {}
