"""What a run has to say: in lines for people. Runs nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from leasehold.simulation.faults import Fault
from leasehold.simulation.simulate import SimulationOptions, SimulationOutcome

_DEFAULT: Final = SimulationOptions(seed=0)


def repeat_command(options: SimulationOptions) -> str:
    """The command that repeats a run to the byte.

    >>> repeat_command(SimulationOptions(seed=4711, workers=5, shards=16))
    'leasehold simulate --seed 4711 --workers 5 --shards 16'
    """
    words = ["leasehold simulate", f"--seed {options.seed}"]
    if options.workers is not None:
        words.append(f"--workers {options.workers}")
    if options.shards is not None:
        words.append(f"--shards {options.shards}")
    if options.faults is not None:
        words.append(f"--faults {fault_names(options.faults)}")
    if options.faults_ms != _DEFAULT.faults_ms:
        words.append(f"--minutes {options.faults_ms / 60_000:g}")
    if options.mode is not _DEFAULT.mode:
        words.append(f"--mode {options.mode.value}")
    return " ".join(words)


def fault_names(faults: frozenset[Fault]) -> str:
    """Faults as `--faults` takes them."""
    return ",".join(sorted(fault.value for fault in faults)) or "none"


def result_lines(outcome: SimulationOutcome) -> list[str]:
    """How one run ended; a failure names the command that repeats it."""
    if outcome.has_passed:
        seconds = outcome.simulated_ms / 1000
        return [
            f"sound: {outcome.produced} records in {seconds:.0f} simulated seconds, trace {outcome.digest}"
        ]
    return [
        *(str(broken) for broken in outcome.broken[:1]),
        f"  faults: {outcome.mix}",
        f"  repeat: {repeat_command(outcome.options)}",
    ]


def summary_lines(outcomes: Sequence[SimulationOutcome], took_s: float) -> list[str]:
    """What many runs come to: how much was simulated, how fast, and what went wrong in them."""
    simulated_s = sum(outcome.simulated_ms for outcome in outcomes) / 1000
    acts: Counter[str] = Counter()
    for outcome in outcomes:
        acts.update(outcome.acts)
    broken = sum(not outcome.has_passed for outcome in outcomes)
    return [
        f"{len(outcomes)} seeds, {broken} broken; {sum(each.produced for each in outcomes):,} records",
        f"{simulated_s / 60:,.0f} simulated minutes in {took_s:.0f} s: {simulated_s / took_s:,.0f} times real time",
        "faults: " + ", ".join(f"{count} {name}" for name, count in sorted(acts.items())),
    ]
