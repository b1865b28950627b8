"""Reads the scenario files of lease writes:

* `row` is the initial row of all scenarios in a file; `given.row` changes it (null removes an attribute), or is null
  if there is no row; `given.others` are further rows of the table.

* `seen` changes the row into the one that the writer last read, if other members have written since.

* `expect` is one of: `changes` to the row, `refused` (nothing changes), `error` (nothing is written), `row`: null.

A string is DynamoDB's S, a number N, a list of strings SS; any other value is written in DynamoDB's format.
"""

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leasehold.core.leases.row_writes import Row

FOLDER = Path(__file__).parent.parent / "scenarios" / "lease_writes"
KNOWN = {
    "file": {"operation", "row", "scenarios"},
    "scenario": {"name", "because", "given", "seen", "arguments", "expect"},
    "given": {"row", "others"},
    "expect": {"changes", "refused", "error", "row", "others"},
}


@dataclass(frozen=True, slots=True)
class Scenario:
    """One initial state, one write, one expected result."""

    name: str
    operation: str
    arguments: Mapping[str, Any]
    before: Row | None
    others: tuple[Row, ...]
    seen: Row
    after: Row | None
    others_after: tuple[Row, ...]
    refused: bool
    error: str | None


def load() -> list[Scenario]:
    """Every scenario of every file."""
    return [scenario for path in sorted(FOLDER.glob("*.json")) for scenario in _file(path)]


def _file(path: Path) -> list[Scenario]:
    content = _check_keys("file", json.loads(path.read_text(encoding="utf-8")))
    base = _row(content["row"])
    return [_scenario(path.stem, content["operation"], base, entry) for entry in content["scenarios"]]


def _scenario(file: str, operation: str, base: Row, entry: dict[str, Any]) -> Scenario:
    _check_keys("scenario", entry)
    given = _check_keys("given", entry.get("given", {}))
    expect = _check_keys("expect", entry["expect"])
    assert len(expect.keys() & {"changes", "refused", "error", "row"}) == 1, f"{file}: {entry['name']}"
    present = given.get("row", {}) is not None
    start = changed_row(base, given.get("row") or {})
    seen = changed_row(start, entry.get("seen", {}))
    others = tuple(_row(row) for row in given.get("others", []))
    after: Row | None = start if present else None
    if "changes" in expect:
        after = changed_row(start if present else seen, expect["changes"])
    elif "row" in expect:
        after = None
    return Scenario(
        name=f"{file}: {entry['name']}",
        operation=operation,
        arguments=entry.get("arguments", {}),
        before=start if present else None,
        others=others,
        seen=seen,
        after=after,
        others_after=tuple(_row(row) for row in expect["others"]) if "others" in expect else others,
        refused="refused" in expect,
        error=expect.get("error"),
    )


def _check_keys(kind: str, entry: dict[str, Any]) -> dict[str, Any]:
    """Raises for an unknown key, because a misspelt key would look like an absent one."""
    assert entry.keys() <= KNOWN[kind], f"unknown in {kind}: {entry.keys() - KNOWN[kind]}"
    return entry


def _row(entry: Mapping[str, Any]) -> Row:
    return changed_row({}, entry)


def changed_row(row: Row, changes: Mapping[str, Any]) -> Row:
    """The row with these changes; null removes an attribute."""
    kept = {name: value for name, value in row.items() if name not in changes}
    return kept | {name: _attribute(value) for name, value in changes.items() if value is not None}


def _attribute(value: Any) -> Mapping[str, Any]:
    match value:
        case str():
            return {"S": value}
        case int():
            return {"N": str(value)}
        case list():
            return {"SS": value}
        case {"B": str(encoded)}:
            return {"B": base64.b64decode(encoded)}
        case _:
            literal: Mapping[str, Any] = value
            return literal
