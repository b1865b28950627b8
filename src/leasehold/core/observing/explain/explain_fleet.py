"""Explains, for each shard of a fleet, why it moves or does not, and what to do. Takes facts, and has no effects."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from leasehold.core.command_name import CommandName, parse_command
from leasehold.core.finding import Explanation, Finding, Severity, format_duration
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
from leasehold.core.observing.explain.fleet_findings import fleet_findings, silence_of
from leasehold.core.observing.explain.lag_findings import lag_findings
from leasehold.core.position import TRIM_HORIZON
from leasehold.core.shards.lease_creation import blocked_shards, plan_missing_leases
from leasehold.core.shards.recreated_stream import Contradiction, find_contradictions
from leasehold.core.shards.shard_graph import ShardGraph, unfinished_parents
from leasehold.errors import ShardListError


def explain_fleet(facts: FleetFacts) -> Explanation:
    """The findings about a fleet and each of its shards."""
    by_key = facts.after.by_key
    found = {key: tuple(_lease_findings(lease, by_key, facts)) for key, lease in by_key.items()}
    fleet = list(fleet_findings(facts))
    for stream, about in facts.streams.items():
        if about.graph is not None:
            found.update(_unleased_shards(stream, about.graph, facts))
            contradictions = _contradictions(stream, about, facts)
            fleet += _recreated(about, contradictions)
            found.update(_ended_earlier(contradictions, by_key))
    return Explanation(tuple(fleet), {key: found[key] for key in sorted(found)})


def _recreated(about: StreamFacts, certain: Sequence[Contradiction]) -> Iterator[Finding]:
    if certain:
        yield Finding(
            code="stream_recreated",
            severity=Severity.PROBLEM,
            text=f"stream {about.name} was deleted and created again, or the leases are of another stream: "
            f"{certain[0].fact}",
            remedy="set on_recreated_stream = 'start_over' to read the new stream from its beginning, or use another "
            "application name",
            subject=about.name,
        )


def _ended_earlier(
    certain: Sequence[Contradiction], leases: Mapping[LeaseKey, Lease]
) -> Mapping[LeaseKey, tuple[Finding, ...]]:
    """The shards that seem to be read to their end, because those of the earlier stream were."""
    text = "the shard of this id in the earlier stream was read to its end; that of the present stream is not read"
    ended = (leases.get(each.lease.key) for each in certain)
    return {
        lease.key: (_about(lease, "ended", Severity.NOTICE, text),)
        for lease in ended
        if lease is not None and lease.checkpoint.is_shard_end
    }


def _contradictions(
    stream: StreamIdentifier | None, about: StreamFacts, facts: FleetFacts
) -> Sequence[Contradiction]:
    """The leases that certainly are not of the listed stream."""
    leases = facts.before.leases if about.leases_at_list is None else about.leases_at_list
    found = find_contradictions(about.shards or (), leases, stream=stream)
    return [each for each in found if each.is_certain and _is_unchanged(each.lease, about, facts)]


def _is_unchanged(lease: Lease, about: StreamFacts, facts: FleetFacts) -> bool:
    """Whether a lease still is as it was before an older list: it was not restarted since."""
    now = facts.after.by_key.get(lease.key)
    return about.leases_at_list is None or (
        now is not None and (now.checkpoint, now.hash_range) == (lease.checkpoint, lease.hash_range)
    )


def _unleased_shards(
    stream: StreamIdentifier | None, graph: ShardGraph, facts: FleetFacts
) -> Mapping[LeaseKey, tuple[Finding, ...]]:
    """A finding for each shard that should have a lease and has none, or gets one when its parents have ended."""
    about = facts.streams[stream]
    here = [lease for lease in facts.after.leases if lease.stream == stream]
    unreadable = [parse_lease_key(LeaseKey(error.key))[1] for error in facts.after.rejected]
    blocked = blocked_shards(graph, unreadable) - {lease.shard_id for lease in here}
    missing = _missing(graph, here, stream, unreadable)
    if missing and about.leases_at_list is not None:
        missing &= _missing(graph, about.leases_at_list, stream, unreadable)
    findings = {shard: _blocked(shard, stream) for shard in blocked}
    findings |= {shard: _unleased(lease_key(shard, stream), facts) for shard in missing}
    findings |= {
        shard: _waiting_unleased(shard, graph, stream, facts)
        for shard in _unbegun(graph, here, missing)
        if shard not in blocked
    }
    return {finding.shard: (finding,) for finding in findings.values() if finding.shard is not None}


def _missing(
    graph: ShardGraph,
    leases: Iterable[Lease],
    stream: StreamIdentifier | None,
    unreadable: Collection[ShardId],
) -> frozenset[ShardId]:
    initial = InitialPosition(TRIM_HORIZON)
    try:
        plan = plan_missing_leases(graph, leases, initial, stream=stream, unreadable=unreadable)
    except ShardListError:
        return frozenset()  # the list was made during a reshard; the next one is right
    return frozenset(lease.shard_id for lease in plan)


def _unbegun(graph: ShardGraph, leases: Sequence[Lease], missing: Collection[ShardId]) -> Iterator[ShardId]:
    """The shards without a lease below a lease that has not ended, or below one that is missing.

    Without any lease, only the settings of the first worker say with which shards it begins.
    """
    rows = {lease.shard_id for lease in leases}
    passed = graph.upward_from(rows)
    before = {lease.shard_id for lease in leases if not lease.checkpoint.is_shard_end} | set(missing)
    for shard in graph.parents_first if rows else ():
        if shard not in passed and shard not in before and not before.isdisjoint(graph.parents_of(shard)):
            before.add(shard)
            yield shard


def _waiting_unleased(
    shard: ShardId, graph: ShardGraph, stream: StreamIdentifier | None, facts: FleetFacts
) -> Finding:
    leases = facts.after.by_key
    of_parents = [(parent, leases.get(lease_key(parent, stream))) for parent in graph.parents_of(shard)]
    told = [
        f"{parent} has no lease yet" if lease is None else _parent_state(lease, facts)
        for parent, lease in of_parents
        if lease is None or not lease.checkpoint.is_shard_end
    ]
    return Finding(
        code="waits_for_parents",
        severity=Severity.OK,
        text=f"it waits until its {_are_read(told)} read to the end, and gets a lease then: {'; '.join(told)}",
        shard=lease_key(shard, stream),
    )


def explain_listed_shard(shard: str, facts: FleetFacts) -> Mapping[LeaseKey, tuple[Finding, ...]]:
    """The finding about a listed shard of which `explain_fleet` says nothing, by its id or its lease key."""
    found: dict[LeaseKey, tuple[Finding, ...]] = {}
    for stream, about in facts.streams.items():
        for each in about.shard_ids:
            key = lease_key(each, stream)
            if shard in {key, each} and key not in facts.after.by_key:
                found[key] = (_passed(key, each, stream, about, facts),)
    return found


def _passed(
    key: LeaseKey, shard: ShardId, stream: StreamIdentifier | None, about: StreamFacts, facts: FleetFacts
) -> Finding:
    leased = [lease.shard_id for lease in facts.after.leases if lease.stream == stream]
    if about.graph is None or shard not in about.graph.upward_from(leased):
        return _unleased(key, facts)
    return Finding(
        code="ended",
        severity=Severity.OK,
        text="it has no lease, and a shard that follows it has one: it was read to its end, or this application began "
        "after it",
        shard=key,
    )


def _are_read(parents: Sequence[str]) -> str:
    return f"parent{'s' if len(parents) > 1 else ''} {_is_or_are(parents)}"


def _is_or_are(several: Sequence[str]) -> str:
    return "is" if len(several) == 1 else "are"


def _blocked(shard: ShardId, stream: StreamIdentifier | None) -> Finding:
    return Finding(
        code="blocked_by_unreadable_row",
        severity=Severity.PROBLEM,
        text="it gets no lease, because its row, or that of an ancestor, cannot be read",
        remedy="repair or delete the row that is named above",
        shard=lease_key(shard, stream),
    )


def _unleased(key: LeaseKey, facts: FleetFacts) -> Finding:
    return Finding(
        code="no_lease",
        severity=Severity.NOTICE if facts.active_workers else Severity.PROBLEM,
        text="it has no lease, so no worker reads it",
        remedy=_who_creates_it(facts),
        shard=key,
    )


def _who_creates_it(facts: FleetFacts) -> str:
    if not facts.active_workers:
        return "no worker is active: start a worker, which creates the missing leases"
    if facts.heard_workers or facts.own_worker is not None:
        return "a running worker creates it at its next shard sync"
    last = max(facts.after.reports_by_worker[worker].updated_s for worker in facts.active_workers)
    age = format_duration((facts.wall_s - last) * 1000)
    return (
        f"the last report of a worker is {age} old: if it still runs, it creates the lease at its next shard sync; if "
        "not, start a worker"
    )


def _lease_findings(lease: Lease, leases: Mapping[LeaseKey, Lease], facts: FleetFacts) -> Iterator[Finding]:
    if lease.checkpoint.is_shard_end:
        yield _about(lease, "ended", Severity.OK, "it was read to its end")
        return
    if _is_gone(lease, facts):
        yield _gone(lease, facts)
        return
    if parents := unfinished_parents(lease, leases):
        yield _waiting(lease, parents, leases, facts)
        return
    if lost := _lost_parents(lease, leases, facts):
        yield _lost_parent(lease, lost, facts)
    unserved = _why_unserved(lease, facts)
    if unserved is not None:
        yield unserved
    elif lease.is_in_handoff:
        yield _handoff(lease, facts)
    yield from lag_findings(lease, facts, is_served=unserved is None)


def _why_unserved(lease: Lease, facts: FleetFacts) -> Finding | None:
    """Why no worker serves a lease; None if one does."""
    if lease.actual_owner is None:
        return _free(lease, facts)
    if _is_silent(lease, facts):
        return _silent(lease, lease.actual_owner, facts)
    if (command := parse_command(lease.actual_owner)) is not None:
        text = f"{command} holds it, and gives it back to the workers when it has changed it"
        return _about(lease, "handoff_pending", Severity.OK, text)
    return None


def _is_gone(lease: Lease, facts: FleetFacts) -> bool:
    about = facts.streams.get(lease.stream)
    if about is None or about.shards is None:
        return False
    return lease.shard_id not in about.shard_ids and not about.is_older_than(lease)


def _gone(lease: Lease, facts: FleetFacts) -> Finding:
    if facts.streams[lease.stream].never_had(lease.shard_id):
        return _about(
            lease,
            "not_a_shard",
            Severity.NOTICE,
            "the stream has no shard with this id, and never had one: the row belongs to another stream of this name, "
            "or another program wrote it",
            "find out which program wrote the row, and delete it if nothing needs it; a worker that gets it has "
            "nothing to read, and ends it",
        )
    return _about(
        lease,
        "shard_gone",
        Severity.NOTICE,
        "the stream no longer has this shard: it ended, and all its records are past the retention",
        "its owner writes its end and starts the children; if the shard was not read to its end, records are lost",
    )


def _lost_parents(lease: Lease, leases: Mapping[LeaseKey, Lease], facts: FleetFacts) -> list[ShardId]:
    """Listed parents without a lease, although the shard has not begun. Until then no fleet deletes their leases."""
    about = facts.streams.get(lease.stream)
    if lease.checkpoint != TRIM_HORIZON or about is None or about.shards is None:
        return []
    absent = [parent for parent in sorted(lease.parents) if lease_key(parent, lease.stream) not in leases]
    return [parent for parent in absent if parent in about.shard_ids]


def _lost_parent(lease: Lease, parents: list[ShardId], facts: FleetFacts) -> Finding:
    return _about(
        lease,
        "parent_without_lease",
        Severity.NOTICE if facts.active_workers else Severity.PROBLEM,
        f"its parent {parents[0]} has no lease, although the stream still has that shard and this one has not begun: "
        "the lease of the parent was deleted, and its records may not have been read",
        "a Leasehold worker creates the lease of the parent again, and reads the parent first; a Java worker passes "
        "it by: stop Java workers until the parent was read",
    )


def _waiting(
    lease: Lease, parents: tuple[ShardId, ...], leases: Mapping[LeaseKey, Lease], facts: FleetFacts
) -> Finding:
    told = [_parent_state(leases[lease_key(parent, lease.stream)], facts) for parent in parents]
    return _about(
        lease,
        "waits_for_parents",
        Severity.OK,
        f"it waits until its {_are_read(told)} read to the end: {'; '.join(told)}",
    )


def _parent_state(parent: Lease, facts: FleetFacts) -> str:
    reads = facts.lags.get(parent.key, ())
    behind_ms = reads[-1].behind_ms if reads else None
    lag = "" if behind_ms is None else f", {format_duration(behind_ms)} behind"
    owner = parent.actual_owner
    if waits_for := unfinished_parents(parent, facts.after.by_key):
        return f"{parent.shard_id} itself waits until {' and '.join(waits_for)} {_is_or_are(waits_for)} read to the end"
    if owner is None:
        return f"{parent.shard_id} has no owner{lag}"
    if _is_silent(parent, facts):
        return f"nobody reads {parent.shard_id}{lag}: its owner {_name(owner)} is silent {silence_of(facts, owner)}"
    if (command := parse_command(owner)) is not None:
        return f"nobody reads {parent.shard_id}{lag}: {command} holds it"
    return f"{owner} reads {parent.shard_id}{lag}"


def _is_silent(lease: Lease, facts: FleetFacts) -> bool:
    """Whether nobody renews an owned lease, nor any other lease of its owner."""
    return lease.key in facts.silent and lease.actual_owner not in facts.renewing_owners


def _free(lease: Lease, facts: FleetFacts) -> Finding:
    before = facts.before.by_key.get(lease.key)
    if before is None or before.actual_owner is not None:
        return _about(
            lease, "free", Severity.OK, "its lease became free a moment ago, and waits for a worker"
        )
    wait = format_duration(facts.watched_ms)
    if not facts.active_workers:
        reason, remedy = "and no worker is active", "start a worker with this application name"
    elif facts.has_leader:
        reason = "and the leader has not assigned it"
        remedy = "look at the log of the leader; it assigns nothing to a worker without a fresh report"
    else:
        reason = "and no worker has taken it"
        remedy = "look at the logs of the workers; max_leases may be reached on all of them"
    return _about(lease, "free", Severity.PROBLEM, f"nobody owns it for at least {wait}, {reason}", remedy)


def _silent(lease: Lease, owner: WorkerId, facts: FleetFacts) -> Finding:
    others = facts.active_workers - {owner}
    next_owner = ""
    if lease.is_in_handoff:
        # A command may have ended since it asked.
        command = parse_command(lease.owner)
        waits = f"{lease.owner} waits for it to hand the lease over"
        next_owner = f"; {command} has asked for the lease" if command else f"; {waits}"
    reason = "it was stopped, suspended, or cannot reach the lease table"
    return _about(
        lease,
        "owner_silent",
        Severity.PROBLEM,
        f"its owner {_name(owner)} is silent {silence_of(facts, owner)}: {reason}{next_owner}",
        "another worker takes the lease when the failover time has passed"
        if others
        else "no other worker is active: start one"
        + ("" if parse_command(owner) is not None else ", or restart this one"),
    )


def _name(worker: WorkerId | None) -> str:
    """A worker, or the command that is a member with this name, as words."""
    return str(parse_command(worker) or worker)


def _handoff(lease: Lease, facts: FleetFacts) -> Finding:
    before = facts.before.by_key.get(lease.key)
    is_old = before is not None and before.is_in_handoff and before.owner == lease.owner
    watched = format_duration(facts.watched_ms)
    if (command := parse_command(lease.owner)) is not None:
        asked = f", at least {watched} ago" if is_old and facts.watched_ms else ""
        return _handoff_to_command(lease, command, asked, is_old=is_old)
    # A member that looks at its own leases alone has not read them twice: its reviews show how long it lasts.
    since = f", for at least {watched}" if is_old and facts.watched_ms else "" if is_old else ", now"
    text = f"{lease.checkpoint_owner} hands it over to {lease.owner}{since}"
    # Without reports, a worker that owns no lease cannot be seen.
    if is_old and facts.after.reports and lease.owner not in facts.active_workers:
        return _about(
            lease,
            "handoff_to_silent_worker",
            Severity.PROBLEM,
            f"{text}, but {lease.owner} is not active",
            "the lease is assigned again when the handoff and then the failover time have expired; start "
            f"{lease.owner} again, or another worker",
        )
    return _about(
        lease,
        "handoff_pending",
        Severity.NOTICE if is_old else Severity.OK,
        f"{text}: it first finishes the records in flight",
        "the old owner keeps the lease until its handler returns; a handler that hangs delays the handoff until it "
        "expires"
        if is_old
        else "",
    )


def _handoff_to_command(lease: Lease, command: CommandName, asked: str, *, is_old: bool) -> Finding:
    """A command sends no heartbeat for a lease that it only waits for, so it may have ended."""
    owner = lease.checkpoint_owner
    return _about(
        lease,
        "handoff_pending",
        Severity.NOTICE if is_old else Severity.OK,
        f"{command} has asked {owner} for it{asked}: {owner} first finishes the records in flight",
        f"{owner} hands it over when its handler returns, or declines after handoff_timeout and reads on; if the "
        "command no longer runs by then, a worker takes the lease after the failover time"
        if is_old
        else "",
    )


def _about(lease: Lease, code: str, severity: Severity, text: str, remedy: str = "") -> Finding:
    return Finding(code=code, severity=severity, text=text, remedy=remedy, shard=lease.key)
