"""The offsets of a query, which Spark logs."""

import json

import pytest

from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.exactly_once.query_offset import (
    INITIAL_OFFSET,
    QueryOffset,
    ReadStart,
    is_lease_behind_log,
    offset_from_json,
    read_start_from_text,
    resolve_start,
)
from leasehold.core.model import InitialPosition, Lease, LeaseKey, Pin, ShardId
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Position
from leasehold.errors import ConfigError, InvalidPositionError

STAMP = GenerationId("00c0ffee", 3)
STARTS = {
    ShardId("shardId-000000000002"): ReadStart(Position("20", 4)),
    ShardId("shardId-000000000001"): ReadStart(AT_TIMESTAMP, 1_700_000_000_000),
    ShardId("shardId-000000000003"): ReadStart(TRIM_HORIZON),
}
FROM_LATEST = InitialPosition(LATEST)
NOW_MS = 1_800_000_000_000


def test_an_offset_is_parsed_as_it_was_written() -> None:
    """Spark stores it as JSON."""
    logged = json.loads(json.dumps(QueryOffset(STAMP, STARTS).to_json()))
    assert offset_from_json(logged) == QueryOffset(STAMP, STARTS)


def test_equal_offsets_are_equal_as_text() -> None:
    """Spark compares offsets as text, so the order of the shards must be fixed."""
    turned = dict(reversed(STARTS.items()))
    assert json.dumps(QueryOffset(STAMP, STARTS).to_json()) == json.dumps(
        QueryOffset(STAMP, turned).to_json()
    )


def test_the_initial_offset_is_parsed_as_none() -> None:
    """It belongs to a query that has not begun."""
    assert offset_from_json(dict(INITIAL_OFFSET)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"query": "../x"},
        {"query": 7},
        {"generation": True},
        {"from": []},
        {"from": {"s": "12x"}},
        {"from": {"s": None}},
    ],
)
def test_the_offset_of_another_source_is_refused_with_a_remedy(change: dict[str, object]) -> None:
    """The checkpoint location belongs to another source or a newer version."""
    with pytest.raises(ConfigError, match="its own checkpoint location"):
        offset_from_json(QueryOffset(STAMP, STARTS).to_json() | change)


@pytest.mark.parametrize("text", ["", "12/x", "12:5", "AT_TIMESTAMP:", "AT_TIMESTAMP:-5", "LATEST:5", "²"])
def test_an_invalid_position_to_read_from_is_refused(text: str) -> None:
    with pytest.raises(InvalidPositionError):
        read_start_from_text(text)


def test_latest_is_the_moment_of_the_first_plan_with_the_shard() -> None:
    """Restarts before the first record do not change it."""
    first = resolve_start(LATEST, None, FROM_LATEST, NOW_MS)
    assert first == ReadStart(AT_TIMESTAMP, NOW_MS)
    assert resolve_start(LATEST, first, FROM_LATEST, NOW_MS + 5) == first
    assert resolve_start(Position("7"), first, FROM_LATEST, NOW_MS) == ReadStart(Position("7"))


def test_at_timestamp_requires_a_timestamp() -> None:
    """The lease contains only AT_TIMESTAMP, without the time."""
    at = InitialPosition(AT_TIMESTAMP, 5)
    assert resolve_start(AT_TIMESTAMP, None, at, NOW_MS) == ReadStart(AT_TIMESTAMP, 5)
    with pytest.raises(ConfigError, match="startingTimestamp"):
        resolve_start(AT_TIMESTAMP, None, FROM_LATEST, NOW_MS)


@pytest.mark.parametrize(
    ("checkpoint", "pinned", "logged", "behind"),
    [
        (TRIM_HORIZON, None, Position("10"), True),
        (LATEST, None, Position("10"), True),
        (Position("9"), None, Position("10"), True),
        (Position("9"), Position("10"), Position("10"), False),
        (Position("10"), None, Position("10"), False),
        (TRIM_HORIZON, None, TRIM_HORIZON, False),
    ],
)
def test_a_deleted_or_restored_table_is_detected(
    checkpoint: Position, pinned: Position | None, logged: Position, behind: bool
) -> None:
    """A lease, including its pin, is never behind the committed offsets of its query."""
    pin = Pin(pinned) if pinned else None
    lease = Lease(key=LeaseKey("s"), shard_id=ShardId("s"), checkpoint=checkpoint, pin=pin)
    assert is_lease_behind_log(lease, ReadStart(logged)) is behind
