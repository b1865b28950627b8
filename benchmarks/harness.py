"""What all benchmarks share: results with their spread, the environment, the files of results."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Plan:
    """What a run should measure. `has_java`: also the contestants that need a JVM with the KCL. `only`: these keys."""

    repeats: int = 2
    has_java: bool = False
    is_quick: bool = False
    only: frozenset[str] = frozenset()

    def wants(self, key: str) -> bool:
        """Whether a comparison should be measured.

        >>> Plan(only=frozenset({"worker-100"})).wants("worker-1000"), Plan().wants("worker-1000")
        (False, True)
        """
        return not self.only or key in self.only


@dataclass
class Result:
    """One comparison: the values of all contestants, measured in turns in one run."""

    key: str
    question: str
    unit: str
    command: str
    limit: str  # what limits the best contestant
    values: dict[str, list[float]] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)  # at the start of its run

    @property
    def is_of_a_busy_machine(self) -> bool:
        """Whether other processes used the processors when the run began, so that its seconds say little."""
        return float(self.environment.get("load", "0")) > (os.cpu_count() or 1)

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


def print_result(result: Result) -> None:
    """Print the question, the environment and the table of one comparison."""
    repeats = max(map(len, result.values.values()))
    where = ", ".join(f"{name} {text}" for name, text in result.environment.items())
    print(f"\n{result.question}\n  {where} at the start, {os.getloadavg()[0]:.1f} now")
    print(f"  {result.unit}, median of {repeats}; limited by {result.limit}")
    width = max(map(len, result.values))
    for name, median, spread, ratio in result.rows():
        print(f"  {name:<{width}} {median:>10}  ({spread})  {ratio:>6} x", flush=True)


def write_results(file: Path, results: Iterable[Result]) -> None:
    """Write results into a file. Those of other comparisons stay there, so a run of one does not erase the others."""
    merged = {each.key: each for each in (*read_results(file), *results)}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({"results": [asdict(each) for each in merged.values()]}, indent=1))


def read_results(file: Path) -> list[Result]:
    """Read the results of a file; none if there is no such file."""
    if not file.exists():
        return []
    return [Result(**each) for each in json.loads(file.read_text())["results"]]


def interleaved(contestants: Sequence[str], rounds: int) -> Iterable[str]:
    """Each contestant once in each round, in turn, so that the load of the machine affects all alike."""
    for _ in range(rounds):
        yield from contestants
