"""One seed decides everything: the same trace in another process, whatever the addresses and hashes there are."""

import os
import subprocess
import sys

import pytest

from leasehold.simulation.faults import Fault
from leasehold.simulation.simulate import SimulationOptions, simulate

PROGRAM = """
from leasehold.simulation.simulate import Options, simulate
print(simulate(Options(seed={seed}, steady_refreshes=5)).digest)
"""


@pytest.mark.parametrize("seed", [3, 6, 28])
def test_the_same_seed_gives_the_same_trace(seed: int) -> None:
    """To the byte: here, and in an interpreter that hashes texts in another way."""
    digest = simulate(SimulationOptions(seed=seed, steady_refreshes=5)).digest
    elsewhere = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(seed=seed)],
        env={**os.environ, "PYTHONHASHSEED": str(seed + 1)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert elsewhere.stdout.strip() == digest


def test_another_seed_gives_another_trace() -> None:
    """The seed matters."""
    quiet = frozenset[Fault]()
    digests = {
        simulate(SimulationOptions(seed=seed, faults=quiet, faults_ms=5_000, steady_refreshes=1)).digest
        for seed in range(3)
    }
    assert len(digests) == 3


def test_the_trace_is_shown_as_it_happens() -> None:
    """Whoever watches sees each line that is kept, in order."""
    seen: list[str] = []
    options = SimulationOptions(seed=1, faults=frozenset(), faults_ms=5_000, steady_refreshes=1)
    outcome = simulate(options, show=seen.append)
    assert seen == list(outcome.trace)
    assert any(" takes " in line for line in seen)
