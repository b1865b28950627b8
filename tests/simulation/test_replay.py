"""A seed decides everything: another process, with other hashes and addresses, gives the same trace."""

import os
import subprocess
import sys

import pytest

from leasehold.simulation.faults import Fault
from leasehold.simulation.runtime import Runtime
from leasehold.simulation.simulate import SimulationOptions, simulate

PROGRAM = """
from leasehold.simulation.runtime import Runtime
from leasehold.simulation.simulate import SimulationOptions, simulate
print(simulate(SimulationOptions(seed={seed}, steady_refreshes=5, runtime=Runtime("{runtime}"))).digest)
"""


@pytest.mark.parametrize(
    ("seed", "runtime"),
    [
        (3, Runtime.WORKER),
        (6, Runtime.WORKER),
        (28, Runtime.WORKER),
        (6, Runtime.ARCHIVE),
        (6, Runtime.SPARK),
        (19, Runtime.SPARK),
    ],
)
def test_the_same_seed_gives_the_same_trace(seed: int, runtime: Runtime) -> None:
    """Run a seed here and in an interpreter with another hash seed."""
    digest = simulate(SimulationOptions(seed=seed, steady_refreshes=5, runtime=runtime)).digest
    other = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(seed=seed, runtime=runtime.value)],
        env={**os.environ, "PYTHONHASHSEED": str(seed + 1)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.strip() == digest


def test_another_seed_gives_another_trace() -> None:
    """Different seeds give different traces."""
    no_faults = frozenset[Fault]()
    digests = {
        simulate(SimulationOptions(seed=seed, faults=no_faults, faults_ms=5_000, steady_refreshes=1)).digest
        for seed in range(3)
    }
    assert len(digests) == 3


def test_the_trace_is_shown_during_the_run() -> None:
    """`show` gets each line of the trace, in order."""
    shown: list[str] = []
    options = SimulationOptions(seed=1, faults=frozenset(), faults_ms=5_000, steady_refreshes=1)
    outcome = simulate(options, show=shown.append)
    assert shown == list(outcome.trace)
    assert any(" takes " in line for line in shown)
