"""Sets of position ranges within one shard, such as the written ranges or the ranges still to be written.

A range covers whole positions, sequence number *and* sub-sequence number, with both ends included. A range of sequence
numbers alone could not end within an aggregate: it would cover too much (the rest of the aggregate is lost) or too
little (its beginning is written twice).

Positions are ordered like integers, and each has a successor: (S, k+1) follows (S, k), and (S+1, 0) follows the largest
sub-sequence number of S. Internally a position is one integer. Adjacent ranges are joined: 10/0-10/3 and 10/4-10/9
become 10/0-10/9. But 10-20 and 21-30 stay two ranges, because 20/1, 20/2, ... lie between them, and this module cannot
know that no such record exists.

Two sets are equal if they cover the same positions.
"""

from __future__ import annotations

import re
import reprlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from leasehold.core.position import SUB_SEQUENCE_MAX, Position
from leasehold.errors import InvalidPositionError, InvalidRangeError

# Some 140,000 ranges with the numbers of Kinesis: more than an archive has for one shard within the retention time.
TEXT_CHARACTERS_MAX: Final = 16 * 1024 * 1024

_SUB_SEQUENCE_BITS: Final = SUB_SEQUENCE_MAX.bit_length()

_RANGE: Final = re.compile(r"([0-9]+)(?:/([0-9]+))?(?:-([0-9]+)(?:/([0-9]+))?)?")
_SUB_SEQUENCE_DIGITS_MAX: Final = len(str(SUB_SEQUENCE_MAX))

# A position as one integer, and a range as the pair (first, last).
_Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Range:
    """All positions from `first` to `last`, both included.

    >>> str(Range(Position("10"), Position("20", 3)))
    '10-20/3'
    """

    first: Position
    last: Position

    def __post_init__(self) -> None:
        if not (self.first.is_record and self.last.is_record):
            raise InvalidRangeError(f"{self}: both ends of a range must be sequence numbers")
        if self.first > self.last:
            raise InvalidRangeError(f"{self}: a range must not end before it begins")

    def __str__(self) -> str:
        return f"{self.first}-{self.last}"


@dataclass(frozen=True, slots=True)
class RangeSet:
    """An immutable set of ranges of one shard. Create it with `of` or `from_text`; `RangeSet()` is empty.

    >>> written = RangeSet.of([Range(Position("10"), Position("20")), Range(Position("15"), Position("30"))])
    >>> written.to_text(), Position("17") in written, Position("30", 1) in written
    ('10-30', True, False)
    """

    # Sorted, neither overlapping nor adjacent. So equal sets have equal fields, and one bisection finds a position.
    _firsts: tuple[int, ...] = ()
    _lasts: tuple[int, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[Range]) -> RangeSet:
        """The set that covers all `ranges`, which may overlap and have any order."""
        return _joined(map(_span, ranges))

    @classmethod
    def from_text(cls, text: str) -> RangeSet:
        """Parse the text of `to_text`. Raises InvalidRangeError for any other text, even another spelling of a set."""
        if len(text) > TEXT_CHARACTERS_MAX:
            raise InvalidRangeError(
                f"a set of ranges in {len(text)} characters: at most {TEXT_CHARACTERS_MAX} are read"
            )
        ranges = cls.of(map(_range_from_text, text.split(","))) if text else cls()
        if ranges.to_text() != text:
            raise InvalidRangeError(
                f"{reprlib.repr(text)} is not a set of ranges: expected sorted ranges that do not touch, without "
                "leading zeros; another program wrote it, or it was damaged"
            )
        return ranges

    def to_text(self) -> str:
        """The canonical text of this set, such as `10-20/3,25`. The empty set is the empty text."""
        return ",".join(str(range_) if range_.first != range_.last else str(range_.first) for range_ in self)

    def __iter__(self) -> Iterator[Range]:
        """Iterate over the fewest ranges that cover the set, in order."""
        for first, last in self._spans():
            yield Range(_position(first), _position(last))

    def __len__(self) -> int:
        """The number of ranges. An empty set is false."""
        return len(self._firsts)

    def __contains__(self, position: Position) -> bool:
        if not position.is_record:
            return False
        key = _key(position)
        return self._covers((key, key))

    @property
    def last(self) -> Position | None:
        """The last covered position, or None for the empty set."""
        return _position(self._lasts[-1]) if self._lasts else None

    def covers(self, range_: Range) -> bool:
        """True if the set contains every position of the range."""
        return self._covers(_span(range_))

    def add(self, range_: Range) -> RangeSet:
        """Return the set with the range added. Cheapest if the range is at or after the end of the set."""
        first, last = _span(range_)
        if not self._lasts or first > self._lasts[-1] + 1:
            return RangeSet((*self._firsts, first), (*self._lasts, last))
        if first >= self._firsts[-1]:
            return RangeSet(self._firsts, (*self._lasts[:-1], max(last, self._lasts[-1])))
        return _joined([*self._spans(), (first, last)])

    def __or__(self, other: RangeSet) -> RangeSet:
        """The union."""
        return _joined([*self._spans(), *other._spans()])

    def __and__(self, other: RangeSet) -> RangeSet:
        """The intersection."""
        return _from_spans(_common(list(self._spans()), list(other._spans())))

    def __sub__(self, other: RangeSet) -> RangeSet:
        """The difference."""
        if not self:
            return self
        return _from_spans(_common(list(self._spans()), other._gaps(self._lasts[-1])))

    def _spans(self) -> Iterator[_Span]:
        return zip(self._firsts, self._lasts, strict=True)

    def _covers(self, span: _Span) -> bool:
        first, last = span
        index = bisect_right(self._firsts, first) - 1
        return index >= 0 and last <= self._lasts[index]

    def _gaps(self, up_to: int) -> list[_Span]:
        """What this set does not contain, at least up to a position. The first and the last gap may be empty."""
        firsts = (0, *(last + 1 for last in self._lasts))
        lasts = (*(first - 1 for first in self._firsts), up_to)
        return list(zip(firsts, lasts, strict=True))


