"""What a write does to a row that is not as it should be."""

import pytest

from leasehold.core.leases.row_writes import Equals, UpdateRow, next_row, number, text
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
