"""Which faults a run injects: a deck of cards, drawn from a seed. Knows nothing of processes and plays none of them.

The same seed and numbers give the same deck. Who exactly is hit is a number between 0 and 1 on the card, because who is
there to be hit is only known when the card is played.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import cycle, islice
from typing import TypeVar

from tests.proxy import NetworkFaultKind

T = TypeVar("T")


class Victim(Enum):
    """Who can be killed or paused."""

    ARCHIVER = "archiving worker"
    RECORDER = "recording worker"
    TASK = "Spark task worker"
    READER = "Spark reader"
    DRIVER = "Spark driver"
    JVM = "Spark JVM"
    PIPELINE = "all of Spark"


class Group(Enum):
    """Who shares connections that fail together."""

    ARCHIVERS = "archiving workers"
    RECORDERS = "recording workers"
    SPARK = "Spark"


class Dependency(Enum):
    """What can be hard to reach."""

    KINESIS = "Kinesis"
    DYNAMODB = "DynamoDB"
    STORE = "the store"


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill -9."""

    victim: Victim
    pick: float


@dataclass(frozen=True, slots=True)
class Pause:
    """SIGSTOP, and SIGCONT some seconds later."""

    victim: Victim
    pick: float
    for_s: float


@dataclass(frozen=True, slots=True)
class Reshard:
    """A split or a merge, whichever keeps the number of shards in bounds."""


@dataclass(frozen=True, slots=True)
class NetworkFault:
    """Connections of one group to one dependency fail for some seconds."""

    group: Group
    dependency: Dependency
    how: NetworkFaultKind
    for_s: float


Fault = Kill | Pause | Reshard | NetworkFault


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCounts:
    """How many of each. A Spark pipeline takes long to start, so it is the victim more seldom than workers are."""

    kills: int = 84
    pauses: int = 38
    reshards: int = 24
    network_faults: int = 36


# In turn, so that a short run has some of each, too.
_W, _R, _T = Victim.ARCHIVER, Victim.RECORDER, Victim.TASK
KILLED = (
    *(_W, _R, _T, Victim.PIPELINE, _W, _R, _W, _R, Victim.READER, _W, _R, _T),
    *(_W, _R, _W, _R, Victim.JVM, _T, _W, _R, Victim.DRIVER, _W, _R, _T),
)
PAUSED = (_W, _R, Victim.READER, _W, _R, Victim.JVM, _W, _R, Victim.PIPELINE)
# Recorders have no store.
CUT_OFF = tuple(
    (group, dependency)
    for dependency in (Dependency.DYNAMODB, Dependency.KINESIS, Dependency.STORE)
    for group in Group
    if (group, dependency) != (Group.RECORDERS, Dependency.STORE)
)


def draw_faults(seed: int, counts: FaultCounts, failover_s: float) -> list[Fault]:
    """A shuffled deck. Half of the pauses are shorter than the failover time, half are longer."""
    rng = random.Random(seed)
    deck: list[Fault] = [Kill(victim, rng.random()) for victim in _some(KILLED, counts.kills)]
    for number, victim in enumerate(_some(PAUSED, counts.pauses)):
        deck.append(Pause(victim, rng.random(), _pause_s(rng, failover_s, is_long=number % 2 == 0)))
    deck += [Reshard()] * counts.reshards
    places = rng.sample(CUT_OFF, len(CUT_OFF))
    ways = rng.sample(list(NetworkFaultKind), len(NetworkFaultKind))
    for (group, dependency), how in zip(
        _some(places, counts.network_faults), _some(ways, counts.network_faults), strict=True
    ):
        deck.append(NetworkFault(group, dependency, how, round(rng.uniform(0.5, failover_s + 2), 1)))
    rng.shuffle(deck)
    return deck


def _pause_s(rng: random.Random, failover_s: float, *, is_long: bool) -> float:
    bounds = (failover_s + 1, failover_s + 4) if is_long else (0.5, failover_s * 0.6)
    return round(rng.uniform(*bounds), 1)


def _some(choices: Sequence[T], count: int) -> Iterable[T]:
    return islice(cycle(choices), count)
