"""Every planted bug is caught, by the promise that it breaks. A checker that no mutant trips is not a checker."""

import pytest

from leasehold.simulation.checkers import CHECKERS
from leasehold.simulation.simulate import SimulationOptions, simulate
from tests.simulation.planted_bugs import PLANTED_BUGS, PlantedBug

SEEDS_MAX = 12


@pytest.mark.parametrize("mutant", PLANTED_BUGS.values(), ids=lambda mutant: mutant.name)
def test_a_planted_bug_is_caught(mutant: PlantedBug) -> None:
    """Within a few seeds of a small world, and by the checker that is there for it."""
    for seed in range(mutant.first_seed, mutant.first_seed + SEEDS_MAX):
        with mutant.plant():
            outcome = simulate(
                SimulationOptions(seed=seed, faults=mutant.faults, workers=3, shards=4, steady_refreshes=20)
            )
        if outcome.broken:
            assert outcome.broken[0].promise in mutant.breaks, str(outcome.broken[0])
            return
    pytest.fail(f"{mutant.name!r} was not noticed in {SEEDS_MAX} worlds")


def test_there_are_bugs_for_every_promise() -> None:
    """At least 25 of them, and no checker without one."""
    named = {promise for mutant in PLANTED_BUGS.values() for promise in mutant.breaks}
    assert len(PLANTED_BUGS) >= 25
    assert {checker.promise for checker in CHECKERS} <= named
