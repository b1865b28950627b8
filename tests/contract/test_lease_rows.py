"""Rows of other members, other versions and other programs: parsed, skipped, or rejected with a reason."""

import json
import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.leases.lease_row import (
    is_lease_row,
    is_valid_text,
    lease_from_row,
    lease_to_row,
    leases_from_rows,
)
from leasehold.core.leases.row_writes import Row
from leasehold.core.model import HashRange, Lease, LeaseSessionId, Pin, ShardId, WorkerId, lease_key
from leasehold.core.position import LATEST, TRIM_HORIZON, Position
from leasehold.errors import MalformedRowError
from tests.contract.lease_scenarios import changed_row

FILE = Path(__file__).parent.parent / "scenarios" / "lease_rows" / "rows.json"
CONTENT = json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("scenario", CONTENT["scenarios"], ids=lambda scenario: scenario["name"])
def test_row(scenario: Mapping[str, Any]) -> None:
    """A row is a lease, another kind of row, or is rejected with a message that names the problem."""
    assert scenario.keys() == {"name", "because", "given", "expect"}
    row = changed_row(changed_row({}, CONTENT["row"]), scenario["given"])
    match scenario["expect"]:
        case {"lease": bool(is_lease)}:
            assert is_lease_row(row) == is_lease
            if is_lease:
                assert lease_from_row(row).counter >= 7
        case {"rejected": str(reason), **rest}:
            with pytest.raises(MalformedRowError, match=reason) as caught:
                lease_from_row(row)
            assert "repair or delete" in str(caught.value)
            assert "\n" not in str(caught.value)
            listing = leases_from_rows([row])
            assert (len(listing.rejected), listing.ignored) == (1, ())
            if "shard" in rest:
                assert listing.unreadable_shards(None) == {rest["shard"]}
        case {"ignored": str(reason)}:
            listing = leases_from_rows([row])
            assert (listing.leases, listing.rejected) == ((), ())
            assert re.search(reason, str(listing.ignored[0]))
        case other:
            raise AssertionError(other)


def _lease(shard: str, *parents: str) -> Lease:
    return Lease(
        key=lease_key(ShardId(shard)),
        shard_id=ShardId(shard),
        checkpoint=TRIM_HORIZON,
        parents=frozenset(ShardId(parent) for parent in parents),
    )


def test_leases_in_a_cycle_of_parents_are_rejected() -> None:
    """They would wait for each other forever; the other leases are read."""
    rows = [
        lease_to_row(lease)
        for lease in (_lease("a", "c"), _lease("b", "a"), _lease("c", "b"), _lease("d", "c"))
    ]
    listing = leases_from_rows(rows)
    assert [lease.key for lease in listing.leases] == ["d"]
    assert {error.key for error in listing.rejected} == {"a", "b", "c"}


def test_relatives_of_a_cycle_and_other_families_are_kept() -> None:
    """A cycle does not make its ancestors and descendants unreadable, however far away they are."""
    above, cycle = [_lease("a"), _lease("b", "a")], [_lease("c", "b", "d"), _lease("d", "c")]
    below = [_lease("e", "d"), _lease("f", "e"), _lease("g", "f")]
    others = [_lease("r"), _lease("s", "r"), _lease("t", "r"), _lease("u", "s", "t")]
    listing = leases_from_rows(lease_to_row(lease) for lease in (*above, *cycle, *below, *others))
    assert list(listing.leases) == [*above, *below, *others]
    assert {error.key for error in listing.rejected} == {"c", "d"}


def test_many_cycles_are_found_in_one_pass() -> None:
    """Thousands of rows that are each other's parents are rejected fast, with readable messages."""
    pairs = [lease_to_row(_lease(f"s-{n}", f"s-{n ^ 1}")) for n in range(4000)]
    ring = [lease_to_row(_lease(f"r-{n}", f"r-{(n + 1) % 2000}")) for n in range(2000)]
    listing = leases_from_rows([*pairs, *ring, lease_to_row(_lease("good"))])
    assert [lease.key for lease in listing.leases] == ["good"]
    assert len(listing.rejected) == 6000
    assert max(len(str(error)) for error in listing.rejected) < 500


def test_one_bad_row_does_not_hide_the_others() -> None:
    """A listing reports the rows that cannot be parsed, and returns all others."""
    bad: Row = {"leaseKey": {"S": "bad"}, "leaseCounter": {"S": "no"}}
    listing = leases_from_rows([bad, lease_to_row(_lease("good"))])
    assert [lease.key for lease in listing.leases] == ["good"]
    assert [error.key for error in listing.rejected] == ["bad"]


def test_a_created_lease_reads_back_unchanged() -> None:
    """Writing and parsing a row loses nothing."""
    lease = Lease(
        key=lease_key(ShardId("shardId-7")),
        shard_id=ShardId("shardId-7"),
        checkpoint=LATEST,
        parents=frozenset({ShardId("shardId-1"), ShardId("shardId-2")}),
        hash_range=HashRange(5, 2**128 - 1),
    )
    assert lease_from_row(lease_to_row(lease)) == lease


SMALLEST: Row = {
    "leaseKey": {"S": "shardId-7"},
    "leaseCounter": {"N": "5"},
    "ownerSwitchesSinceCheckpoint": {"N": "2"},
    "checkpoint": {"S": "100"},
}


