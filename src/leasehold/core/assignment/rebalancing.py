"""Which leases to move from loaded workers to less loaded ones, one by one, until the loads are even enough.

Balancing starts only if the difference is worth the cost of moving, and stops at a narrower band, so that a fleet near
the limit does not start again and again. Each step makes the move that evens out the loads most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from leasehold.core.assignment.lease_loads import WorkerLoads
from leasehold.core.model import LeaseKey, WorkerId

START_BAND: Final = 0.10  # as in the KCL: balancing starts if a load is further than this from the mean ...
START_POINTS_MIN: Final = (
    2.0  # ... and the band is at least this many points of utilisation: idle fleets seem uneven
)
START_ALWAYS_BAND: Final = 0.5  # a load further than this from the mean always starts balancing
STOP_BAND: Final = 0.08
SOURCES_TRIED: Final = 3  # how many of the heaviest workers are compared for each move
ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Move:
    """One lease, and the workers between which it moves. `gain` is how much the move evens out their loads."""

    key: LeaseKey
    source: WorkerId
    to: WorkerId
    gain: float


def is_uneven(loads: WorkerLoads, mean_utilisation: float | None) -> bool:
    """Whether the loads differ so much that moving leases is worth its cost."""
    mean = loads.mean
    if mean == 0 or len(loads.of) < 2:
        return False
    worst = max(abs(load - mean) for load in loads.of.values()) / mean
    is_noticeable = mean_utilisation is None or START_BAND * mean_utilisation >= START_POINTS_MIN
    return bool(loads.above_range) or worst > START_ALWAYS_BAND or (is_noticeable and worst > START_BAND)


def plan_moves(loads: WorkerLoads, moves_max: int, *, by_count: bool) -> list[Move]:
    """The moves that make the loads even, at most `moves_max`. Updates `loads`."""
    mean = loads.mean  # before the first move: the goal must not change with each move
    moves: list[Move] = []
    loads.rank_heaviest()
    while len(moves) < moves_max and (move := _best_move(loads, mean, by_count=by_count)):
        loads.move(move.key, move.source, move.to)
        loads.put_back((move.source,))
        moves.append(move)
    return moves


def _best_move(loads: WorkerLoads, mean: float, *, by_count: bool) -> Move | None:
    """The best move from one of the heaviest workers to the lightest; None if the loads are even enough."""
    to = loads.lightest()
    if to is None or loads.is_last_choice(to):
        return None
    moves: list[Move] = []
    while len(moves) < SOURCES_TRIED and (source := loads.next_heaviest()) is not None:
        # A worker without a useful move is not tried again: the lightest worker only becomes heavier.
        if source != to and (move := _best_lease(loads, source, to, mean, by_count=by_count)) is not None:
            moves.append(move)
    best = max(moves, key=lambda move: (move.gain, move.key), default=None)
    loads.put_back(move.source for move in moves if move is not best)
    return best


def _best_lease(
    loads: WorkerLoads, source: WorkerId, to: WorkerId, mean: float, *, by_count: bool
) -> Move | None:
    """The lease whose move brings the loads of both workers closest to each other."""
    heavy, light = loads.of[source], loads.of[to]
    if not by_count and source not in loads.above_range and _is_even(heavy, light, mean):
        return None
    # One unit of weight relieves the source by its own cost, and loads the target by another.
    relief, burden = loads.cost(source), loads.cost(to)
    ideal_weight = (heavy - light) / (relief + burden)
    moves = [
        Move(key, source, to, gain=(relief + burden) * weight * (2 * ideal_weight - weight))
        for weight, key in loads.nearest(source, ideal_weight)
        if _is_worthwhile(heavy - (light + burden * weight), at_least=min(START_BAND * mean, relief * weight))
    ]
    return max(moves, key=lambda move: move.gain, default=None)


def _is_worthwhile(difference: float, *, at_least: float) -> bool:
    """Whether a move changes enough. A smaller difference may be noise, and the lease would move back."""
    return difference > ROUNDING and difference >= at_least - ROUNDING


def _is_even(heavy: float, light: float, mean: float) -> bool:
    return heavy <= (1 + STOP_BAND) * mean and light >= (1 - STOP_BAND) * mean
