"""What a member finds out from the lists of shards that audits make, and from rare reads."""

from collections.abc import Mapping
from dataclasses import replace

from leasehold.core.events import GapFound, LeaseTaken, PageRead, StreamRecreated
from leasehold.core.finding import Finding, Severity
from leasehold.core.model import WHOLE_HASH_RANGE, HashRange, Lease, LeaseKey, Shard, ShardId, WorkerId
from leasehold.core.observing.explain.facts import LagRead, StreamFacts, TableRead
from leasehold.core.observing.health import Health, HealthLimits, health_to_json
from leasehold.core.observing.lag import LagTracker
from leasehold.core.observing.own_view import FleetReads, KnownTables, OwnView, find_out
from leasehold.core.observing.rare_reads import (
    PROBE_EVERY_MS,
    PROBES_MAX,
    leases_to_probe,
    next_unmoved,
)
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.records.iterators import Gap

ANNA, BERT = WorkerId("anna"), WorkerId("bert")
PARENT, CHILD = ShardId("shardId-000000000000"), ShardId("shardId-000000000001")
LOWER, UPPER = HashRange(0, 2**127 - 1), HashRange(2**127, 2**128 - 1)
LIMITS = HealthLimits(failover_ms=10_000, stuck_after_ms=300_000)
DAY_MS = 24 * 3_600_000


def lease(shard: ShardId = PARENT, *, at: Position | None = None, **values: object) -> Lease:
    checkpoint = at or Position("100")
    found = Lease(key=LeaseKey(shard), shard_id=shard, checkpoint=checkpoint, owner=BERT, counter=7)
    return replace(found, **values)  # type: ignore[arg-type]


def view(*leases: Lease, held: tuple[Lease, ...] = (), **values: object) -> OwnView:
    """Anna, the leader, has read these leases, of which the owners have sent heartbeats."""
    after = TableRead(at_ms=60_000, leases=leases)
    before = TableRead(at_ms=45_000, leases=tuple(replace(each, counter=6) for each in leases))
    found = OwnView(
        worker=ANNA,
        now_ms=60_000,
        wall_s=1_700_000_000,
        report=Health(LIMITS, 60_000).report(60_000),
        held=held,
        lags={},
        reads=FleetReads(before, after),
        has_leader=False,
        is_leading=True,
    )
    return replace(found, **values)  # type: ignore[arg-type]


def listed(*shards: Shard, leases: tuple[Lease, ...] = (), **values: object) -> Mapping[None, StreamFacts]:
    facts = StreamFacts(name="orders", shards=shards, leases_at_list=leases)
    return {None: replace(facts, **values)}  # type: ignore[arg-type]


def found(of: OwnView) -> dict[str, Finding]:
    return {finding.code: finding for finding in find_out(replace(of, has_leader=True))}


def codes(of: OwnView) -> set[str]:
    return set(found(of)) - {"no_leader"}  # these reads have no lock


def test_a_listed_shard_without_a_lease_is_told_if_it_had_none_then_and_has_none_now() -> None:
    shards = Shard(PARENT, LOWER, "1"), Shard(CHILD, UPPER, "1")
    there = lease(PARENT, hash_range=LOWER), lease(CHILD, hash_range=UPPER)
    assert codes(view(there[0], streams=listed(*shards, leases=there[:1]))) == {"no_lease"}
    assert codes(view(*there, streams=listed(*shards, leases=there[:1]))) == set()  # created since
    assert (
        codes(view(there[0], streams=listed(*shards, leases=there))) == set()
    )  # deleted since: the next audit tells
    told = found(view(streams=listed(*shards)))["no_lease"]
    assert (told.severity, "running worker" in told.remedy) == (
        Severity.NOTICE,
        True,
    )  # Anna herself is active


def test_a_lease_that_is_newer_than_the_list_is_not_gone() -> None:
    shard, new = Shard(PARENT, WHOLE_HASH_RANGE, "1"), lease(CHILD)
    leases = (lease(), new)
    assert codes(view(*leases, streams=listed(shard, leases=(lease(),)))) == set()
    gone = view(*leases, streams=listed(shard, leases=leases))
    assert found(gone)["not_a_shard"].shard == LeaseKey(CHILD)
    # Anna tells it of her own shards, too: no other member knows the list.
    assert found(replace(gone, held=(new,)))["not_a_shard"].shard == LeaseKey(CHILD)


