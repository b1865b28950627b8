"""The runtimes that a run simulates. The seed draws one, unless `--runtime` names it."""

from __future__ import annotations

import random
from enum import Enum


class Runtime(Enum):
    """What the processes of a run are. The value is its name in `--runtime`."""

    WORKER = "worker"  # workers with handlers of a user
    ARCHIVE = "archive"  # workers that archive their batches
    SPARK = "spark"  # a Spark query, in some runs beside workers that archive


def draw_runtime(rng: random.Random) -> Runtime:
    """Draw the runtime of a seed."""
    return rng.choices((Runtime.WORKER, Runtime.ARCHIVE, Runtime.SPARK), (2, 1, 1))[0]
