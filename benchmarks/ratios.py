"""The ratios that docs/performance.md states: what was measured last, and the fixed targets.

`documented_ratios.json` has two parts. `targets` has the name, comparison, contestant, peer and target of each ratio.
Without a peer, the contestant's value itself is compared, in the unit of the comparison. `documented` has the values
that a run with `--write-docs` has measured, by the same names. A run fails if one of its ratios is worse than the
documented one by more than a third; the target is only reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness import Result, number_text

DOCUMENTED = Path(__file__).parent / "documented_ratios.json"
# A run fails if a ratio is worse than the documented one by more than this share.
TOLERANCE = 1 / 3


@dataclass(frozen=True)
class Ratio:
    """One ratio. `at_least`: higher is better. Without `peer` it is the value of the contestant, in `unit`."""

    name: str
    comparison: str
    contestant: str
    peer: str | None = None
    target: float | None = None
    at_least: bool = False
    unit: str = ""
    documented: float | None = None

    def measured(self, results: Mapping[str, Result]) -> float | None:
        """The ratio in these results; None if they do not have it."""
        found = results.get(self.comparison)
        if found is None or self.contestant not in found.values:
            return None
        if self.peer is None:
            return found.median(self.contestant)
        if self.peer not in found.values or not found.median(self.peer):
            return None
        return found.median(self.contestant) / found.median(self.peer)

    def meets_target(self, value: float) -> bool:
        """Whether a value is as good as the target, if there is one."""
        if self.target is None:
            return True
        return value >= self.target if self.at_least else value <= self.target

    def is_missed(self, value: float) -> bool:
        """Whether a value is worse than the documented one by more than a third."""
        if self.documented is None:
            return False
        if self.at_least:
            return value < self.documented * (1 - TOLERANCE)
        return value > self.documented * (1 + TOLERANCE)

    def text(self, value: float | None) -> str:
        """A value with its unit.

        >>> Ratio("idle", "spark-idle", "256 shards", unit="s").text(4.25)
        '4.25 s'
        """
        return "-" if value is None else f"{number_text(value)} {self.unit}".rstrip()

    @property
    def target_text(self) -> str:
        """The target with its direction."""
        if self.target is None:
            return "-"
        return f"at {'least' if self.at_least else 'most'} {self.text(self.target)}"

    def verdict(self, value: float | None) -> str:
        """Whether a value meets the target."""
        if self.target is None:
            return "no target"
        return "not measured" if value is None else "met" if self.meets_target(value) else "missed"


def documented_ratios() -> list[Ratio]:
    """All ratios that the documentation states."""
    content = json.loads(DOCUMENTED.read_text())
    return [Ratio(**each, documented=content["documented"].get(each["name"])) for each in content["targets"]]


def check_ratios(results: Mapping[str, Result], *, with_unmeasured: bool = False) -> tuple[list[str], bool]:
    """Compare results with the documented ratios. Returns a line for each, and whether all hold.

    A value in seconds does not fail if the machine was busy: only ratios of one run can be compared then.
    """
    lines, all_hold = [], True
    for each in documented_ratios():
        value = each.measured(results)
        if value is None and not with_unmeasured:
            continue
        is_missed = value is not None and each.is_missed(value)
        is_excused = is_missed and each.peer is None and results[each.comparison].is_of_a_busy_machine
        all_hold &= is_excused or not is_missed
        notes = [f"target {each.target_text}: {each.verdict(value)}"]
        if is_missed:
            notes.append("on a busy machine" if is_excused else "MISSED by more than a third")
        lines.append(
            f"{each.name}: documented {each.text(each.documented)}, measured {each.text(value)}, "
            + ", ".join(notes)
        )
    return lines, all_hold


def document_ratios(results: Iterable[Result]) -> None:
    """Write the ratios of these results as the documented ones. The others, and all targets, stay as they are."""
    content = json.loads(DOCUMENTED.read_text())
    by_key = {each.key: each for each in results}
    for each in documented_ratios():
        value = each.measured(by_key)
        if value is not None:
            content["documented"][each.name] = round(value, 3)
    DOCUMENTED.write_text(_to_text(content["targets"], content["documented"]))


def _to_text(targets: list[Mapping[str, object]], documented: Mapping[str, float]) -> str:
    """JSON with one line for each ratio, the documented ones in the order of the targets."""
    names = [str(each["name"]) for each in targets]
    rows = ",\n".join(f"  {json.dumps(each)}" for each in targets)
    values = ",\n".join(
        f"  {json.dumps(name)}: {json.dumps(documented[name])}" for name in names if name in documented
    )
    return f'{{\n "targets": [\n{rows}\n ],\n "documented": {{\n{values}\n }}\n}}\n'
