"""The shipped worker keeps every promise in more than a hundred simulated runs."""

from pathlib import Path

import pytest

from leasehold.config.settings import Mode
from leasehold.simulation.report import repeat_command
from leasehold.simulation.runtime import Runtime
from leasehold.simulation.simulate import SimulationOptions, simulate

SEEDS = range(70)
# The first seeds have a long steady state; the others have a short one, to save time.
LONG = range(10)
WITH_LEADER = range(60)
FAILED_ONCE = Path(__file__).parent / "seeds_that_once_failed.txt"


def _seeds_that_once_failed() -> list[int]:
    lines = (line.partition("#")[0].strip() for line in FAILED_ONCE.read_text(encoding="utf-8").splitlines())
    return [int(line) for line in lines if line]


def _assert_passes(options: SimulationOptions) -> None:
    outcome = simulate(options)
    lines = [*outcome.trace[-40:], *map(str, outcome.broken), f"repeat: {repeat_command(options)}"]
    assert outcome.has_passed, "\n".join(lines)


@pytest.mark.parametrize("seed", SEEDS)
def test_every_promise_is_kept(seed: int) -> None:
    """No record is lost, duplicated or out of order, and the fleet reaches a steady state."""
    _assert_passes(SimulationOptions(seed=seed, steady_refreshes=100 if seed in LONG else 30))


@pytest.mark.parametrize("seed", WITH_LEADER)
def test_every_promise_is_kept_with_a_leader(seed: int) -> None:
    """The same in leader mode."""
    _assert_passes(SimulationOptions(seed=seed, steady_refreshes=30, mode=Mode.LEADER))


@pytest.mark.parametrize("seed", _seeds_that_once_failed())
def test_a_seed_that_once_failed_passes(seed: int) -> None:
    """A bug that a seed has found does not come back."""
    _assert_passes(SimulationOptions(seed=seed, runtime=Runtime.WORKER))
