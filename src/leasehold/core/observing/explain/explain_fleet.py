"""Explains, for each shard of a fleet, why it moves or does not, and what to do. Takes facts, and has no effects."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from leasehold.core.leases.lease_view import leases_without_heartbeat
from leasehold.core.model import (
    InitialPosition,
    Lease,
    LeaseKey,
    ShardId,
    StreamIdentifier,
    WorkerId,
    lease_key,
    parse_lease_key,
)
from leasehold.core.observing.explain.facts import FleetFacts, StreamFacts
from leasehold.core.observing.explain.finding import Explanation, Finding, Severity, format_duration
from leasehold.core.observing.explain.fleet_findings import active_workers, fleet_findings, silence_of
from leasehold.core.observing.explain.lag_findings import lag_findings
from leasehold.core.position import TRIM_HORIZON
from leasehold.core.shards.lease_creation import blocked_shards, plan_missing_leases
from leasehold.core.shards.recreated_stream import find_contradictions
from leasehold.core.shards.shard_graph import ShardGraph, shard_graph, unfinished_parents
from leasehold.errors import ShardListError


def explain_fleet(facts: FleetFacts) -> Explanation:
    """The findings about a fleet and each of its shards."""
    by_key = {lease.key: lease for lease in facts.after.leases}
    found = {key: tuple(_lease_findings(lease, by_key, facts)) for key, lease in by_key.items()}
    fleet = list(fleet_findings(facts))
    for stream, about in facts.streams.items():
        graph = _graph(about)
        if graph is not None:
            found.update(_unleased_shards(stream, graph, facts))
            fleet += _recreated(stream, about, facts)
    return Explanation(tuple(fleet), {key: found[key] for key in sorted(found)})


def _graph(about: StreamFacts) -> ShardGraph | None:
    try:
        return shard_graph(about.shards or ())
    except ShardListError:
        return None  # the list was made during a reshard; the next one is right


def _recreated(stream: StreamIdentifier | None, about: StreamFacts, facts: FleetFacts) -> Iterator[Finding]:
    contradictions = find_contradictions(about.shards or (), facts.before.leases, stream=stream)
    certain = [each for each in contradictions if each.is_certain]
    if certain:
        yield Finding(
            code="stream_recreated",
            severity=Severity.PROBLEM,
            text=f"stream {about.name} was deleted and created again, or the leases are of another stream: "
            f"{certain[0].fact}",
            remedy="set on_recreated_stream = 'start_over' to read the new stream from its beginning, or use another "
            "application name",
        )


def _unleased_shards(
    stream: StreamIdentifier | None, graph: ShardGraph, facts: FleetFacts
) -> Mapping[LeaseKey, tuple[Finding, ...]]:
    """A finding for each shard that should have a lease and has none."""
    here = [lease for lease in facts.after.leases if lease.stream == stream]
    unreadable = [parse_lease_key(LeaseKey(error.key))[1] for error in facts.after.rejected]
    blocked = blocked_shards(graph, unreadable) - {lease.shard_id for lease in here}
    initial = InitialPosition(TRIM_HORIZON)
    try:
        missing = {
            lease.shard_id
            for lease in plan_missing_leases(graph, here, initial, stream=stream, unreadable=unreadable)
        }
    except ShardListError:
        missing = set()
    findings = {shard: _blocked(shard, stream) for shard in blocked}
    findings |= {shard: _unleased(shard, stream, facts) for shard in missing}
    return {finding.shard: (finding,) for finding in findings.values() if finding.shard is not None}


def _blocked(shard: ShardId, stream: StreamIdentifier | None) -> Finding:
    return Finding(
        code="blocked_by_unreadable_row",
        severity=Severity.PROBLEM,
        text="it gets no lease, because its row, or that of an ancestor, cannot be read",
        remedy="repair or delete the row that is named above",
        shard=lease_key(shard, stream),
    )


def _unleased(shard: ShardId, stream: StreamIdentifier | None, facts: FleetFacts) -> Finding:
    return Finding(
        code="no_lease",
        severity=Severity.NOTICE if active_workers(facts) else Severity.PROBLEM,
        text="it has no lease, so no worker reads it",
        remedy="a running worker creates it at its next shard sync"
        if active_workers(facts)
        else "start a worker: it creates the missing leases",
        shard=lease_key(shard, stream),
    )


def _lease_findings(lease: Lease, leases: Mapping[LeaseKey, Lease], facts: FleetFacts) -> Iterator[Finding]:
    if lease.checkpoint.is_shard_end:
        yield _about(lease, "ended", Severity.OK, "it was read to its end")
        return
    if _is_gone(lease, facts):
        yield _about(
            lease,
            "shard_gone",
            Severity.NOTICE,
            "the stream no longer has this shard: it ended, and all its records are past the retention",
            "its owner writes its end and starts the children; if the shard was not read to its end, records are lost",
        )
        return
    if parents := unfinished_parents(lease, leases):
        yield _waiting(lease, parents, leases, facts)
        return
    silent = leases_without_heartbeat(facts.before.leases, facts.after.leases)
    is_served = False
    if lease.actual_owner is None:
        yield _free(lease, facts)
    elif lease.key in silent and not _renews_another(lease.actual_owner, silent, facts):
        yield _silent(lease, lease.actual_owner, facts)
    else:
        is_served = True
        if lease.is_in_handoff:
            yield _handoff(lease, facts)
    yield from lag_findings(lease, facts, is_served=is_served)


def _is_gone(lease: Lease, facts: FleetFacts) -> bool:
    about = facts.streams.get(lease.stream)
    if about is None or about.shards is None:
        return False
    return all(shard.id != lease.shard_id for shard in about.shards)


def _renews_another(owner: WorkerId, silent: frozenset[LeaseKey], facts: FleetFacts) -> bool:
    """Whether the owner has sent a heartbeat for any lease. Heartbeats of one round are seconds apart."""
    return any(
        lease.actual_owner == owner and lease.key not in silent and not lease.checkpoint.is_shard_end
        for lease in facts.after.leases
    )


def _waiting(
    lease: Lease, parents: tuple[ShardId, ...], leases: Mapping[LeaseKey, Lease], facts: FleetFacts
) -> Finding:
    told = [_parent_state(leases[lease_key(parent, lease.stream)], facts) for parent in parents]
    return _about(
        lease,
        "waits_for_parents",
        Severity.OK,
        f"it waits until its {'parent is' if len(told) == 1 else 'parents are'} read to the end: {'; '.join(told)}",
    )


def _parent_state(parent: Lease, facts: FleetFacts) -> str:
    reads = facts.lags.get(parent.key, ())
    behind_ms = reads[-1].behind_ms if reads else None
    lag = "" if behind_ms is None else f", {format_duration(behind_ms)} behind"
    if parent.actual_owner is None:
        return f"{parent.shard_id} has no owner{lag}"
    return f"{parent.actual_owner} reads {parent.shard_id}{lag}"


def _free(lease: Lease, facts: FleetFacts) -> Finding:
    before = next((each for each in facts.before.leases if each.key == lease.key), None)
    if before is None or before.actual_owner is not None:
        return _about(
            lease, "free", Severity.OK, "its lease became free a moment ago, and waits for a worker"
        )
    wait = format_duration(facts.watched_ms)
    if not active_workers(facts):
        reason, remedy = "and no worker is active", "start a worker with this application name"
    elif facts.has_leader:
        reason = "and the leader has not assigned it"
        remedy = "look at the log of the leader; it assigns nothing to a worker without a fresh report"
    else:
        reason = "and no worker has taken it"
        remedy = "look at the logs of the workers; max_leases may be reached on all of them"
    return _about(lease, "free", Severity.PROBLEM, f"nobody owns it for at least {wait}, {reason}", remedy)


def _silent(lease: Lease, owner: WorkerId, facts: FleetFacts) -> Finding:
    others = active_workers(facts) - {owner}
    return _about(
        lease,
        "owner_silent",
        Severity.PROBLEM,
        f"its owner {owner} is silent {silence_of(facts, owner)}: it was stopped, suspended, or cannot reach the "
        "lease table",
        "another worker takes the lease when the failover time has passed"
        if others
        else "no other worker is active: start one, or restart this one",
    )


def _handoff(lease: Lease, facts: FleetFacts) -> Finding:
    before = next((each for each in facts.before.leases if each.key == lease.key), None)
    is_old = before is not None and before.is_in_handoff and before.owner == lease.owner
    since = f"for at least {format_duration(facts.watched_ms)}" if is_old else "now"
    return _about(
        lease,
        "handoff_pending",
        Severity.NOTICE if is_old else Severity.OK,
        f"{lease.checkpoint_owner} hands it over to {lease.owner}, {since}: it first finishes the records in flight",
        "the old owner keeps the lease until its handler returns; a handler that hangs delays the handoff until it "
        "expires"
        if is_old
        else "",
    )


def _about(lease: Lease, code: str, severity: Severity, text: str, remedy: str = "") -> Finding:
    return Finding(code=code, severity=severity, text=text, remedy=remedy, shard=lease.key)
