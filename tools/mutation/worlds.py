"""Simulated worlds in which every promise must be kept."""

from __future__ import annotations

from leasehold.config.settings import Mode
from leasehold.simulation.simulate import SimulationOptions, simulate

_MODES = (Mode.PEER, Mode.LEADER)


def worlds_pass(count: int) -> bool:
    """Run worlds of every runtime, in both modes, until a promise is broken."""
    return all(
        simulate(SimulationOptions(seed=seed, mode=_MODES[seed % 2], steady_refreshes=20)).has_passed
        for seed in range(count)
    )
