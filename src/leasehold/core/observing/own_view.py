"""What a member finds out about itself and its fleet from what it knows anyway: its events, its leases, and the reads
of the lease table that it needs for assignment, the lists of shards that audits make, and a few rare reads. Has no
effects and makes no calls.

Each member speaks about its own shards. For everything else one member speaks: the leader; without a leader the active
member whose id sorts first. So a finding appears once in the logs of a fleet.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Final

from leasehold.core.finding import MORE, Finding, Severity
from leasehold.core.leases.liveness import Observation, Observations
from leasehold.core.model import Lease, LeaseKey, StreamIdentifier, WorkerId
from leasehold.core.observing.explain.explain_fleet import explain_fleet
from leasehold.core.observing.explain.facts import FleetFacts, LagRead, StreamFacts, TableRead
from leasehold.core.observing.health import WORKER_CODES, HealthReport, own_findings
from leasehold.core.shards.shard_graph import unfinished_parents

SHARDS_TOLD_MAX: Final = 8  # with the same finding, of other members
# A member knows these better: by its heartbeats, and by the rows that it has reported one by one.
_NOT_TOLD: Final = frozenset({"no_active_worker", "unreadable_row"})
# Findings that need the list of shards and the leases of all members, so an owner cannot tell them of its own shards.
_FROM_LISTS: Final = frozenset({"shard_gone", "not_a_shard", "parent_without_lease"})


@dataclass(frozen=True, slots=True)
class FleetReads:
    """The newest read of the whole lease table, and what of it was already so `watch_ms` earlier."""

    before: TableRead
    after: TableRead


def compare_reads(
    read: TableRead, observations: Observations, *, watch_ms: int, is_leader_late: bool
) -> FleetReads:
    """A read, and the leases in it that have not changed for a time. No older read has to be kept."""
    since_ms = read.at_ms - watch_ms
    was = (_as_it_was(lease, observations[lease.key], since_ms) for lease in read.leases)
    leases = tuple(lease for lease in was if lease is not None)
    before = TableRead(at_ms=since_ms, leases=leases, lock=read.lock if is_leader_late else None)
    return FleetReads(before, read)


def _as_it_was(lease: Lease, observed: Observation, since_ms: int) -> Lease | None:
    """The lease at this time, as far as it says something about now; None if it has changed since."""
    if observed.unchanged_since_ms <= since_ms:
        return lease
    if observed.handoff_since_ms is not None and observed.handoff_since_ms <= since_ms:
        return replace(lease, counter=lease.counter - 1)
    return None


@dataclass(frozen=True, slots=True)
class KnownTables:
    """What a member has learned about the tables of its fleet."""

    has_index: bool = True
    has_two_layouts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnView:
    """Everything that a member knows. `reads` is None if it has not read the whole table lately."""

    worker: WorkerId
    now_ms: int
    wall_s: int
    report: HealthReport
    held: tuple[Lease, ...]
    lags: Mapping[LeaseKey, tuple[LagRead, ...]]
    streams: Mapping[StreamIdentifier | None, StreamFacts] = field(default_factory=dict)
    tables: KnownTables = KnownTables()
    reads: FleetReads | None = None
    has_leader: bool = False
    is_leading: bool = False
    is_leader_late: bool = False


def find_out(view: OwnView) -> tuple[Finding, ...]:
    """All notices and problems that this member should report."""
    own = [finding for finding in own_findings(view.report) if finding.shard is None]
    facts = _facts(view, with_fleet=False)
    explained = explain_fleet(facts).shards
    ours = {lease.key for lease in view.held}
    for key in sorted(ours):
        own += explained[key]
    if view.reads is not None and speaks_for_fleet(view):
        own += _fleet_findings(_facts(view, with_fleet=True), ours)
    return tuple(finding for finding in own if finding.severity is not Severity.OK)


def leases_without_reader(view: OwnView) -> tuple[Lease, ...]:
    """The leases that nobody serves although they may be read now, for the member that speaks for the fleet."""
    if view.reads is None or not speaks_for_fleet(view):
        return ()
    facts = _facts(view, with_fleet=True)
    ours = {lease.key for lease in view.held}
    return tuple(
        lease
        for key, lease in facts.after.by_key.items()
        if key not in ours
        and _is_unserved(lease, facts)
        and not unfinished_parents(lease, facts.after.by_key)
    )


def _is_unserved(lease: Lease, facts: FleetFacts) -> bool:
    if lease.checkpoint.is_shard_end:
        return False
    is_silent = lease.key in facts.silent and lease.actual_owner not in facts.renewing_owners
    return lease.actual_owner is None or is_silent


def speaks_for_fleet(view: OwnView) -> bool:
    """Whether this member reports what is not about its own shards."""
    if view.has_leader and not view.is_leader_late:
        return view.is_leading
    facts = _facts(view, with_fleet=True)
    # As others see it: a member without leases and reports is not the first of them, whatever its id is.
    return view.worker == min(facts.seen_workers, default=view.worker)


def _facts(view: OwnView, *, with_fleet: bool) -> FleetFacts:
    # Our own leases are known from memory. Each counts as renewed: `report` says if it is not.
    held = {lease.key: lease for lease in view.held}
    renewed = {key: replace(lease, counter=lease.counter - 1) for key, lease in held.items()}
    empty = TableRead(at_ms=view.now_ms, leases=())
    before, after = (
        (view.reads.before, view.reads.after) if with_fleet and view.reads is not None else (empty, empty)
    )
    by_shard: defaultdict[str, list[Finding]] = defaultdict(list)
    for finding in own_findings(view.report):
        if finding.shard is not None:
            by_shard[finding.shard].append(finding)
    return FleetFacts(
        before=replace(before, leases=_replaced(before.leases, renewed)),
        after=replace(after, leases=_replaced(after.leases, held)),
        wall_s=view.wall_s,
        has_leader=view.has_leader,
        has_index=view.tables.has_index,
        has_two_layouts=view.tables.has_two_layouts,
        streams=view.streams if with_fleet else _without_lists(view.streams),
        lags=view.lags,
        worker_findings={key: tuple(found) for key, found in by_shard.items()},
        own_worker=view.worker,
    )


def _without_lists(
    streams: Mapping[StreamIdentifier | None, StreamFacts],
) -> Mapping[StreamIdentifier | None, StreamFacts]:
    """The streams for a member that looks at its own leases only: a list needs the leases of all."""
    return {key: replace(each, shards=None, leases_at_list=None) for key, each in streams.items()}


def _replaced(leases: Iterable[Lease], held: Mapping[LeaseKey, Lease]) -> tuple[Lease, ...]:
    return (*(lease for lease in leases if lease.key not in held), *held.values())


def _fleet_findings(facts: FleetFacts, ours: AbstractSet[LeaseKey]) -> Iterator[Finding]:
    explanation = explain_fleet(facts)
    told = _NOT_TOLD | WORKER_CODES
    yield from (finding for finding in explanation.fleet if finding.code not in told)
    by_code: defaultdict[str, list[Finding]] = defaultdict(list)
    for key, findings in explanation.shards.items():
        for finding in findings:
            is_told_here = key not in ours or finding.code in _FROM_LISTS
            if is_told_here and finding.severity is not Severity.OK:
                by_code[finding.code].append(finding)
    for findings_of_code in by_code.values():
        yield from findings_of_code[:SHARDS_TOLD_MAX]
        if (more := len(findings_of_code) - SHARDS_TOLD_MAX) > 0:
            first = findings_of_code[SHARDS_TOLD_MAX]
            text = f"{more} more shards, {first.shard} among them: {first.text}"
            yield replace(first, shard=None, subject=MORE, text=text)
