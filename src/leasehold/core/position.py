"""Positions in a shard: a sequence number with a sub-sequence number, or one of four sentinels.

Two rules, both the Java KCL's, because both implementations read the same rows:

* *Order* is numeric. `SHARD_END` is above everything; `AT_TIMESTAMP`, `TRIM_HORIZON` and `LATEST` count as -3, -2 and
  -1; digits count as the integer they represent. Ties are broken by the sub-sequence number, except that two
  `SHARD_END` are always equal in order.

* *Equality* is textual. A sequence number is kept exactly as it was received ("007" stays "007"), so that the service
  and the row get back the text that they sent.

Hence `a <= b and b <= a` does not imply `a == b`. Use order for decisions, equality for conditions.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final

from leasehold.errors import InvalidPositionError

# Kinesis issues 56 digits, and its API allows 129. The limit protects against malicious rows: parsing an integer takes
# quadratic time.
SEQUENCE_DIGITS_MAX: Final = 129
SUB_SEQUENCE_MAX: Final = 2**63 - 1

_DIGITS: Final = re.compile(r"[0-9]+")
_SENTINEL_ORDER: Final = {"AT_TIMESTAMP": -3, "TRIM_HORIZON": -2, "LATEST": -1}
_SHARD_END: Final = "SHARD_END"


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a shard. As a checkpoint it means: this record and all before it are done.

    >>> Position("9") < Position("10") < Position("10", 1) < SHARD_END
    True
    >>> Position("007") == Position("7"), Position("007") <= Position("7") <= Position("007")
    (False, True)
    """

    sequence_number: str
    sub_sequence_number: int = 0
    _order: tuple[int, int, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_order", _order_of(self.sequence_number, self.sub_sequence_number))

    def __lt__(self, other: Position) -> bool:
        return self._order < other._order

    def __le__(self, other: Position) -> bool:
        return self._order <= other._order

    def __gt__(self, other: Position) -> bool:
        return self._order > other._order

    def __ge__(self, other: Position) -> bool:
        return self._order >= other._order

    def __str__(self) -> str:
        sub = f"/{self.sub_sequence_number}" if self.sub_sequence_number else ""
        return f"{self.sequence_number}{sub}"

    @property
    def is_sentinel(self) -> bool:
        """True for the four sentinels, false for a sequence number."""
        return not self.is_record

    @property
    def is_record(self) -> bool:
        """True if this is the sequence number of a record."""
        return self._order[0] == 0 and self._order[1] >= 0

    @property
    def is_shard_end(self) -> bool:
        """True if everything in the shard is done."""
        return self._order[0] == 1

    @property
    def number(self) -> int:
        """The sequence number as an integer; only for positions of records."""
        assert self.is_record, f"{self} is not the position of a record"
        return self._order[1]


def sequence_value(text: str) -> int:
    """The integer value of a sequence number. Raises InvalidPositionError for anything else.

    >>> sequence_value("49590338271490256608559692538361571095921575989136588898") % 100
    98
    """
    # str.isdigit also accepts superscripts and digits of other scripts, which Java and Kinesis refuse.
    if not _DIGITS.fullmatch(text):
        raise InvalidPositionError(
            f"{text[:48]!r} is not a position: expected decimal digits or one of "
            "AT_TIMESTAMP, TRIM_HORIZON, LATEST, SHARD_END"
        )
    if len(text) > SEQUENCE_DIGITS_MAX:
        raise InvalidPositionError(
            f"a sequence number of {len(text)} digits ({text[:12]}...) does not come from Kinesis, which issues 56 "
            f"digits: at most {SEQUENCE_DIGITS_MAX} are accepted; use the sequence number of a record"
        )
    return int(text)


def _order_of(text: str, sub: int) -> tuple[int, int, int]:
    """(above all numbers?, number, sub-sequence): the sort key of a position."""
    if not 0 <= sub <= SUB_SEQUENCE_MAX:
        raise InvalidPositionError(f"sub-sequence number {sub} is outside 0..{SUB_SEQUENCE_MAX}")
    if text == _SHARD_END:
        return (1, 0, 0)
    if text in _SENTINEL_ORDER:
        return (0, _SENTINEL_ORDER[text], sub)
    return (0, sequence_value(text), sub)


AT_TIMESTAMP: Final = Position("AT_TIMESTAMP")
TRIM_HORIZON: Final = Position("TRIM_HORIZON")
LATEST: Final = Position("LATEST")
SHARD_END: Final = Position(_SHARD_END)