def test_a_parent_whose_lease_was_deleted_is_told_of_own_shards_too() -> None:
    child = lease(CHILD, at=TRIM_HORIZON, parents=frozenset({PARENT}))
    shards = Shard(PARENT, WHOLE_HASH_RANGE, "1"), Shard(CHILD, WHOLE_HASH_RANGE, "50", parents=(PARENT,))
    of = view(child, held=(child,), streams=listed(*shards, leases=(child,)))
    assert "parent_without_lease" in codes(of)
    # A member that does not speak for the fleet knows only its own leases, and must not miss those of others.
    assert find_out(replace(of, has_leader=True, is_leading=False)) == ()


def test_a_recreated_stream_is_told_until_its_leases_start_over() -> None:
    old, shard = lease(at=Position("100")), Shard(PARENT, WHOLE_HASH_RANGE, "5000")
    streams = listed(shard, leases=(old,))
    told = found(view(old, streams=streams))["stream_recreated"]
    assert told.subject == "orders"
    assert codes(view(replace(old, checkpoint=TRIM_HORIZON), streams=streams)) == set()


def test_a_missing_stream_is_told() -> None:
    assert codes(view(lease(), streams=listed(is_missing=True))) == {"stream_missing"}


def test_what_was_learned_about_the_tables_is_told() -> None:
    assert codes(view(lease(), tables=KnownTables(has_index=False, has_two_layouts=True))) == {
        "index_not_ready",
        "two_table_layouts",
    }


def test_a_gap_is_told_until_records_after_it_are_done() -> None:
    tracker = LagTracker()
    tracker.observe(LeaseTaken(LeaseKey(PARENT), PARENT, None, None, 1, Position("100")), 0)
    tracker.observe(GapFound(PARENT, Gap(Position("100"), "117", None)), 0)
    tracker.observe(PageRead(PARENT, 1, 1, 5_000, 1, Position("117")), 0)
    ((key, progress),) = tracker
    assert progress.gap is not None
    ours = lease(owner=ANNA)
    lags = {key: (LagRead(at_ms=60_000, behind_ms=5_000, is_trimmed=True),)}
    assert "position_trimmed" in codes(view(ours, held=(ours,), lags=lags))
    progress.mark_done(Position("100"), 1)
    assert progress.gap is not None
    progress.mark_done(Position("117"), 2)
    assert progress.gap is None


def test_a_shard_that_is_as_far_behind_as_the_retention_is_trimmed() -> None:
    """A handler hangs for a day: the member has read no gap, and the record at its checkpoint is gone."""
    ours = lease(owner=ANNA)
    streams = {None: StreamFacts(name="orders", shards=None, retention_ms=DAY_MS)}

    def told(behind_ms: int) -> set[str]:
        lags = {ours.key: (LagRead(at_ms=60_000, behind_ms=behind_ms),)}
        return codes(view(ours, held=(ours,), lags=lags, streams=streams))

    assert told(DAY_MS) == {"position_trimmed"}
    assert told(DAY_MS - 1) == {"retention_nearly_reached"}


def test_a_member_that_stops_for_a_recreated_stream_says_so() -> None:
    """As a finding of its own, once, in `/health`."""
    health = Health(LIMITS, 0)
    health.observe(StreamRecreated("orders", "stream orders was deleted and created again", is_fatal=True), 0)
    (finding,) = health_to_json(health.report(0))["findings"]
    assert (finding["code"], finding["severity"]) == ("stream_recreated", "problem")
    assert "start_over" in finding["remedy"]


def test_only_checkpoints_that_stand_still_are_probed_and_few_at_a_time() -> None:
    leases = [lease(ShardId(f"shardId-{number:012d}")) for number in range(5)]
    unmoved = next_unmoved({}, leases, 0)
    assert leases_to_probe(unmoved, leases, PROBE_EVERY_MS - 1) == ()
    first = leases_to_probe(unmoved, leases, PROBE_EVERY_MS)
    assert len(first) == PROBES_MAX
    for each in first:
        unmoved[each.key] = replace(unmoved[each.key], probed_ms=PROBE_EVERY_MS)
    then = leases_to_probe(unmoved, leases, PROBE_EVERY_MS + 15_000)
    assert len(then) == PROBES_MAX
    assert not set(first) & set(then)
    moved = next_unmoved(unmoved, [replace(leases[4], checkpoint=Position("200"))], PROBE_EVERY_MS)
    assert list(moved) == [leases[4].key]
    assert not moved[leases[4].key].is_due(PROBE_EVERY_MS + 1)
