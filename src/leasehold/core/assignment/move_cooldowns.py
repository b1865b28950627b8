"""How long a lease stays where balancing has moved it.

Balancing acts on figures that may mislead it: a lease may be expensive by itself, and make each worker busy to which it
moves. A lease that moves again and again therefore stays four times as long after each move. If workers join or leave,
earlier moves say nothing about the new fleet, and the shortest cooldown applies again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from leasehold.core.model import LeaseKey

COOLDOWN_MS: Final = 120_000  # after the first move
COOLDOWN_GROWTH: Final = 4
COOLDOWN_MS_MAX: Final = 24 * 3_600_000
# Longer than a cycle of moves that only exchange the loads of workers: a cooldown, and the time to learn new costs.
REMEMBER_MS_MIN: Final = 1_800_000


@dataclass(frozen=True, slots=True)
class RecentMove:
    """When balancing last moved a lease, and how long the lease stays."""

    at_ms: int
    cooldown_ms: int = COOLDOWN_MS

    def may_move(self, now_ms: int) -> bool:
        """Whether the lease may move again."""
        return now_ms - self.at_ms >= self.cooldown_ms

    def is_forgotten(self, now_ms: int) -> bool:
        """Whether another move of the lease would be no repetition."""
        return now_ms - self.at_ms >= max(2 * self.cooldown_ms, REMEMBER_MS_MIN)


RecentMoves = Mapping[LeaseKey, RecentMove]


def next_recent_moves(before: RecentMoves, now_ms: int, *, is_same_fleet: bool) -> RecentMoves:
    """The moves to remember at the next decision."""
    return {
        key: move if is_same_fleet else replace(move, cooldown_ms=COOLDOWN_MS)
        for key, move in before.items()
        if not move.is_forgotten(now_ms)
    }


def with_moves(before: RecentMoves, keys: Iterable[LeaseKey], now_ms: int) -> RecentMoves:
    """Adds moves that are planned now."""
    return {**before, **{key: _repeated(before.get(key), now_ms) for key in keys}}


def _repeated(before: RecentMove | None, now_ms: int) -> RecentMove:
    if before is None:
        return RecentMove(now_ms)
    return RecentMove(now_ms, min(COOLDOWN_MS_MAX, COOLDOWN_GROWTH * before.cooldown_ms))
