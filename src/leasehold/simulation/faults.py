"""What goes wrong, drawn anew for each seed: which faults there are at all, and how bad they are (swarm testing).

A mix of everything hides bugs that need a quiet corner, so each seed leaves most faults out. Decides only; what a
fault does to the world is in `acts`.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final

from leasehold.errors import ConfigError
from leasehold.simulation.network import CallFault, Dependency
from leasehold.simulation.producer import Workload


class Fault(Enum):
    """Everything that can go wrong, by the name that `--faults` knows it by."""

    SLOW = "slow"  # some calls take a hundred times as long
    THROTTLING = "throttling"  # storms of refusals
    LOST = "lost"  # requests and answers vanish
    LATE = "late"  # requests arrive after their sender gave them up
    ECHOES = "echoes"  # the client sends a write twice and hears of the second
    STALE = "stale"  # scans and the index are behind
    CUTS = "cuts"  # partitions, one way, of one process or of all
    CRASHES = "crashes"
    PAUSES = "pauses"  # longer than the failover time
    STALLS = "stalls"  # shorter
    CLOCKS = "clocks"  # wall clocks jump
    TWINS = "twins"  # two processes with one worker id
    LEAVERS = "leavers"  # clean stops, and members that join
    RESHARDS = "reshards"
    STORMS = "storms"  # reshards of the same range again and again, and across owners
    ODDITIES = "oddities"  # iterators that expire, pages that are empty though there is more
    AGGREGATES = "aggregates"  # some of them corrupt
    POISON = "poison"  # records that no handler can handle
    FAILURES = "failures"  # handlers that fail now and then
    SLUGGISH = "sluggish"  # handlers that take longer than a handoff may
    LARGE = "large"  # records that fill the buffer
    HOSTILE = "hostile"  # rows that are no leases, or damaged ones
    TRIMS = "trims"  # records leave the stream before they were read
    DELETIONS = "deletions"  # a row, or the whole table, is deleted


# What destroys data or knowledge is rare: it excuses some promises.
_RARE: Final = frozenset({Fault.TRIMS, Fault.DELETIONS})


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultMix:
    """The faults of one seed."""

    faults: frozenset[Fault]
    acts_every_ms: int
    chances: dict[Dependency, dict[CallFault, float]]
    slow_share: float
    stale_chance: float
    expired_chance: float
    empty_chance: float
    failing_share: float
    sluggish_share: float
    is_two_phase: bool
    failover_s: int
    workload: Workload

    def has(self, fault: Fault) -> bool:
        """Whether this seed knows a fault."""
        return fault in self.faults

    def __str__(self) -> str:
        names = " ".join(sorted(fault.value for fault in self.faults)) or "no faults"
        return (
            f"{names}; {'two-phase' if self.is_two_phase else 'plain'} handlers, failover {self.failover_s} s"
        )


def faults_from_names(names: str) -> frozenset[Fault] | None:
    """The faults that a comma-separated list names; None for "drawn", which leaves it to the seed.

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
    """The faults of a seed, and how bad they are. Given faults are taken; their strength is still drawn."""
    drawn = {fault for fault in Fault if rng.random() < (0.12 if fault in _RARE else 0.35)}
    chosen = frozenset(drawn if faults is None else faults)

    def strength(fault: Fault, low: float, high: float) -> float:
        value = rng.uniform(low, high)  # drawn in any case, so that a fault does not change the others
        return value if fault in chosen else 0.0

    troubles = {
        CallFault.REQUEST_LOST: strength(Fault.LOST, 0.005, 0.1),
        CallFault.ANSWER_LOST: strength(Fault.LOST, 0.005, 0.1),
        CallFault.LATE: strength(Fault.LATE, 0.005, 0.08),
    }
    echoes = {CallFault.ECHOED: strength(Fault.ECHOES, 0.02, 0.3)}
    chances = {
        Dependency.LEASES: troubles | echoes,
        Dependency.STREAM: {CallFault.REQUEST_LOST: troubles[CallFault.REQUEST_LOST]},
        Dependency.SINK: troubles,
        Dependency.LETTERS: troubles,
    }
    return FaultMix(
        faults=chosen,
        acts_every_ms=rng.choice((1_000, 2_000, 4_000, 8_000)),
        chances={where: {what: p for what, p in each.items() if p} for where, each in chances.items()},
        slow_share=strength(Fault.SLOW, 0.01, 0.2),
        stale_chance=strength(Fault.STALE, 0.1, 0.9),
        expired_chance=strength(Fault.ODDITIES, 0.0, 0.1),
        empty_chance=strength(Fault.ODDITIES, 0.0, 0.5),
        failing_share=strength(Fault.FAILURES, 0.01, 0.3),
        sluggish_share=strength(Fault.SLUGGISH, 0.005, 0.05),
        is_two_phase=rng.random() < 0.5,
        failover_s=rng.choice((3, 10, 10)),
        workload=_draw_harvest(rng, chosen),
    )


def _draw_harvest(rng: random.Random, faults: frozenset[Fault]) -> Workload:
    every_ms, records_max = rng.choice((200, 500, 1_000)), rng.choice((2, 5, 12))
    aggregated, corrupt, poison = rng.uniform(0.05, 0.6), rng.uniform(0, 0.3), rng.uniform(0.001, 0.01)
    return Workload(
        every_ms=every_ms,
        records_max=records_max,
        data_bytes=60_000 if Fault.LARGE in faults else 40,
        aggregated_share=aggregated if Fault.AGGREGATES in faults else 0.0,
        corrupt_share=corrupt,
        poison_share=poison if Fault.POISON in faults else 0.0,
    )
