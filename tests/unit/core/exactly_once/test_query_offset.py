"""The offsets of a query, which Spark logs."""

import json
from dataclasses import replace

import pytest

from leasehold.core.exactly_once.pinned_batch import GenerationId
from leasehold.core.exactly_once.query_offset import (
    INITIAL_OFFSET,
    QueryOffset,
    ReadStart,
    StreamOffset,
    is_lease_behind_log,
    join_streams,
    next_offset,
    offset_from_json,
    read_start_from_text,
    resolve_start,
)
from leasehold.core.model import (
    HashRange,
    InitialPosition,
    Lease,
    LeaseKey,
    Pin,
    Shard,
    ShardId,
    StreamIdentifier,
)
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Position
from leasehold.core.shards.shard_graph import shard_graph
from leasehold.errors import ConfigError, InvalidPositionError

STAMP = GenerationId("00c0ffee", 3)
STARTS = {
    LeaseKey("shardId-000000000002"): ReadStart(Position("20", 4)),
    LeaseKey("shardId-000000000001"): ReadStart(AT_TIMESTAMP, 1_700_000_000_000),
    LeaseKey("shardId-000000000003"): ReadStart(TRIM_HORIZON),
}
AT_10, AT_20 = ReadStart(Position("10")), ReadStart(Position("20"))
FROM_LATEST = InitialPosition(LATEST)
NOW_MS = 1_800_000_000_000


def test_an_offset_is_parsed_as_it_was_written() -> None:
    """Spark stores it as JSON."""
    offset = QueryOffset(
        STAMP, STARTS, {LeaseKey("shardId-000000000000"): AT_10}, frozenset(map(LeaseKey, "ab"))
    )
    assert offset_from_json(json.loads(json.dumps(offset.to_json()))) == offset


ORDERS, RETURNS = map(StreamIdentifier, ("1:orders:17", "1:returns:17"))


def test_shards_of_two_streams_with_one_id_are_two_shards() -> None:
    """Each stream has its own part, and the parts make up the offset again."""
    first, second = ShardId("shardId-0"), ShardId("shardId-1")
    parts: dict[StreamIdentifier | None, StreamOffset] = {
        ORDERS: StreamOffset({first: AT_10}, {}, frozenset({second})),
        RETURNS: StreamOffset({first: AT_20}, {second: AT_10}),
    }
    offset = join_streams(STAMP, parts)
    assert offset.starts == {"1:orders:17:shardId-0": AT_10, "1:returns:17:shardId-0": AT_20}
    assert offset.streams == {ORDERS, RETURNS}
    assert {stream: offset.in_stream(stream) for stream in parts} == parts
    assert offset.in_stream(None) == StreamOffset()
    assert offset_from_json(json.loads(json.dumps(offset.to_json()))) == offset


def test_an_offset_of_one_stream_is_written_as_before() -> None:
    """An earlier version can read it."""
    written = join_streams(STAMP, {None: StreamOffset({ShardId("a"): AT_10})}).to_json()
    assert written == {
        "format": 2,
        "query": STAMP.query_id,
        "generation": 3,
        "from": {"a": "10"},
        "released": {},
        "finished": [],
    }


def test_the_initial_offset_of_existing_logs_is_recognised() -> None:
    """Spark has stored this text in the checkpoint locations of all queries."""
    assert json.dumps(INITIAL_OFFSET) == '{"generation": 0}'
    assert offset_from_json({"generation": 0}) is None


@pytest.mark.parametrize(
    ("start", "initial"),
    [
        (ReadStart(Position("20", 4)), InitialPosition(TRIM_HORIZON)),
        (ReadStart(TRIM_HORIZON), InitialPosition(TRIM_HORIZON)),
        (ReadStart(AT_TIMESTAMP, 1_700_000_000_000), InitialPosition(AT_TIMESTAMP, 1_700_000_000_000)),
    ],
)
def test_only_a_start_at_a_time_needs_that_time(start: ReadStart, initial: InitialPosition) -> None:
    """The reader of a slice gets it beside the position."""
    assert start.initial == initial


