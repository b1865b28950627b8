"""Every planted bug is caught, and every promise is broken by some planted bug."""

import pytest

from leasehold.simulation.checkers import CHECKERS
from leasehold.simulation.simulate import SimulationOptions, simulate
from tests.simulation.planted_bugs import PLANTED_BUGS, PlantedBug

SEEDS_MAX = 12


@pytest.mark.parametrize("planted_bug", PLANTED_BUGS.values(), ids=lambda planted_bug: planted_bug.name)
def test_a_planted_bug_is_caught(planted_bug: PlantedBug) -> None:
    """A checker for this bug reports it within a few seeds."""
    for seed in range(planted_bug.first_seed, planted_bug.first_seed + SEEDS_MAX):
        with planted_bug.plant():
            outcome = simulate(
                SimulationOptions(
                    seed=seed,
                    faults=planted_bug.faults,
                    workers=3,
                    shards=4,
                    steady_refreshes=20,
                    runtime=planted_bug.runtime,
                    mode=planted_bug.mode,
                    retrieval=planted_bug.retrieval,
                    start=planted_bug.start,
                    streams=planted_bug.streams,
                    load=planted_bug.has_load,
                    concurrency=planted_bug.is_concurrent,
                    has_compaction=planted_bug.has_compaction,
                    # Objects are compacted when they are older than a minute.
                    faults_ms=240_000 if planted_bug.has_compaction else 60_000,
                )
            )
        if outcome.broken:
            assert outcome.broken[0].promise in planted_bug.breaks, str(outcome.broken[0])
            return
    pytest.fail(f"{planted_bug.name!r} was not caught within {SEEDS_MAX} seeds")


def test_there_is_a_bug_for_every_promise() -> None:
    """Every checker is tested by at least one planted bug."""
    broken = {promise for planted_bug in PLANTED_BUGS.values() for promise in planted_bug.breaks}
    assert len(PLANTED_BUGS) >= 25
    assert {checker.promise for checker in CHECKERS} <= broken
