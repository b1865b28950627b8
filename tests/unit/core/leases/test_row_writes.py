"""When two attributes are equal, which conditions a row must meet, and what a write does to a damaged row."""

import pytest

from leasehold.core.leases.row_writes import (
    Attribute,
    DeleteRow,
    Equals,
    UpdateRow,
    are_equal,
    may_apply,
    next_row,
    number,
    text,
)
from leasehold.errors import MalformedRowError


def test_adding_to_what_is_no_number_names_the_row_and_the_attribute() -> None:
    """An operator can repair it, and nobody mistakes it for a bug of ours (found by seed 39 of the simulator)."""
    row = {"leaseKey": text("s-0"), "ownerSwitchesSinceCheckpoint": text("many")}
    write = UpdateRow(
        key="s-0",
        when=(Equals("leaseKey", text("s-0")),),
        add={"ownerSwitchesSinceCheckpoint": 1},
        proof=(Equals("ownerSwitchesSinceCheckpoint", number(1)),),
    )
    with pytest.raises(MalformedRowError, match=r"s-0.*ownerSwitchesSinceCheckpoint: expected a number"):
        next_row(write, row)


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (text("1"), number(1), False),
        ({"N": "1"}, {"N": "1.0"}, True),
        ({"SS": ["a", "b"]}, {"SS": ["b", "a"]}, True),
        ({"SS": ["a", "b"]}, {"SS": ["a"]}, False),
        ({"NS": ["1", "2"]}, {"NS": ["2", "1"]}, True),
        ({"BS": [b"a", b"b"]}, {"BS": [b"b", b"a"]}, True),
        ({"L": [text("a"), text("b")]}, {"L": [text("b"), text("a")]}, False),
        ({"S": "ab"}, {"S": "ba"}, False),
        ({"B": b"ab"}, {"B": b"ba"}, False),
    ],
)
def test_attributes_are_compared_as_dynamodb_does(left: Attribute, right: Attribute, equal: bool) -> None:
    """By type and value: only sets have no order."""
    assert are_equal(left, right) == equal
    assert are_equal(right, left) == equal


def test_a_row_is_deleted_only_if_every_condition_is_met() -> None:
    """One of two is not enough."""
    delete = DeleteRow(key="s-0", when=(Equals("leaseKey", text("s-0")), Equals("at", number(1))))
    assert may_apply(delete, {"leaseKey": text("s-0"), "at": number(1)})
    assert not may_apply(delete, {"leaseKey": text("s-0"), "at": number(2)})
    assert not may_apply(delete, {"leaseKey": text("s-1"), "at": number(1)})
