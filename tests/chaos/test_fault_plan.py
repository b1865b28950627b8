"""The plan of faults depends only on the seed and the counts."""

from collections import Counter

from tests.chaos.fault_plan import (
    CONNECTIONS,
    FaultCounts,
    Kill,
    NetworkFault,
    Pause,
    Reshard,
    Victim,
    draw_faults,
)
from tests.proxy import NetworkFaultKind

FAILOVER_S = 5.0
COUNTS = FaultCounts(kills=48, pauses=18, reshards=7, network_faults=32)


def test_a_seed_decides_on_the_plan() -> None:
    """The same seed gives the same faults in the same order; another seed does not."""
    assert draw_faults(1, COUNTS, FAILOVER_S) == draw_faults(1, COUNTS, FAILOVER_S)
    assert draw_faults(1, COUNTS, FAILOVER_S) != draw_faults(2, COUNTS, FAILOVER_S)


def test_the_plan_has_the_requested_counts() -> None:
    """It has the requested number of each kind, all victims, and all kinds of network faults."""
    plan = draw_faults(1, COUNTS, FAILOVER_S)
    assert Counter(type(fault) for fault in plan) == {Kill: 48, Pause: 18, Reshard: 7, NetworkFault: 32}
    assert {fault.victim for fault in plan if isinstance(fault, Kill)} == set(Victim)
    assert {(fault.group, fault.dependency) for fault in plan if isinstance(fault, NetworkFault)} == set(
        CONNECTIONS
    )
    assert {fault.kind for fault in plan if isinstance(fault, NetworkFault)} == set(NetworkFaultKind)


def test_half_of_the_pauses_are_longer_than_the_failover_time() -> None:
    """An owner keeps its leases in a short pause and loses them in a long one. The plan has both."""
    pauses = [fault.for_s for fault in draw_faults(1, COUNTS, FAILOVER_S) if isinstance(fault, Pause)]
    assert sum(for_s > FAILOVER_S for for_s in pauses) == 9
    assert all(for_s < FAILOVER_S * 0.7 or for_s > FAILOVER_S for for_s in pauses)


def test_a_small_plan_includes_spark() -> None:
    """Four kills hit both kinds of workers, a Spark task and the whole pipeline."""
    plan = draw_faults(1, FaultCounts(kills=4, pauses=0, reshards=0, network_faults=0), FAILOVER_S)
    victims = {fault.victim for fault in plan if isinstance(fault, Kill)}
    assert victims == {Victim.ARCHIVER, Victim.RECORDER, Victim.TASK, Victim.PIPELINE}
