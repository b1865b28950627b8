"""Formats the results of simulations as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from leasehold.simulation.faults import Fault
from leasehold.simulation.simulate import SimulationOptions, SimulationOutcome

_DEFAULT: Final = SimulationOptions(seed=0)


def repeat_command(options: SimulationOptions) -> str:
    """Return the command that repeats a run exactly.

    >>> repeat_command(SimulationOptions(seed=4711, workers=5, shards=16))
    'leasehold simulate --seed 4711 --workers 5 --shards 16'
    """
    parts = ["leasehold simulate", f"--seed {options.seed}"]
    if options.workers is not None:
        parts.append(f"--workers {options.workers}")
    if options.shards is not None:
        parts.append(f"--shards {options.shards}")
    if options.faults is not None:
        parts.append(f"--faults {fault_names(options.faults)}")
    if options.faults_ms != _DEFAULT.faults_ms:
        parts.append(f"--minutes {options.faults_ms / 60_000:g}")
    if options.runtime is not None:
        parts.append(f"--runtime {options.runtime.value}")
    if options.retrieval is not None:
        parts.append(f"--retrieval {options.retrieval.value}")
    if options.start is not None:
        parts.append(f"--start {options.start.value.replace(' ', '-')}")
    if options.is_wide:
        parts.append("--wide")
    if options.load is not None:
        parts.append("--load" if options.load else "--no-load")
    if options.has_compaction:
        parts.append("--compaction")
    if options.concurrency is not None:
        parts.append("--concurrency" if options.concurrency else "--no-concurrency")
    if options.streams is not None:
        parts.append(f"--streams {options.streams.value}")
    if options.mode is not _DEFAULT.mode:
        parts.append(f"--mode {options.mode.value}")
    return " ".join(parts)


def fault_names(faults: frozenset[Fault]) -> str:
    """Return faults as a value of `--faults`."""
    return ",".join(sorted(fault.value for fault in faults)) or "none"


def result_lines(outcome: SimulationOutcome) -> list[str]:
    """Return the result of one run. A failure includes the command that repeats it."""
    if outcome.has_passed:
        seconds = outcome.simulated_ms / 1000
        return [
            f"passed: {outcome.produced} records in {seconds:.0f} simulated seconds, trace {outcome.digest}"
        ]
    return [
        *(str(broken) for broken in outcome.broken[:1]),
        f"  faults: {outcome.mix}",
        f"  repeat: {repeat_command(outcome.options)}",
    ]


def summary_lines(outcomes: Sequence[SimulationOutcome], took_s: float) -> list[str]:
    """Return the totals of many runs: failures, records, speed, and how many faults of each kind were injected."""
    simulated_s = sum(outcome.simulated_ms for outcome in outcomes) / 1000
    faults: Counter[str] = Counter()
    for outcome in outcomes:
        faults.update(outcome.fault_counts)
    failed = sum(not outcome.has_passed for outcome in outcomes)
    return [
        f"{len(outcomes)} seeds, {failed} failed; {sum(each.produced for each in outcomes):,} records",
        f"{simulated_s / 60:,.0f} simulated minutes in {took_s:.0f} s: {simulated_s / took_s:,.0f} times real time",
        "faults: " + ", ".join(f"{count} {name}" for name, count in sorted(faults.items())),
    ]
