"""A small language for conditional writes to rows, and what each write does to a row.

The rules of the lease table (`lease_rules`) speak it; every table (DynamoDB, SQLite, memory) understands it. DynamoDB
translates a write into an expression, the others evaluate it here, so there is one truth about every condition.

Rows have DynamoDB's own shape, `{"leaseKey": {"S": "shardId-0"}, "leaseCounter": {"N": "7"}}`: what we do not
understand in a row passes through untouched. Knows nothing of leases.
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
    """An attribute of type N. DynamoDB carries numbers as text."""
    return {"N": str(value)}


def binary(value: bytes) -> Attribute:
    """An attribute of type B."""
    return {"B": value}


def text_set(values: frozenset[str]) -> Attribute:
    """An attribute of type SS; sorted, so that equal sets look equal."""
    assert values, "DynamoDB has no empty sets: leave the attribute out"
    return {"SS": sorted(values)}


@dataclass(frozen=True, slots=True)
class Equals:
    """The attribute is there and has this value."""

    name: str
    value: Attribute


@dataclass(frozen=True, slots=True)
class Absent:
    """The attribute is not there. A NULL is there."""

    name: str


Condition = Equals | Absent


@dataclass(frozen=True, slots=True)
class PutRow:
    """Create a row; refused when the key is taken."""

    key: str
    row: Row


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateRow:
    """Change attributes of an existing row if every condition in `when` holds.

    `proof` holds for a row only if this very write (or one with the same effect) has happened to it. It settles
    what an error could not: whether a write whose answer was lost took place.
    """

    key: str
    when: tuple[Condition, ...]
    set: Mapping[str, Attribute] = field(default_factory=dict)
    remove: tuple[str, ...] = ()
    add: Mapping[str, int] = field(default_factory=dict)
    proof: tuple[Condition, ...]

    def __post_init__(self) -> None:
        # Without such a condition DynamoDB would create the row that it did not find.
        assert any(isinstance(condition, Equals) for condition in self.when), "an update never creates a row"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteRow:
    """Remove a row if every condition holds. A row that is already gone is as good."""

    key: str
    when: tuple[Condition, ...]


RowWrite = PutRow | UpdateRow | DeleteRow


def holds(condition: Condition, row: Row) -> bool:
    """Whether a row satisfies a condition, as DynamoDB would judge it."""
    match condition:
        case Equals(name, value):
            return name in row and are_equal(row[name], value)
        case Absent(name):
            return name not in row


def are_equal(left: Attribute, right: Attribute) -> bool:
    """Equality of two attributes: type and value; numbers by value, sets without order.

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
    """Whether the write's condition holds for the row as it is (None: there is no such row)."""
    match write:
        case PutRow():
            return row is None
        case UpdateRow(when=when):
            return row is not None and all(holds(condition, row) for condition in when)
        case DeleteRow(when=when):
            return row is None or all(holds(condition, row) for condition in when)


def next_row(write: RowWrite, row: Row | None) -> Row | None:
    """The row after the write; only for writes that may apply. None means deleted."""
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
    """Whether the row shows that this write took place (or that one with the same effect did)."""
    match write:
        case PutRow(row=new):
            return row == new
        case UpdateRow(proof=proof):
            return row is not None and all(holds(condition, row) for condition in proof)
        case DeleteRow():
            return row is None


def _sum(key: str, name: str, row: Row, amount: int) -> int | Decimal:
    if name not in row:
        return amount
    if "N" not in row[name]:
        # DynamoDB refuses the whole write, too; no condition covers it.
        raise MalformedRowError(key, f"{name}: expected a number (type N); repair or delete the row")
    return _decimal(row[name]["N"]) + amount


def _decimal(digits: str) -> Decimal:
    """A number as DynamoDB holds it. Only a hostile local file can hold others; like NaN, they equal nothing."""
    try:
        value = Decimal(digits)
    except InvalidOperation:
        return Decimal("NaN")
    return value if value.is_finite() else Decimal("NaN")
