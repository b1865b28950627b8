"""Leases as people see them."""

from dataclasses import replace
from decimal import Decimal

import pytest

from leasehold.core.leases.lease_view import (
    LeaseState,
    LeaseView,
    leases_without_heartbeat,
    short_position,
    view_leases,
    view_to_json,
)
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, Pin, ShardId, StreamIdentifier, WorkerId
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position

ANNA, BERT = WorkerId("anna"), WorkerId("bert")


def lease(
    shard: str,
    *,
    checkpoint: Position = TRIM_HORIZON,
    owner: WorkerId | None = None,
    counter: int = 1,
    parents: tuple[str, ...] = (),
    session: LeaseSessionId | None = None,
) -> Lease:
    return Lease(
        key=LeaseKey(shard),
        shard_id=ShardId(shard),
        checkpoint=checkpoint,
        owner=owner,
        counter=counter,
        parents=frozenset(map(ShardId, parents)),
        session=session,
    )


def test_leases_come_in_order_each_with_its_state() -> None:
    """Ended goes before silent, silent before waiting, waiting before who holds it."""
    leases = [
        lease("s-5", owner=ANNA),
        lease("s-4"),
        lease("s-3", owner=ANNA, parents=("s-1", "s-5")),
        lease("s-2", owner=ANNA, parents=("s-1", "gone")),
        lease("s-1", owner=ANNA, checkpoint=SHARD_END),
        lease("s-0", owner=BERT),
    ]
    views = view_leases(leases, silent={LeaseKey("s-0"), LeaseKey("s-1")})
    assert [(view.lease.key, view.state, view.waits_for) for view in views] == [
        ("s-0", LeaseState.SILENT, ()),
        ("s-1", LeaseState.ENDED, ()),
        ("s-2", LeaseState.HELD, ()),
        ("s-3", LeaseState.WAITING, ("s-5",)),
        ("s-4", LeaseState.FREE, ()),
        ("s-5", LeaseState.HELD, ()),
    ]


@pytest.mark.parametrize(
    ("before", "after", "is_silent"),
    [
        (lease("s", owner=ANNA, counter=7), lease("s", owner=ANNA, counter=7), True),
        (lease("s", owner=ANNA, counter=7), lease("s", owner=ANNA, counter=8), False),
        (lease("s", owner=ANNA, counter=7), lease("s", owner=BERT, counter=7), False),
        (
            lease("s", owner=ANNA, counter=7, session=LeaseSessionId("of a row that was deleted")),
            lease("s", owner=ANNA, counter=7, session=LeaseSessionId("of the row after it")),
            False,
        ),
        (lease("s", counter=7), lease("s", counter=7), False),
        (
            lease("s", owner=ANNA, counter=7, checkpoint=SHARD_END),
            lease("s", owner=ANNA, counter=7, checkpoint=SHARD_END),
            False,
        ),
        (lease("other", owner=ANNA), lease("s", owner=ANNA), False),
    ],
)
def test_silent_means_owned_unfinished_and_the_same_in_two_looks(
    before: Lease, after: Lease, is_silent: bool
) -> None:
    """A heartbeat, a new owner or the end of the shard is a sign of life; a free lease has nobody to be silent."""
    assert leases_without_heartbeat([before], [after]) == (
        frozenset({after.key}) if is_silent else frozenset()
    )


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (TRIM_HORIZON, "TRIM_HORIZON"),
        (SHARD_END, "SHARD_END"),
        (Position("12345678901234"), "12345678901234"),
        (Position("123456789012345"), "1234..89012345"),
        (Position("7", 2), "7/2"),
    ],
)
def test_a_position_is_shortened_only_where_that_saves_something(position: Position, text: str) -> None:
    """Words and short numbers stay as they are."""
    assert short_position(position) == text


def test_a_lease_in_a_handoff_as_json() -> None:
    """The owner is the member that still reads; the state of the pin is opaque, and only its length is shown."""
    stream = StreamIdentifier("123456789012:orders:1700000000")
    shown = replace(
        lease("s-3", checkpoint=Position("7", 2), owner=BERT, counter=9, parents=("s-2", "s-1")),
        key=LeaseKey(f"{stream}:s-3"),
        stream=stream,
        checkpoint_owner=ANNA,
        owner_switches=4,
        pin=Pin(Position("8"), b"secret"),
        children=frozenset({ShardId("s-5"), ShardId("s-4")}),
        throughput_kbps=Decimal("1.5"),
    )
    assert view_to_json(LeaseView(shown, LeaseState.WAITING, (ShardId("s-2"),))) == {
        "key": f"{stream}:s-3",
        "shard": "s-3",
        "stream": stream,
        "state": "waiting for parents",
        "owner": "anna",
        "next_owner": "bert",
        "checkpoint": {"sequence_number": "7", "sub_sequence_number": 2},
        "pin": {"sequence_number": "8", "sub_sequence_number": 0, "state_bytes": 6},
        "counter": 9,
        "owner_switches": 4,
        "parents": ["s-1", "s-2"],
        "children": ["s-4", "s-5"],
        "waits_for": ["s-2"],
        "throughput_kbps": 1.5,
    }


def test_values_that_a_lease_lacks_are_null() -> None:
    shown = view_to_json(LeaseView(lease("s-1", owner=ANNA), LeaseState.HELD))
    assert shown["owner"] == "anna"
    assert {name for name, value in shown.items() if value is None} == {
        *("stream", "next_owner", "pin", "throughput_kbps")
    }
    prepared = replace(lease("s-1"), pin=Pin(TRIM_HORIZON))
    assert view_to_json(LeaseView(prepared, LeaseState.FREE))["pin"]["state_bytes"] == 0
