"""Unequal loads: how much each shard delivers, and whether one worker is slow."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

_WEIGHTS: Final = (1, 1, 1, 2, 3, 6)
SLOW: Final = 2.0  # times the processor time of other workers


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """The loads of a run. The same seed gives a shard the same weight.

    A load `is_steady` if no handler takes so long that its shard delivers nothing for a while, and much afterwards.
    """

    seed: int
    has_slow_worker: bool
    is_steady: bool = True

    def weight_of(self, shard: str) -> int:
        """Return how much a shard delivers, compared with others."""
        return random.Random(f"{self.seed}:weight:{shard}").choice(_WEIGHTS)  # noqa: S311 - no secret
