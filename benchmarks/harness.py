"""What all benchmarks share: results with their spread, the environment, ratios against the documented ones, JSON."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

DOCUMENTED = Path(__file__).parent / "documented_ratios.json"
# A run fails if a ratio is worse than the documented one by more than this share.
TOLERANCE = 1 / 3


@dataclass(frozen=True)
class Plan:
    """What a run should measure. `has_java`: also the contestants that need a JVM with the KCL."""

    rounds: int = 3
    has_java: bool = False
    is_quick: bool = False


@dataclass
class Result:
    """One comparison: the values of all contestants, measured in turns in one run."""

    key: str
    question: str
    unit: str
    command: str
    limit: str  # what limits the best contestant
    values: dict[str, list[float]] = field(default_factory=dict)

    def add(self, contestant: str, value: float) -> None:
        """Add the value of one repeat."""
        self.values.setdefault(contestant, []).append(value)

    def median(self, contestant: str) -> float:
        """The median of a contestant's repeats."""
        return statistics.median(self.values[contestant])

    def rows(self) -> list[tuple[str, str, str, str]]:
        """Contestant, median, lowest to highest, and the ratio to the first contestant."""
        first = next(iter(self.values))
        return [
            (
                name,
                number_text(self.median(name)),
                f"{number_text(min(values))} to {number_text(max(values))}",
                f"{self.median(name) / self.median(first):.2f}" if self.median(first) else "",
            )
            for name, values in self.values.items()
        ]


def number_text(value: float) -> str:
    """A number with three digits that count.

    >>> [number_text(each) for each in (0.01234, 1.234, 56.78, 1234.5)]
    ['0.012', '1.23', '56.8', '1,234']
    """
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"


def environment() -> dict[str, str]:
    """Describe the machine, the versions and the load."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    return {
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} x {model}",
        "python": platform.python_version(),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


@dataclass(frozen=True)
class DocumentedRatio:
    """A ratio in docs/performance.md. The measured one may not be much higher, or else not much lower."""

    comparison: str
    of: str
    to: str
    ratio: float
    lower_is_better: bool = True

    def measured(self, results: Mapping[str, Result]) -> float | None:
        """The ratio of this run; None if the run has not measured it."""
        found = results.get(self.comparison)
        if found is None or self.of not in found.values or self.to not in found.values:
            return None
        return found.median(self.of) / found.median(self.to)

    def is_missed(self, measured: float) -> bool:
        """Whether the measured ratio is worse by more than a third."""
        if self.lower_is_better:
            return measured > self.ratio * (1 + TOLERANCE)
        return measured < self.ratio * (1 - TOLERANCE)


def documented_ratios() -> list[DocumentedRatio]:
    """All ratios that the documentation states."""
    return [DocumentedRatio(**each) for each in json.loads(DOCUMENTED.read_text())]


def check_ratios(results: Mapping[str, Result], *, with_unmeasured: bool = False) -> tuple[list[str], bool]:
    """Compare a run with the documented ratios. Returns a line for each, and whether all hold."""
    lines, all_hold = [], True
    for each in documented_ratios():
        measured = each.measured(results)
        if measured is None:
            if with_unmeasured:
                lines.append(f"{'-':<7}{each.comparison}: {each.of} / {each.to} was not measured")
            continue
        is_missed = each.is_missed(measured)
        all_hold &= not is_missed
        verdict = "MISSED" if is_missed else "holds"
        lines.append(
            f"{verdict:<7}{each.comparison}: {each.of} / {each.to} = {measured:.2f}, documented {each.ratio:g}"
        )
    return lines, all_hold


def print_result(result: Result, started: Mapping[str, str]) -> None:
    """Print the question, the environment and the table of one comparison."""
    repeats = max(map(len, result.values.values()))
    print(f"\n{result.question}\n  {', '.join(f'{name} {text}' for name, text in started.items())}")
    print(f"  {result.unit}, median of {repeats}; limited by {result.limit}")
    width = max(map(len, result.values))
    for name, median, spread, ratio in result.rows():
        print(f"  {name:<{width}} {median:>10}  ({spread})  {ratio:>6} x")


def write_json(file: Path, started: Mapping[str, str], results: Iterable[Result]) -> None:
    """Write a run."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        json.dumps({"environment": started, "results": [asdict(each) for each in results]}, indent=1)
    )


def read_json(file: Path) -> tuple[dict[str, str], list[Result]]:
    """Read a run."""
    content: dict[str, Any] = json.loads(file.read_text())
    return content["environment"], [Result(**each) for each in content["results"]]


def interleaved(contestants: Sequence[str], rounds: int) -> Iterable[str]:
    """Each contestant once in each round, in turn, so that the load of the machine affects all alike."""
    for _ in range(rounds):
        yield from contestants
