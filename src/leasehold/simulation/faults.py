"""The faults of a run, drawn from its seed: which kinds occur, and how often (swarm testing).

A run with every fault hides the bugs that need a quiet environment, so each seed leaves most faults out. This module
only decides; `fault_injection` carries the faults out.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from leasehold.config.settings import Retrieval
from leasehold.errors import ConfigError
from leasehold.simulation.environment.fan_out import EventFate
from leasehold.simulation.environment.network import CallFault, Dependency
from leasehold.simulation.environment.producer import Workload


class Fault(Enum):
    """A kind of fault. The value is its name in `--faults`. The order is part of what a seed means."""

    SLOW_CALLS = "slow-calls"  # some calls take a hundred times as long
    THROTTLING = "throttling"  # a service refuses most calls for some seconds
    LOST_CALLS = "lost-calls"  # requests and responses are lost
    LATE_CALLS = "late-calls"  # requests arrive after the caller's timeout
    DUPLICATE_CALLS = "duplicate-calls"  # the client sends a write twice and gets the second response
    STALE_READS = "stale-reads"  # scans and the index return old rows
    PARTITIONS = "partitions"  # one-way partitions of one process or of all
    CRASHES = "crashes"
    PAUSES = "pauses"  # about as long as the failover time, or longer
    STALLS = "stalls"  # a blocked event loop, for a few seconds
    CLOCK_JUMPS = "clock-jumps"  # of wall clocks
    DUPLICATE_IDS = "duplicate-ids"  # two processes with one worker id
    MEMBERSHIP = "membership"  # members stop cleanly, and members join
    RESHARDS = "reshards"
    RESHARD_STORMS = "reshard-storms"  # reshards of one range in quick succession, and of many ranges at once
    STREAM_QUIRKS = "stream-quirks"  # iterators that expire early, empty pages; subscriptions that misbehave
    AGGREGATES = "aggregates"  # KPL aggregates, some of them corrupt
    POISON_RECORDS = "poison-records"  # every handler fails on them
    HANDLER_FAILURES = "handler-failures"  # handlers fail at random
    SLOW_HANDLERS = "slow-handlers"  # handlers that take longer than a handoff may
    LARGE_RECORDS = "large-records"  # records that fill the buffer
    BAD_ROWS = "bad-rows"  # damaged rows, and rows and attributes of other programs
    TRIMS = "trims"  # records leave the stream before they are read
    DELETIONS = "deletions"  # a row, or every row, is deleted
    STORE_CONFLICTS = "store-conflicts"  # the object store refuses a put although no object exists
    OLD_LOGS = "old-logs"  # the checkpoint location of a Spark query is replaced by an older copy, or deleted
    SUSPENSIONS = "suspensions"  # machines are suspended: their timers stop, and their clocks do not
    REFUSALS = (
        "refusals"  # a service denies access for some seconds, as with an expired role or a changed policy
    )
    STREAM_CHANGES = "stream-changes"  # streams appear and disappear, where members discover their streams


# These faults destroy data, so some promises do not hold with them. They are rare.
_RARE: Final = frozenset({Fault.TRIMS, Fault.DELETIONS})
# These faults have no effect on plain workers. They are drawn last, and so do not change the other draws.
_DRAWN_LAST: Final = frozenset({Fault.STORE_CONFLICTS, Fault.OLD_LOGS})
# These are newer than many seeds that once failed. They are drawn after all others.
_NEWEST: Final = frozenset({Fault.SUSPENSIONS})
# These are drawn by wide runs only (`wide_worlds`).
_NEVER_DRAWN: Final = frozenset({Fault.REFUSALS, Fault.STREAM_CHANGES})


_FATES_MAX: Final = {EventFate.SILENCE: 0.02, EventFate.CUT: 0.1, EventFate.EARLY_END: 0.1}


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultMix:
    """The faults of one run and their frequencies, and the parameters of the workers that are drawn with them.

    One attribute for each frequency, hence more than twelve.
    """

    faults: frozenset[Fault]
    inject_every_ms: int
    chances: dict[Dependency, dict[CallFault, float]]
    slow_share: float
    stale_chance: float
    expired_chance: float
    empty_chance: float
    failing_share: float
    slow_handler_share: float
    is_two_phase: bool
    failover_s: int
    workload: Workload
    conflict_chance: float = 0.0

    def has(self, fault: Fault) -> bool:
        """Return whether a fault occurs in this run."""
        return fault in self.faults

    def __str__(self) -> str:
        names = " ".join(sorted(fault.value for fault in self.faults)) or "no faults"
        handlers = "two-phase" if self.is_two_phase else "plain"
        return f"{names}; {handlers} handlers, failover {self.failover_s} s"


def faults_from_names(names: str) -> frozenset[Fault] | None:
    """Parse a comma-separated list of faults. Returns None for "drawn": the seed chooses.

    >>> sorted(fault.value for fault in faults_from_names("crashes,pauses") or ())
    ['crashes', 'pauses']
    """
    if names == "drawn":
        return None
    if names == "none":
        return frozenset()
    if names == "all":
        return frozenset(Fault)
    known = {fault.value: fault for fault in Fault}
    chosen = [name.strip() for name in names.split(",")]
    unknown = [name for name in chosen if name not in known]
    if unknown:
        raise ConfigError(
            f"--faults {unknown[0]!r}: expected drawn, none, all, or a list of " + ", ".join(sorted(known))
        )
    return frozenset(known[name] for name in chosen)


def draw_fault_mix(rng: random.Random, faults: Collection[Fault] | None = None) -> FaultMix:
    """Draw the faults of a seed and their frequencies. If `faults` are given, only their frequencies are drawn."""
    chosen = _draw_faults(rng, frozenset(Fault) - _DRAWN_LAST - _NEWEST - _NEVER_DRAWN, faults)

    def frequency(fault: Fault, low: float, high: float) -> float:
        # Always draw, so that the choice of one fault does not change the frequencies of the others.
        value = rng.uniform(low, high)
        return value if fault in chosen else 0.0

    lost_or_late = {
        CallFault.REQUEST_LOST: frequency(Fault.LOST_CALLS, 0.005, 0.1),
        CallFault.RESPONSE_LOST: frequency(Fault.LOST_CALLS, 0.005, 0.1),
        CallFault.LATE: frequency(Fault.LATE_CALLS, 0.005, 0.08),
    }
    duplicated = {CallFault.DUPLICATED: frequency(Fault.DUPLICATE_CALLS, 0.02, 0.3)}
    chances = {
        Dependency.LEASES: lost_or_late | duplicated,
        Dependency.STREAM: {CallFault.REQUEST_LOST: lost_or_late[CallFault.REQUEST_LOST]},
        Dependency.SINK: lost_or_late,
        Dependency.DEAD_LETTERS: lost_or_late,
        Dependency.OBJECTS: lost_or_late | duplicated,
    }
    mix = FaultMix(
        faults=chosen,
        inject_every_ms=rng.choice((1_000, 2_000, 4_000, 8_000)),
        chances={
            dependency: {fault: chance for fault, chance in each.items() if chance}
            for dependency, each in chances.items()
        },
        slow_share=frequency(Fault.SLOW_CALLS, 0.01, 0.2),
        stale_chance=frequency(Fault.STALE_READS, 0.1, 0.9),
        expired_chance=frequency(Fault.STREAM_QUIRKS, 0.0, 0.1),
        empty_chance=frequency(Fault.STREAM_QUIRKS, 0.0, 0.5),
        failing_share=frequency(Fault.HANDLER_FAILURES, 0.01, 0.3),
        slow_handler_share=frequency(Fault.SLOW_HANDLERS, 0.005, 0.05),
        is_two_phase=rng.random() < 0.5,
        failover_s=rng.choice((3, 10, 10)),
        workload=_draw_workload(rng, chosen),
    )
    return _with_faults_of_archive(rng, mix, faults)


@dataclass(frozen=True, slots=True)
class FanOutMix:
    """Whether a run reads by enhanced fan-out, and how often its subscriptions misbehave."""

    retrieval: Retrieval
    chances: dict[EventFate, float]
    in_use_chance: float


def draw_fan_out_mix(rng: random.Random, mix: FaultMix, retrieval: Retrieval | None) -> FanOutMix:
    """Draw how a seed reads, unless `retrieval` is given. Half of the seeds read by fan-out."""
    drawn = rng.choice((Retrieval.POLLING, Retrieval.FAN_OUT))
    chances = {fate: rng.uniform(0, most) for fate, most in _FATES_MAX.items()}
    in_use_chance = rng.uniform(0, 0.2)
    has_quirks = mix.has(Fault.STREAM_QUIRKS)
    return FanOutMix(retrieval or drawn, chances if has_quirks else {}, in_use_chance if has_quirks else 0.0)


def _draw_faults(
    rng: random.Random, among: frozenset[Fault], faults: Collection[Fault] | None
) -> frozenset[Fault]:
    drawn = {fault for fault in Fault if fault in among and rng.random() < (0.12 if fault in _RARE else 0.35)}
    return frozenset(drawn if faults is None else among.intersection(faults))


def _with_faults_of_archive(rng: random.Random, mix: FaultMix, faults: Collection[Fault] | None) -> FaultMix:
    chosen, chance = _draw_faults(rng, _DRAWN_LAST, faults), rng.uniform(0.02, 0.3)
    return replace(
        mix,
        faults=mix.faults | chosen | _draw_faults(rng, _NEWEST, faults) | (_NEVER_DRAWN & set(faults or ())),
        conflict_chance=chance if Fault.STORE_CONFLICTS in chosen else 0.0,
    )


def without_poison(mix: FaultMix) -> FaultMix:
    """Return the mix without poison records: the archive writes every record."""
    return replace(mix, workload=replace(mix.workload, poison_share=0.0), is_two_phase=False)


def _draw_workload(rng: random.Random, faults: frozenset[Fault]) -> Workload:
    every_ms, records_max = rng.choice((200, 500, 1_000)), rng.choice((2, 5, 12))
    aggregated, corrupt, poison = rng.uniform(0.05, 0.6), rng.uniform(0, 0.3), rng.uniform(0.001, 0.01)
    return Workload(
        every_ms=every_ms,
        records_max=records_max,
        data_bytes=60_000 if Fault.LARGE_RECORDS in faults else 40,
        aggregated_share=aggregated if Fault.AGGREGATES in faults else 0.0,
        corrupt_share=corrupt,
        poison_share=poison if Fault.POISON_RECORDS in faults else 0.0,
    )
