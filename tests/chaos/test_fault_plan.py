"""The deck of faults is drawn from the seed alone, and holds what it was asked for."""

from collections import Counter

from tests.chaos.fault_plan import (
    CUT_OFF,
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


def test_a_seed_decides_on_the_deck() -> None:
    """The same seed draws the same faults in the same order, another one does not."""
    assert draw_faults(1, COUNTS, FAILOVER_S) == draw_faults(1, COUNTS, FAILOVER_S)
    assert draw_faults(1, COUNTS, FAILOVER_S) != draw_faults(2, COUNTS, FAILOVER_S)


def test_the_deck_holds_what_was_asked_for() -> None:
    """So many of each kind, all victims and all kinds of trouble among them."""
    deck = draw_faults(1, COUNTS, FAILOVER_S)
    assert Counter(type(card) for card in deck) == {Kill: 48, Pause: 18, Reshard: 7, NetworkFault: 32}
    assert {card.victim for card in deck if isinstance(card, Kill)} == set(Victim)
    assert {(card.group, card.dependency) for card in deck if isinstance(card, NetworkFault)} == set(CUT_OFF)
    assert {card.how for card in deck if isinstance(card, NetworkFault)} == set(NetworkFaultKind)


def test_half_of_the_pauses_outlast_the_failover_time() -> None:
    """An owner that sleeps less keeps its leases, one that sleeps longer loses them: both are tried."""
    pauses = [card.for_s for card in draw_faults(1, COUNTS, FAILOVER_S) if isinstance(card, Pause)]
    assert sum(for_s > FAILOVER_S for for_s in pauses) == 9
    assert all(for_s < FAILOVER_S * 0.7 or for_s > FAILOVER_S for for_s in pauses)


def test_a_small_deck_hits_spark_too() -> None:
    """Four kills are enough to have both kinds of workers, a task, and the whole pipeline among the victims."""
    deck = draw_faults(1, FaultCounts(kills=4, pauses=0, reshards=0, network_faults=0), FAILOVER_S)
    victims = {card.victim for card in deck if isinstance(card, Kill)}
    assert victims == {Victim.ARCHIVER, Victim.RECORDER, Victim.TASK, Victim.PIPELINE}
