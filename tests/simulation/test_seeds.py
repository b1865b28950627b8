"""The shipped worker in more than a hundred worlds: whatever happens in them, every promise is kept."""

from pathlib import Path

import pytest

from leasehold.config.settings import Mode
from leasehold.simulation.report import repeat_command
from leasehold.simulation.simulate import SimulationOptions, simulate

SEEDS = range(70)
# Each run ends with a hundred quiet rounds for the first seeds; for the others a part of them is enough.
THOROUGH = range(10)
LED = range(60)
FAILED_ONCE = Path(__file__).parent / "seeds_that_once_failed.txt"


def _seeds_that_once_failed() -> list[int]:
    lines = (line.partition("#")[0].strip() for line in FAILED_ONCE.read_text(encoding="utf-8").splitlines())
    return [int(line) for line in lines if line]


def _assert_sound(options: SimulationOptions) -> None:
    outcome = simulate(options)
    told = [*outcome.trace[-40:], *map(str, outcome.broken), f"repeat: {repeat_command(options)}"]
    assert outcome.has_passed, "\n".join(told)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept(seed: int) -> None:
    """Nothing is lost, doubled, out of order or left behind, and the fleet comes to rest."""
    _assert_sound(SimulationOptions(seed=seed, steady_refreshes=100 if seed in THOROUGH else 30))


@pytest.mark.parametrize("seed", LED)
def test_every_promise_is_kept_under_a_leader(seed: int) -> None:
    """The same in fleets in which one member assigns the leases."""
    _assert_sound(SimulationOptions(seed=seed, steady_refreshes=30, mode=Mode.LEADER))


@pytest.mark.parametrize("seed", _seeds_that_once_failed())
def test_a_seed_that_once_failed_is_sound(seed: int) -> None:
    """What a world has found stays found."""
    _assert_sound(SimulationOptions(seed=seed))
