"""Plans the faults of a run. The plan is drawn from a seed; `fault_injector` carries it out.

The same seed and counts give the same plan. The processes to hit are known only at the time of the fault, so the plan
chooses among them with a number between 0 and 1.
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
    """A kind of process that can be killed or paused."""

    ARCHIVER = "archiving worker"
    RECORDER = "recording worker"
    TASK = "Spark task worker"
    READER = "Spark reader"
    DRIVER = "Spark driver"
    JVM = "Spark JVM"
    PIPELINE = "all of Spark"


class Group(Enum):
    """Processes that share proxies, so their connections fail together."""

    ARCHIVERS = "archiving workers"
    RECORDERS = "recording workers"
    SPARK = "Spark"


class Dependency(Enum):
    """A server that connections can fail to."""

    KINESIS = "Kinesis"
    DYNAMODB = "DynamoDB"
    STORE = "the store"


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL."""

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
    """A split or a merge, so that the number of shards stays within its bounds."""


@dataclass(frozen=True, slots=True)
class NetworkFault:
    """The connections of one group to one dependency fail for some seconds."""

    group: Group
    dependency: Dependency
    kind: NetworkFaultKind
    for_s: float


Fault = Kill | Pause | Reshard | NetworkFault


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCounts:
    """The number of faults of each kind."""

    kills: int = 84
    pauses: int = 38
    reshards: int = 24
    network_faults: int = 36


# The victims take turns, so that a short run has several kinds. Spark is hit less often because it starts slowly.
_A, _R, _T = Victim.ARCHIVER, Victim.RECORDER, Victim.TASK
VICTIMS_TO_KILL = (
    *(_A, _R, _T, Victim.PIPELINE, _A, _R, _A, _R, Victim.READER, _A, _R, _T),
    *(_A, _R, _A, _R, Victim.JVM, _T, _A, _R, Victim.DRIVER, _A, _R, _T),
)
VICTIMS_TO_PAUSE = (_A, _R, Victim.READER, _A, _R, Victim.JVM, _A, _R, Victim.PIPELINE)
# Recording workers use no object store.
CONNECTIONS = tuple(
    (group, dependency)
    for dependency in (Dependency.DYNAMODB, Dependency.KINESIS, Dependency.STORE)
    for group in Group
    if (group, dependency) != (Group.RECORDERS, Dependency.STORE)
)


def draw_faults(seed: int, counts: FaultCounts, failover_s: float) -> list[Fault]:
    """Draw a plan. Half of the pauses are shorter than the failover time, half are longer."""
    rng = random.Random(seed)
    plan: list[Fault] = [Kill(victim, rng.random()) for victim in _repeat(VICTIMS_TO_KILL, counts.kills)]
    for number, victim in enumerate(_repeat(VICTIMS_TO_PAUSE, counts.pauses)):
        plan.append(Pause(victim, rng.random(), _draw_pause_s(rng, failover_s, is_long=number % 2 == 0)))
    plan += [Reshard()] * counts.reshards
    connections = rng.sample(CONNECTIONS, len(CONNECTIONS))
    kinds = rng.sample(list(NetworkFaultKind), len(NetworkFaultKind))
    for (group, dependency), kind in zip(
        _repeat(connections, counts.network_faults), _repeat(kinds, counts.network_faults), strict=True
    ):
        plan.append(NetworkFault(group, dependency, kind, round(rng.uniform(0.5, failover_s + 2), 1)))
    rng.shuffle(plan)
    return plan


def _draw_pause_s(rng: random.Random, failover_s: float, *, is_long: bool) -> float:
    bounds = (failover_s + 1, failover_s + 4) if is_long else (0.5, failover_s * 0.6)
    return round(rng.uniform(*bounds), 1)


def _repeat(choices: Sequence[T], count: int) -> Iterable[T]:
    return islice(cycle(choices), count)
