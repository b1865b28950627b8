"""A finding: one sentence about a fleet or a shard, and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from leasehold.core.model import LeaseKey


class Severity(Enum):
    """Whether somebody has to act."""

    OK = "ok"
    NOTICE = "notice"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Why a shard moves or does not. `code` is stable, for scripts; `shard` is None if it is about the whole fleet."""

    code: str
    severity: Severity
    text: str
    remedy: str = ""
    shard: LeaseKey | None = None


@dataclass(frozen=True, slots=True)
class Explanation:
    """The findings about the fleet, and at least one about each shard, sorted by lease key."""

    fleet: tuple[Finding, ...]
    shards: Mapping[LeaseKey, tuple[Finding, ...]]

    @property
    def all_findings(self) -> tuple[Finding, ...]:
        """The findings about the fleet, then those about its shards."""
        return self.fleet + tuple(each for findings in self.shards.values() for each in findings)

    @property
    def has_problem(self) -> bool:
        """Whether somebody has to act."""
        return any(each.severity is Severity.PROBLEM for each in self.all_findings)


def finding_to_json(finding: Finding) -> Mapping[str, Any]:
    """A finding as JSON values."""
    return {
        "code": finding.code,
        "severity": finding.severity.value,
        "text": finding.text,
        "remedy": finding.remedy or None,
    }


def format_duration(duration_ms: int) -> str:
    """Format a duration with its two largest units.

    >>> format_duration(0), format_duration(1_500), format_duration(90_000), format_duration(90_000_000)
    ('0 s', '1.5 s', '1 min 30 s', '1 d 1 h')
    """
    if duration_ms < 60_000:
        return f"{duration_ms / 1000:.3g} s"
    seconds = duration_ms // 1000
    for size, large, small_size, small in (
        (86_400, "d", 3_600, "h"),
        (3_600, "h", 60, "min"),
        (60, "min", 1, "s"),
    ):
        if seconds >= size:
            return f"{seconds // size} {large} {seconds % size // small_size} {small}"
    raise AssertionError("unreachable: the duration is at least a minute")