def test_every_attribute_of_a_row_is_read() -> None:
    row: Row = {
        **SMALLEST,
        "checkpointSubSequenceNumber": {"N": "3"},
        "leaseOwner": {"S": "next"},
        "checkpointOwner": {"S": "worker"},
        "pendingCheckpoint": {"S": "200"},
        "pendingCheckpointState": {"B": b"state"},
        "parentShardId": {"SS": ["shardId-1", "shardId-2"]},
        "childShardIds": {"SS": ["shardId-8"]},
        "startingHashKey": {"S": "0"},
        "endingHashKey": {"S": "9"},
        "throughputKBps": {"N": "0.5"},
        "leaseholdSession": {"S": "session"},
        "leaseholdLatestAt": {"N": "17"},
        "leaseholdNudge": {"S": "nudge"},
        "leaseholdGenerations": {"S": "00c0ffee:4 0badcafe:12"},
    }
    assert lease_from_row(row) == Lease(
        key=lease_key(ShardId("shardId-7")),
        shard_id=ShardId("shardId-7"),
        checkpoint=Position("100", 3),
        counter=5,
        owner=WorkerId("next"),
        checkpoint_owner=WorkerId("worker"),
        owner_switches=2,
        pin=Pin(Position("200", 0), b"state"),
        parents=frozenset({ShardId("shardId-1"), ShardId("shardId-2")}),
        children=frozenset({ShardId("shardId-8")}),
        hash_range=HashRange(0, 9),
        throughput_kbps=Decimal("0.5"),
        session=LeaseSessionId("session"),
        latest_at_ms=17,
        nudge="nudge",
        generations=(("00c0ffee", 4), ("0badcafe", 12)),
    )


def test_missing_attributes_have_the_values_of_a_new_lease() -> None:
    assert lease_from_row(SMALLEST) == Lease(
        key=lease_key(ShardId("shardId-7")),
        shard_id=ShardId("shardId-7"),
        checkpoint=Position("100"),
        counter=5,
        owner_switches=2,
    )
    assert lease_from_row({**SMALLEST, "throughputKBps": {"N": "0"}}).throughput_kbps == 0
    assert lease_from_row({**SMALLEST, "leaseholdNudge": {"N": "7"}}).nudge is None


@pytest.mark.parametrize("attribute", ["parentShardId", "childShardIds"])
@pytest.mark.parametrize("value", [{"SS": []}, {"SS": "shardId-1"}, {"S": "shardId-1"}])
def test_relatives_are_a_set_that_is_not_empty(attribute: str, value: dict[str, Any]) -> None:
    """To read another value as no relatives would let a child begin before its parent ends."""
    with pytest.raises(MalformedRowError, match=rf"{attribute}: expected a set of shard ids"):
        lease_from_row({**SMALLEST, attribute: value})


def test_text_may_be_as_long_as_a_key_in_dynamodb() -> None:
    """The text that a worker may have as its name is the text that can be read from a row."""
    longest = "x" * 2_048
    assert lease_from_row({**SMALLEST, "leaseOwner": {"S": longest}}).owner == longest
    assert is_valid_text(longest)
    assert is_valid_text("x")
    with pytest.raises(MalformedRowError, match="2049 characters are more than 2048"):
        lease_from_row({**SMALLEST, "leaseOwner": {"S": f"{longest}x"}})
    assert not is_valid_text(f"{longest}x")


def test_generations_may_be_as_long_as_other_text() -> None:
    """A longer text is ignored, as is one in an unknown form."""
    longest = " ".join(["a" * 40 + ":1"] * 47).ljust(2_048, "?")
    for value, count in ((longest, 46), (f"{longest}?", 0)):
        read = lease_from_row({**SMALLEST, "leaseholdGenerations": {"S": value}})
        assert len(read.generations) == count


ATTRIBUTES = st.one_of(
    st.text(max_size=20).map(lambda value: {"S": value}),
    st.one_of(st.integers(), st.decimals()).map(lambda value: {"N": str(value)}),
    st.binary(max_size=20).map(lambda value: {"B": value}),
    st.lists(st.text(max_size=10), max_size=4).map(lambda value: {"SS": value}),
    st.just({"NULL": True}),
    st.just({"M": {}}),
    st.just({"L": []}),
)
NAMES = (
    *("leaseKey", "entityType", "leaseOwner", "leaseCounter", "ownerSwitchesSinceCheckpoint", "checkpoint"),
    *("checkpointSubSequenceNumber", "pendingCheckpoint", "pendingCheckpointState", "parentShardId"),
    *("childShardIds", "startingHashKey", "endingHashKey", "throughputKBps", "checkpointOwner", "streamName"),
    *("shardId", "leaseholdSession"),
)


@given(
    changes=st.dictionaries(st.sampled_from(NAMES), ATTRIBUTES),
    gone=st.sets(st.sampled_from(NAMES), max_size=3),
)
def test_any_row_is_parsed_or_rejected(changes: dict[str, Any], gone: set[str]) -> None:
    """Parsing returns a lease or raises MalformedRowError, never another error."""
    base = lease_to_row(_lease("shardId-1", "shardId-0"))
    row = {name: value for name, value in {**base, **changes}.items() if name not in gone}
    leases_from_rows([row])
