"""Which leases to move from loaded workers to less loaded ones, one by one, until the loads are even enough.

Balancing starts only if the difference is worth the cost of moving, and stops at a narrower band, so that a fleet near
the limit does not start again and again. Each step makes the move that evens out the loads most. A worker above its
operating range is relieved whatever the difference is, if another worker can take a lease and stay within its range.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leasehold.core.assignment.lease_loads import WorkerLoads
from leasehold.core.model import LeaseKey, WorkerId

START_POINTS_MIN: Final = 2.0  # the band is at least this many points of utilisation: idle fleets seem uneven
START_ALWAYS_BAND: Final = 0.5  # a load further than this from the mean always starts balancing
EXCHANGE_BAND: Final = 0.25  # of the mean; what a move must gain that makes the loads less even
STOP_SHARE: Final = 0.8  # of the band in which balancing starts
SOURCES_TRIED: Final = 3  # how many of the heaviest workers are compared for each move
ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Balancing:
    """When to balance, and how much at a time. The defaults, except for `threshold`, limit nothing.

    `threshold` is how far a load is from the mean when balancing starts, as a share of the mean. `step` is the share of
    a worker's load above the mean that one round moves, and `every_ms` the time between two rounds. With
    `may_overshoot`, a worker gives one lease in a round even if no lease is as small as what it should give.
    `by_count` ignores all of this: the number of leases is evened out at once.
    """

    threshold: float = 0.10
    step: float = 1.0
    every_ms: int = 0
    may_overshoot: bool = True
    by_count: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """One lease, and the workers between which it moves. `gain` is how much the move evens out their loads."""

    key: LeaseKey
    source: WorkerId
    to: WorkerId
    gain: float


def is_uneven(loads: WorkerLoads, mean_utilisation: float | None, balancing: Balancing) -> bool:
    """Whether the loads differ so much that moving leases is worth its cost."""
    mean, band = loads.mean, balancing.threshold
    if mean == 0 or len(loads.of) < 2:
        return False
    # A worker that is busy without leases cannot be relieved.
    off = [abs(load - mean) for worker, load in loads.of.items() if load <= mean or loads.count(worker)]
    worst = max(off) / mean
    is_noticeable = mean_utilisation is None or band * mean_utilisation >= START_POINTS_MIN
    is_always_uneven = worst > max(band, START_ALWAYS_BAND)
    return bool(loads.above_range) or is_always_uneven or (is_noticeable and worst > band)


def plan_moves(loads: WorkerLoads, moves_max: int, balancing: Balancing) -> list[Move]:
    """The moves that make the loads even, at most `moves_max`. Updates `loads`."""
    current = _Round(loads, balancing)
    moves: list[Move] = []
    loads.rank_heaviest()
    while len(moves) < moves_max:
        to = loads.lightest()
        if to is None or loads.is_last_choice(to):
            break
        move = current.best_move(to)
        if move is not None:
            current.make(move)
            moves.append(move)
        elif to in current.full:
            loads.make_last_choice(to)
            loads.rank_heaviest()
        else:
            break
    return moves


class _Round:
    """The moves of one decision. `full` are the workers whose operating range kept a lease away from them."""

    def __init__(self, loads: WorkerLoads, balancing: Balancing) -> None:
        self.full: set[WorkerId] = set()
        self._loads = loads
        self._balancing = balancing
        self._mean = loads.mean  # before the first move: the goal must not change with each move
        self._given: dict[WorkerId, float] = {}
        self._to_give = {worker: balancing.step * (load - self._mean) for worker, load in loads.of.items()}

    def best_move(self, to: WorkerId) -> Move | None:
        """The best move from one of the heaviest workers to the lightest; None if the loads are even enough."""
        moves: list[Move] = []
        while len(moves) < SOURCES_TRIED and (source := self._loads.next_heaviest()) is not None:
            # A worker without a useful move is not tried again: the lightest worker only becomes heavier.
            if source != to and (move := self._best_lease(source, to)) is not None:
                moves.append(move)
        best = max(moves, key=lambda move: (move.gain, move.key), default=None)
        self._loads.put_back(move.source for move in moves if move is not best)
        return best

    def make(self, move: Move) -> None:
        """Count a move."""
        before = self._loads.of[move.source]
        self._loads.move(move.key, move.source, move.to)
        self._loads.put_back((move.source,))
        given = before - self._loads.of[move.source]
        self._given[move.source] = self._given.get(move.source, 0.0) + given

    def _best_lease(self, source: WorkerId, to: WorkerId) -> Move | None:
        """The lease whose move brings the loads of both workers closest to each other."""
        loads, heavy, light = self._loads, self._loads.of[source], self._loads.of[to]
        is_forced = self._balancing.by_count or source in loads.above_range
        if not is_forced and self._is_even(heavy, light):
            return None
        # One unit of weight relieves the source by its own cost, and loads the target by another.
        relief, burden = loads.cost(source), loads.cost(to)
        ideal_weight = (heavy - light) / (relief + burden)
        best_weight = min(ideal_weight, self._left_to_give(source) / relief)
        moves = []
        for weight, key in loads.nearest(source, best_weight):
            taken, added = relief * weight, burden * weight
            move = Move(key, source, to, gain=(relief + burden) * weight * (2 * ideal_weight - weight))
            is_worthwhile = self._is_worthwhile(move, taken, heavy - (light + added))
            if is_worthwhile and self._may_give(source, taken) and self._has_room(to, added):
                moves.append(move)
        return max(moves, key=lambda move: move.gain, default=None)

    def _left_to_give(self, source: WorkerId) -> float:
        is_unlimited = self._balancing.by_count or (
            self._balancing.step == 1 and self._balancing.may_overshoot
        )
        return float("inf") if is_unlimited else self._to_give[source] - self._given.get(source, 0.0)

    def _may_give(self, source: WorkerId, load: float) -> bool:
        """Whether a worker may give this much. Its first lease may exceed the limit if overshooting is allowed."""
        is_first = source not in self._given
        return load <= self._left_to_give(source) + ROUNDING or (is_first and self._balancing.may_overshoot)

    def _is_worthwhile(self, move: Move, relief: float, lowered_by: float) -> bool:
        """Whether a move lowers the higher of two loads enough. Less may be noise, and the lease would move back.

        Between workers of different costs, a move may lower the higher load and make the loads less even. It has to
        lower the load more than others.
        """
        if move.source in self._loads.above_range:
            return lowered_by > ROUNDING
        at_least = min(self._balancing.threshold * self._mean, relief)
        if move.gain <= 0:
            at_least = EXCHANGE_BAND * self._mean
        return lowered_by > ROUNDING and lowered_by >= at_least - ROUNDING

    def _has_room(self, to: WorkerId, burden: float) -> bool:
        """Whether a worker stays within its operating range."""
        has_room = self._loads.of[to] + burden <= self._loads.most.get(to, float("inf"))
        if not has_room:
            self.full.add(to)
        return has_room

    def _is_even(self, heavy: float, light: float) -> bool:
        band = STOP_SHARE * self._balancing.threshold
        return heavy <= (1 + band) * self._mean and light >= (1 - band) * self._mean
