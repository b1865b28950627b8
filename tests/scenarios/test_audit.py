"""Runs audit/*.json: whether the leader syncs shards.

`given.audits`: what the audits see, one after the other: the hash keys of the leases that are `reading`, of
those that `ended`, and leases of `unknown` range with the ranges of the shards that the stream still has
`listed`. `expect.holes`: the missing hash keys that each audit finds, or null; `expect.syncs`: the audits
that lead to a sync, counted from 1; `expect.java`: for each audit the two ranges by which the Java KCL would
name the hole, checked against a model of it here; `expect.filled`: the ranges to write into rows of unknown
range.
"""

from typing import Any

from leasehold.core.model import HASH_KEY_MAX, HashRange, Lease, LeaseKey, ShardId
from leasehold.core.position import SHARD_END, Position
from leasehold.core.shards.hash_coverage import Hole
from leasehold.core.shards.lease_audit import SIGHTINGS_NEEDED, Audit, Sightings, audit_leases
from tests.scenarios.scenario_files import Scenario, only, scenarios
from tests.scenarios.stream_files import keys

READING = Position("7")


@scenarios("audit")
def test_audit(scenario: Scenario) -> None:
    """Each audit finds the hole that the file says, and syncs when the file says so."""
    given = only(scenario.given, required=["audits"], optional=["sightings_needed"])
    expect = only(scenario.expect, required=["holes", "syncs", "java"], optional=["filled"])
    seen, found = Sightings(), list[Audit]()
    for each in given["audits"]:
        found.append(audit(each, seen, given.get("sightings_needed", SIGHTINGS_NEEDED)))
        seen = found[-1].sightings
    found_ranges = {lease.shard_id: lease.hash_range for lease in found[-1].found_ranges}
    assert [audit.sightings.hole for audit in found] == [
        hole and Hole(*_ends(hole)) for hole in expect["holes"]
    ]
    assert [turn for turn, audit in enumerate(found, 1) if audit.sync_now] == expect["syncs"]
    assert found_ranges == {name: keys(each) for name, each in expect.get("filled", {}).items()}
    assert [java_hole(audit) for audit in given["audits"]] == [
        hole and [keys(side) for side in hole] for hole in expect["java"]
    ]


def audit(given: Any, seen: Sightings, needed: int) -> Audit:
    only(given, required=["reading"], optional=["ended", "unknown", "listed"])
    leases = [
        *(lease(f"r{i}", keys(each)) for i, each in enumerate(given["reading"])),
        *(lease(f"e{i}", keys(each), SHARD_END) for i, each in enumerate(given.get("ended", []))),
        *(lease(name, None) for name in given.get("unknown", [])),
    ]
    return audit_leases(leases, seen, known_ranges=listed(given), sightings_needed=needed)


def listed(given: Any) -> dict[ShardId, HashRange]:
    return {ShardId(name): keys(each) for name, each in given.get("listed", {}).items()}


def lease(name: str, covers: HashRange | None, at: Position = READING) -> Lease:
    return Lease(key=LeaseKey(name), shard_id=ShardId(name), checkpoint=at, hash_range=covers)


def java_hole(given: Any) -> list[HashRange] | None:
    """How the Java KCL names a hole: by its neighbours; by first and last of all when an end is missing; by
    nothing.
    """
    shards = listed(given)
    known = [shards[ShardId(name)] for name in given.get("unknown", []) if name in shards]
    ranges = sorted([*(keys(each) for each in given["reading"]), *known])
    if not ranges:
        return [] if given.get("ended") or given.get("unknown") else None
    if ranges[0].start != 0 or ranges[-1].end != HASH_KEY_MAX:
        return [ranges[0], ranges[-1]]
    run, end = ranges[0], ranges[0].end
    for each in ranges[1:]:
        if each.start - end > 1:
            return [run, each]
        if each.start - end == 1:
            run = each
        end = max(end, each.end)
    return None


def _ends(hole: Any) -> tuple[int, int]:
    first, last = (HASH_KEY_MAX if key == "MAX" else key for key in hole)
    return first, last