def test_equal_offsets_are_equal_as_text() -> None:
    """Spark compares offsets as text, so the order of the shards must be fixed."""
    turned = dict(reversed(STARTS.items()))
    assert json.dumps(QueryOffset(STAMP, STARTS).to_json()) == json.dumps(
        QueryOffset(STAMP, turned).to_json()
    )


def test_an_offset_of_the_first_format_is_still_read() -> None:
    """It names only shards that the query read."""
    members = QueryOffset(STAMP, STARTS).to_json() | {"format": 1}
    del members["released"], members["finished"]
    assert offset_from_json(members) == QueryOffset(STAMP, STARTS)


def test_shards_that_the_query_no_longer_reads_are_remembered() -> None:
    """Without the shards of the stream nothing is dropped."""
    a, b, c = map(ShardId, "abc")
    logged = StreamOffset({a: AT_10, b: AT_10}, {c: AT_10})
    after = next_offset(logged, {b: AT_20}, {a})
    assert after == StreamOffset({b: AT_20}, {c: AT_10}, frozenset({a}))
    assert next_offset(after, {}, frozenset()).released == {b: AT_20, c: AT_10}
    assert next_offset(after, {a: AT_10}, frozenset(), forgotten={c}).shards == {a, b}, "a is read again"


def test_an_offset_does_not_grow_with_the_reshards_of_the_stream() -> None:
    """After a thousand reshards it names the shards that are read, those of other members, and no ancestor of them."""
    whole = HashRange(0, 2**128 - 1)
    lower, upper = HashRange(0, 2**127 - 1), HashRange(2**127, 2**128 - 1)
    shards = [Shard(ShardId("m0"), whole, "1")]
    logged = StreamOffset({shards[0].id: AT_10})
    sizes = []
    for number in range(500):  # each is a split and a merge
        open_before = shards.pop()
        halves = [
            Shard(ShardId(f"{half}{number}"), keys, str(2 * number + 2), "9", (open_before.id,))
            for half, keys in (("l", lower), ("u", upper))
        ]
        merged = Shard(
            ShardId(f"m{number + 1}"), whole, str(2 * number + 3), parents=tuple(each.id for each in halves)
        )
        shards += [replace(open_before, ending_sequence_number="9"), *halves, merged]
        graph = shard_graph(shards[-60:])  # older shards have left the stream
        left, right = (each.id for each in halves)
        logged = next_offset(logged, {left: AT_10, right: AT_10}, {open_before.id}, graph)
        # The query loses one half to another member, which finishes it, and later gets the child.
        logged = next_offset(logged, {left: AT_20}, frozenset())
        logged = next_offset(logged, {merged.id: AT_20}, {left}, graph)
        sizes.append(len(logged.shards))
    assert max(sizes) == 1


def test_a_shard_that_has_left_the_stream_is_forgotten() -> None:
    """Another member has read all descendants, so the log names none."""
    graph = shard_graph([Shard(ShardId("b"), HashRange(0, 9), "1")])
    logged = StreamOffset({}, {ShardId("a"): AT_10}, frozenset({ShardId("f")}))
    assert next_offset(logged, {ShardId("b"): AT_20}, frozenset(), graph).shards == {"b"}


def test_the_initial_offset_is_parsed_as_none() -> None:
    """It belongs to a query that has not begun."""
    assert offset_from_json(dict(INITIAL_OFFSET)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"format": 3},
        {"format": 3, "streams": []},
        {"format": 3, "streams": ["orders"]},
        {"format": 4, "streams": ["1:orders:17"]},
        {"released": None},
        {"released": {"s": "12x"}},
        {"finished": None},
        {"finished": "s"},
        {"finished": [7]},
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
