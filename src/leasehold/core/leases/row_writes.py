"""Conditional writes to rows as data, and their effect on a row.

`lease_rules` creates these writes, and every store executes them. The DynamoDB store translates a write into an
expression. The SQLite and memory stores evaluate it with the functions here. So each condition is defined once.

Rows have DynamoDB's own format, `{"leaseKey": {"S": "shardId-0"}, "leaseCounter": {"N": "7"}}`. Attributes that we do
not know are kept unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any

from leasehold.errors import MalformedRowError

Attribute = Mapping[str, Any]
Row = Mapping[str, Attribute]


def text(value: str) -> Attribute:
    """An attribute of type S."""
    return {"S": value}


def number(value: int | Decimal) -> Attribute:
    """An attribute of type N. DynamoDB represents numbers as text."""
    return {"N": str(value)}


def binary(value: bytes) -> Attribute:
    """An attribute of type B."""
    return {"B": value}


def text_set(values: frozenset[str]) -> Attribute:
    """An attribute of type SS, sorted, so that equal sets give equal attributes."""
    assert values, "DynamoDB has no empty sets: omit the attribute"
    return {"SS": sorted(values)}


@dataclass(frozen=True, slots=True)
class Equals:
    """The attribute exists and has this value."""

    name: str
    value: Attribute


@dataclass(frozen=True, slots=True)
class Absent:
    """The attribute does not exist. An attribute of type NULL exists."""

    name: str


Condition = Equals | Absent


@dataclass(frozen=True, slots=True)
class PutRow:
    """Create a row. Refused if a row with this key exists."""

    key: str
    row: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRow:
    """Change attributes of an existing row if every condition in `when` is met.

    The conditions in `proof` are met only after this write (or one with the same effect). If the response was lost,
    `proof` tells whether the write was applied.
    """

    key: str
    when: tuple[Condition, ...]
    set: Mapping[str, Attribute] = field(default_factory=dict)
    remove: tuple[str, ...] = ()
    add: Mapping[str, int] = field(default_factory=dict)
    proof: tuple[Condition, ...]

    def __post_init__(self) -> None:
        # Without such a condition DynamoDB would create a missing row.
        assert any(isinstance(condition, Equals) for condition in self.when), "an update never creates a row"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRow:
    """Delete a row if every condition in `when` is met. Succeeds if the row does not exist."""

    key: str
    when: tuple[Condition, ...]


RowWrite = PutRow | UpdateRow | DeleteRow


def is_met(condition: Condition, row: Row) -> bool:
    """Whether a row meets a condition, by the rules of DynamoDB."""
    match condition:
        case Equals(name, value):
            return name in row and are_equal(row[name], value)
        case Absent(name):
            return name not in row


def are_equal(left: Attribute, right: Attribute) -> bool:
    """Whether two attributes have the same type and value. Numbers are compared by value, sets without order.

    >>> are_equal({"N": "1"}, {"N": "1.0"}), are_equal({"S": "1"}, {"N": "1"})
    (True, False)
    """
    if left.keys() != right.keys():
        return False
    (kind,) = left
    if kind == "N":
        return _decimal(left["N"]) == _decimal(right["N"])
    if kind in {"SS", "NS", "BS"}:
        return set(left[kind]) == set(right[kind])
    return bool(left[kind] == right[kind])


def may_apply(write: RowWrite, row: Row | None) -> bool:
    """Whether the row meets the conditions of the write. None: the row does not exist."""
    match write:
        case PutRow():
            return row is None
        case UpdateRow(when=when):
            return row is not None and all(is_met(condition, row) for condition in when)
        case DeleteRow(when=when):
            return row is None or all(is_met(condition, row) for condition in when)


def next_row(write: RowWrite, row: Row | None) -> Row | None:
    """The row after the write, which must be applicable. None: the row is deleted."""
    assert may_apply(write, row)
    match write:
        case PutRow(row=new):
            return new
        case DeleteRow():
            return None
        case UpdateRow():
            assert row is not None
            kept = {name: value for name, value in row.items() if name not in write.remove}
            sums = {name: number(_sum(write.key, name, kept, amount)) for name, amount in write.add.items()}
            return {**kept, **write.set, **sums}


def was_applied(write: RowWrite, row: Row | None) -> bool:
    """Whether the row proves that this write, or one with the same effect, was applied."""
    match write:
        case PutRow(row=new):
            return row == new
        case UpdateRow(proof=proof):
            return row is not None and all(is_met(condition, row) for condition in proof)
        case DeleteRow():
            return row is None


def _sum(key: str, name: str, row: Row, amount: int) -> int | Decimal:
    if name not in row:
        return amount
    if "N" not in row[name]:
        # DynamoDB also rejects the whole write. No condition covers this case.
        raise MalformedRowError(key, f"{name}: expected a number (type N); repair or delete the row")
    return _decimal(row[name]["N"]) + amount


def _decimal(digits: str) -> Decimal:
    """Parses a number. An invalid one, possible only in a damaged local file, becomes NaN and equals nothing."""
    try:
        value = Decimal(digits)
    except InvalidOperation:
        return Decimal("NaN")
    return value if value.is_finite() else Decimal("NaN")
