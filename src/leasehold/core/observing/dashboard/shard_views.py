"""One row for each shard of a fleet: leased, listed without a lease, or only named as a parent."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from leasehold.core.finding import Explanation, Finding, Severity, finding_to_json, worst_severity
from leasehold.core.leases.lease_view import short_position
from leasehold.core.model import HashRange, Lease, LeaseKey, Shard, ShardId, StreamIdentifier, lease_key
from leasehold.core.observing.dashboard.fleet_history import FleetHistory, finite, is_read_now
from leasehold.core.observing.dashboard.open_batch import find_open_batch
from leasehold.core.observing.dashboard.shard_map import FamilyMember, Place, place_shards
from leasehold.core.observing.explain.facts import FleetFacts, LagRead
from leasehold.core.shards.shard_graph import unfinished_parents
from leasehold.core.shown_text import shown, shown_sentence

PARENTS_MAX: Final = 8  # a shard has at most two; a row may name any number
PACE_FROM_MS: Final = 10_000  # near the tip, the pace of a reader is that of the producers
SEVERITIES: Final = (Severity.PROBLEM, Severity.NOTICE, Severity.OK)

READ: Final = "read"
SILENT: Final = "silent"
FREE: Final = "free"
WAITING: Final = "waiting"
DONE: Final = "done"
TRIMMED: Final = "trimmed"
UNLEASED: Final = "unleased"
LEASE_FIELDS: Final = (
    *("owner", "next", "lag", "kbps", "pace", "checkpoint", "batch"),
    *("since", "exact", "moves", "sessions"),
)
STATES: Final = (READ, SILENT, FREE, WAITING, UNLEASED, DONE, TRIMMED)


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known about one shard, from its lease, from the list of shards, or from a child that names it."""

    key: LeaseKey
    id: ShardId
    stream: StreamIdentifier | None
    lease: Lease | None = None
    shard: Shard | None = None

    @property
    def parents(self) -> Sequence[ShardId]:
        named = self.shard.parents if self.shard is not None else ()
        return sorted(set(named) or (self.lease.parents if self.lease is not None else ()))[:PARENTS_MAX]

    @property
    def hash_range(self) -> HashRange | None:
        if self.shard is not None:
            return self.shard.hash_range
        return None if self.lease is None else self.lease.hash_range


def view_shards(
    facts: FleetFacts, explanation: Explanation, history: FleetHistory, *, is_judged: bool
) -> Mapping[str, Mapping[str, Any]]:
    """The rows, by the number of the shard."""
    known = _known_shards(facts)
    history.shards.keep_only(known)
    places = _places(known, history)
    rows: dict[str, Mapping[str, Any]] = {}
    for key, each in known.items():
        number = history.shards.number_of(key)
        findings = explanation.shards.get(key, ())
        rows[str(number)] = {
            **_identity(each, history, places[number]),
            **_lease_fields(each.lease, facts, history, is_judged=is_judged),
            "state": _state(each, findings, facts),
            "severity": worst_severity(findings).value,
            "findings": [finding_view(finding) for finding in sorted(findings, key=_rank)],
        }
    return rows


def _rank(finding: Finding) -> int:
    return SEVERITIES.index(finding.severity)


def finding_view(finding: Finding) -> Mapping[str, Any]:
    """A finding as JSON values, with text that a page may show."""
    found = dict(finding_to_json(finding))
    return {name: shown_sentence(value) if isinstance(value, str) else value for name, value in found.items()}


def _known_shards(facts: FleetFacts) -> Mapping[LeaseKey, _Known]:
    leases = {lease.key: lease for lease in facts.after.leases}
    found = {
        key: _Known(key, lease.shard_id, lease.stream, lease=lease) for key, lease in sorted(leases.items())
    }
    for stream, about in facts.streams.items():
        for shard in about.shards or ():
            key = lease_key(shard.id, stream)
            found[key] = _Known(key, shard.id, stream, leases.get(key), shard)
    for each in list(found.values()):
        for parent in each.parents:
            key = lease_key(parent, each.stream)
            found.setdefault(key, _Known(key, parent, each.stream))
    return found


