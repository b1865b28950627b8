"""Which findings begin and which end, from one review to the next. Has no effects.

A finding begins when two reviews in a row have it, and ends when two in a row do not: a state that lasts for a moment
is no news. What it says may change in between; that is not reported again. Findings with the same code are told apart
by their shard or their subject; of those that have neither, each is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from leasehold.core.events import FindingBegan, FindingEnded
from leasehold.core.finding import Finding
from leasehold.core.model import LeaseKey

# Code, shard, subject, and the number of the finding among those for which all three are equal.
Identity = tuple[str, LeaseKey | None, str | None, int]


@dataclass(frozen=True, slots=True)
class Watched:
    """A finding that a review has had. `is_reported` once it has begun; `is_missing` if the last review lacks it."""

    finding: Finding
    since_ms: int
    is_reported: bool = False
    is_missing: bool = False


@dataclass(frozen=True, slots=True)
class Review:
    """The findings that last, and what has changed since the review before."""

    watched: Mapping[Identity, Watched] = field(default_factory=dict)
    began: tuple[FindingBegan, ...] = ()
    ended: tuple[FindingEnded, ...] = ()

    @property
    def lasting(self) -> tuple[Finding, ...]:
        """The findings that have begun and not ended, as they were last seen."""
        return tuple(each.finding for each in self.watched.values() if each.is_reported)


def review_findings(before: Review, findings: Iterable[Finding], now_ms: int) -> Review:
    """Compare the findings of now with those of the review before."""
    found = _by_identity(findings)
    watched: dict[Identity, Watched] = {}
    began: list[FindingBegan] = []
    ended: list[FindingEnded] = []
    for identity, finding in found.items():
        known = before.watched.get(identity)
        if known is None:
            watched[identity] = Watched(finding, now_ms)
            continue
        if not known.is_reported:
            began.append(FindingBegan(finding))
        watched[identity] = Watched(finding, known.since_ms, is_reported=True)
    for identity, known in before.watched.items():
        if identity in found or not known.is_reported:
            continue
        if known.is_missing:
            ended.append(FindingEnded(known.finding, now_ms - known.since_ms))
        else:
            watched[identity] = replace(known, is_missing=True)
    return Review(watched, tuple(began), tuple(ended))


def _by_identity(findings: Iterable[Finding]) -> Mapping[Identity, Finding]:
    numbers: Counter[tuple[str, LeaseKey | None, str | None]] = Counter()
    found: dict[Identity, Finding] = {}
    for finding in findings:
        about = (finding.code, finding.shard, finding.subject)
        found[*about, numbers[about]] = finding
        numbers[about] += 1
    return found