def _key(position: Position) -> int:
    return position.number << _SUB_SEQUENCE_BITS | position.sub_sequence_number


def _position(key: int) -> Position:
    return Position(str(key >> _SUB_SEQUENCE_BITS), key & SUB_SEQUENCE_MAX)


def _span(range_: Range) -> _Span:
    return _key(range_.first), _key(range_.last)


def _from_spans(spans: Iterable[_Span]) -> RangeSet:
    """The set of spans that are already sorted and not adjacent."""
    firsts, lasts = tuple(zip(*spans, strict=True)) or ((), ())
    return RangeSet(firsts, lasts)


def _joined(spans: Iterable[_Span]) -> RangeSet:
    firsts: list[int] = []
    lasts: list[int] = []
    for first, last in sorted(spans):
        if lasts and first <= lasts[-1] + 1:
            lasts[-1] = max(lasts[-1], last)
        else:
            firsts.append(first)
            lasts.append(last)
    return RangeSet(tuple(firsts), tuple(lasts))


def _common(ours: list[_Span], theirs: list[_Span]) -> Iterator[_Span]:
    """Walk both lists at once. The span that ends first cannot intersect later spans of the other list.

    A span that ends before it begins is empty, and intersects nothing.
    """
    i = j = 0
    while i < len(ours) and j < len(theirs):
        first, last = max(ours[i][0], theirs[j][0]), min(ours[i][1], theirs[j][1])
        if first <= last:
            yield first, last
        if ours[i][1] < theirs[j][1]:
            i += 1
        else:
            j += 1


def _range_from_text(text: str) -> Range:
    match = _RANGE.fullmatch(text)
    if not match:
        raise InvalidRangeError(
            f"{reprlib.repr(text)} is not a range of positions: expected `first-last` or a single position, each a "
            "sequence number, followed by `/` and a sub-sequence number unless that is 0"
        )
    number, sub, last_number, last_sub = match.groups()
    try:
        first = _position_from_text(number, sub)
        last = first if last_number is None else _position_from_text(last_number, last_sub)
    except InvalidPositionError as error:
        raise InvalidRangeError(f"{reprlib.repr(text)} is not a range of positions: {error}") from error
    return Range(first, last)


def _position_from_text(number: str, sub: str | None) -> Position:
    if sub is None:
        return Position(number)
    # int() takes quadratic time. A number with more digits is refused either way, so cut it first.
    return Position(number, int(sub[: _SUB_SEQUENCE_DIGITS_MAX + 1]))