def _places(known: Mapping[LeaseKey, _Known], history: FleetHistory) -> Mapping[int, Place]:
    by_stream: dict[StreamIdentifier | None, list[FamilyMember]] = {}
    for key, each in known.items():
        parents = tuple(history.shards.number_of(lease_key(parent, each.stream)) for parent in each.parents)
        member = FamilyMember(history.shards.number_of(key), parents, each.hash_range)
        by_stream.setdefault(each.stream, []).append(member)
    _fill_ranges(by_stream)
    return {
        number: place for members in by_stream.values() for number, place in place_shards(members).items()
    }


def _fill_ranges(by_stream: dict[StreamIdentifier | None, list[FamilyMember]]) -> None:
    """A parent that is only named covers what its children cover."""
    for stream, members in by_stream.items():
        children: dict[int, list[HashRange]] = {}
        for member in members:
            for parent in member.parents:
                if member.hash_range is not None:
                    children.setdefault(parent, []).append(member.hash_range)
        by_stream[stream] = [
            FamilyMember(member.id, member.parents, _cover(children[member.id]))
            if member.hash_range is None and member.id in children
            else member
            for member in members
        ]


def _cover(ranges: Sequence[HashRange]) -> HashRange:
    return HashRange(min(each.start for each in ranges), max(each.end for each in ranges))


def _identity(known: _Known, history: FleetHistory, place: Place) -> Mapping[str, Any]:
    return {
        "shard": shown(known.id),
        "stream": None if known.stream is None else shown(known.stream.split(":")[1]),
        "parents": [history.shards.number_of(lease_key(parent, known.stream)) for parent in known.parents],
        "place": [place.generation, place.until, round(place.low, 7), round(place.high, 7)],
        "open": known.shard is None or known.shard.is_open,
    }


def _lease_fields(
    lease: Lease | None, facts: FleetFacts, history: FleetHistory, *, is_judged: bool
) -> Mapping[str, Any]:
    if lease is None:
        return dict.fromkeys(LEASE_FIELDS)
    reads = () if lease.checkpoint.is_shard_end else facts.lags.get(lease.key, ())
    age = history.age_of(lease.key)
    is_read = is_read_now(lease, facts, is_judged=is_judged)
    return {
        "owner": None if lease.actual_owner is None else shown(lease.actual_owner),
        "next": shown(lease.owner) if lease.is_in_handoff and lease.owner is not None else None,
        "lag": reads[-1].behind_ms if reads else None,
        "kbps": finite(lease.throughput_kbps) if is_read else None,
        "pace": measure_pace(reads) if is_read else None,
        "checkpoint": shown(short_position(lease.checkpoint)),
        "batch": _batch(lease),
        "since": None if age is None else age.since_ms,
        "exact": age is not None and age.is_exact,
        "moves": lease.owner_switches,
        "sessions": history.sessions_of(lease),
    }


def _batch(lease: Lease) -> Mapping[str, Any] | None:
    batch = find_open_batch(lease)
    return None if batch is None else {"words": batch.words, "fixed": batch.is_fixed}


def measure_pace(reads: Sequence[LagRead]) -> float | None:
    """How many seconds of the stream are read in a second; None near the tip, where the producers limit it.

    >>> measure_pace([LagRead(at_ms=0, behind_ms=60_000), LagRead(at_ms=10_000, behind_ms=40_000)])
    3.0
    """
    known = [read for read in reads if read.behind_ms is not None]
    if len(known) < 2 or known[-1].at_ms <= known[0].at_ms:
        return None
    first, last = known[0].behind_ms or 0, known[-1].behind_ms or 0
    if max(first, last) < PACE_FROM_MS:
        return None
    return round(1 + (first - last) / (known[-1].at_ms - known[0].at_ms), 1)


def _state(known: _Known, findings: Sequence[Finding], facts: FleetFacts) -> str:
    codes = {finding.code for finding in findings}
    lease = known.lease
    if lease is None:
        if known.shard is None:
            return TRIMMED
        if "waits_for_parents" in codes:
            return WAITING
        return UNLEASED if findings or known.shard.is_open else DONE
    if lease.checkpoint.is_shard_end:
        return DONE
    if codes & {"shard_gone", "not_a_shard"}:
        return TRIMMED
    if unfinished_parents(lease, facts.after.by_key):
        return WAITING
    if lease.actual_owner is None:
        return FREE
    return SILENT if "owner_silent" in codes else READ
