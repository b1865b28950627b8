"""Decisions about the batches of a query, from its leases."""

import json
from dataclasses import replace

import pytest

from leasehold.core.exactly_once.pinned_batch import (
    PIN_METADATA_BYTES_MAX,
    ContinueReading,
    DeliverNothing,
    DeliverUpTo,
    GenerationId,
    LeaseAheadOfLog,
    PinMetadata,
    Redeliver,
    RetryPin,
    ShardFinished,
    generation_end,
    latest_generation,
    next_slice,
    pin_metadata,
    pin_metadata_to_bytes,
    resolve_refused_pin,
)
from leasehold.core.model import (
    ChildShard,
    HashRange,
    Lease,
    LeaseKey,
    LeaseSessionId,
    Pin,
    ShardId,
    WorkerId,
)
from leasehold.core.position import LATEST, TRIM_HORIZON, Position

QUERY_ID, OTHER_QUERY_ID = "00c0ffee", "0badcafe"
START, MIDDLE, END = Position("10"), Position("15", 2), Position("20")
CHILD = ChildShard(ShardId("shardId-000000000007"), (ShardId("shardId-000000000000"),), HashRange(0, 99))


def lease(
    end: Position | None = None,
    generation: int = 1,
    *,
    at: Position = START,
    query_id: str = QUERY_ID,
    children: tuple[ChildShard, ...] | None = None,
) -> Lease:
    """A lease at a position. With `end` it has a pin of a generation."""
    metadata = pin_metadata_to_bytes(PinMetadata(GenerationId(query_id, generation), children=children))
    return Lease(
        key=LeaseKey("shardId-000000000000"),
        shard_id=ShardId("shardId-000000000000"),
        owner=WorkerId("me"),
        session=LeaseSessionId("first"),
        checkpoint=at,
        pin=None if end is None else Pin(end, metadata),
    )


@pytest.mark.parametrize(
    "metadata",
    [
        PinMetadata(GenerationId(QUERY_ID, 7), 3, 99, 0, has_more=True),
        PinMetadata(GenerationId(QUERY_ID, 7), children=()),
        PinMetadata(GenerationId(QUERY_ID, 7), record_weight=0),
        PinMetadata(GenerationId(QUERY_ID, 7), record_weight=1_000),
        PinMetadata(GenerationId(QUERY_ID, 7), quota_at_ms=0),
        PinMetadata(GenerationId(QUERY_ID, 7), record_weight=1_000, quota_at_ms=1_700_000_000_000),
        PinMetadata(GenerationId(QUERY_ID, 7), millis_behind=5, children=(CHILD,)),
    ],
)
def test_metadata_is_decoded_as_it_was_encoded(metadata: PinMetadata) -> None:
    """An empty tuple of children differs from None: it marks the end of a shard without children."""
    assert pin_metadata(replace(lease(), pin=Pin(END, pin_metadata_to_bytes(metadata)))) == metadata


@pytest.mark.parametrize(
    "state",
    [
        None,
        b"",
        b"\xff",
        b"7",
        b"[" * 9_000,
        b'{"query":"e","generation":-1,"records":0,"bytes":0,"behind":0,"more":false}',
        b'{"query":"e","generation":true,"records":0,"bytes":0,"behind":0,"more":false}',
        b'{"query":7,"generation":1,"records":0,"bytes":0,"behind":0,"more":false}',
        pin_metadata_to_bytes(PinMetadata(GenerationId(QUERY_ID, 1))) + b" " * PIN_METADATA_BYTES_MAX,
        json.dumps(
            json.loads(pin_metadata_to_bytes(PinMetadata(GenerationId(QUERY_ID, 1)))) | {"children": [["s"]]}
        ).encode(),
    ],
)
def test_the_pin_state_of_another_application_is_not_metadata(state: bytes | None) -> None:
    """A KCL application may pin with any state. The range is redelivered, and no error is raised."""
    found = replace(lease(), pin=Pin(END, state))
    assert pin_metadata(found) is None
    assert next_slice(found, GenerationId(QUERY_ID, 9)) == Redeliver(START, END)


def test_metadata_of_sixteen_kilobytes_is_read_and_not_more() -> None:
    """The limit bounds the cost of a row that another program wrote."""
    metadata = PinMetadata(GenerationId(QUERY_ID, 1))
    padded = pin_metadata_to_bytes(metadata).ljust(16 * 1024)
    assert pin_metadata(replace(lease(), pin=Pin(END, padded))) == metadata
    assert pin_metadata(replace(lease(), pin=Pin(END, padded + b" "))) is None


@pytest.mark.parametrize("field", ["behind", "weight", "quotaAt"])
@pytest.mark.parametrize(
    ("value", "is_valid"), [(None, True), (0, True), (-1, False), (False, False), ("", False)]
)
def test_numbers_that_may_be_missing_are_checked_if_they_are_there(
    field: str, value: object, is_valid: bool
) -> None:
    """A value that is false is not the same as a missing one."""
    fields = json.loads(pin_metadata_to_bytes(PinMetadata(GenerationId(QUERY_ID, 1)))) | {field: value}
    found = pin_metadata(replace(lease(), pin=Pin(END, json.dumps(fields).encode())))
    assert (found is not None) == is_valid


def test_generations_are_numbered_one_by_one() -> None:
    """The log of a query and its leases compare these numbers."""
    assert GenerationId(QUERY_ID, 3).next == GenerationId(QUERY_ID, 4)


def test_metadata_claims_nothing_by_default() -> None:
    """A pin of an empty slice has no records, no more records, and no children."""
    generation = GenerationId(QUERY_ID, 1)
    assert PinMetadata(generation) == PinMetadata(generation, 0, 0, None, False, None, None, None)


def test_without_a_pin_reading_continues_at_the_checkpoint() -> None:
    """Without a pin, nothing beyond the checkpoint was delivered."""
    assert next_slice(lease(), GenerationId(QUERY_ID, 3), START) == ContinueReading(START)


def test_a_slice_of_the_committed_generation_is_delivered() -> None:
    """The next slice begins at its end, or the shard is finished."""
    assert next_slice(lease(END, 3), GenerationId(QUERY_ID, 3), START) == ContinueReading(END)
    assert next_slice(lease(END, 3, children=(CHILD,)), GenerationId(QUERY_ID, 3), START) == ShardFinished(
        (CHILD,)
    )
    assert next_slice(lease(START, 3, children=()), GenerationId(QUERY_ID, 3), START) == ShardFinished(())


def test_a_pin_that_the_committed_plan_already_knew_is_delivered() -> None:
    """An idle shard keeps the pin of its last batch. So may a shard that was not held at that time."""
    assert next_slice(lease(END, 2), GenerationId(QUERY_ID, 5), END) == ContinueReading(END)
    assert next_slice(lease(END, 2), GenerationId(QUERY_ID, 5), None) == ContinueReading(END)


def test_a_pin_written_after_its_generation_was_committed_is_not_delivered() -> None:
    """The later plan began before the pin, so a late task wrote it, and Spark did not use its rows."""
    assert next_slice(lease(END, 2), GenerationId(QUERY_ID, 5), START) == Redeliver(START, END)


def test_an_unfinished_slice_of_another_query_is_redelivered_as_a_whole() -> None:
    """An empty slice is not redelivered."""
    assert next_slice(lease(END, 9, query_id=OTHER_QUERY_ID), GenerationId(QUERY_ID, 5)) == Redeliver(
        START, END
    )
    nothing = lease(LATEST, 9, at=LATEST, query_id=OTHER_QUERY_ID)
    assert next_slice(nothing, GenerationId(QUERY_ID, 5)) == ContinueReading(LATEST)


def test_a_generation_that_the_log_does_not_contain() -> None:
    """The log of the query is an old copy."""
    assert next_slice(lease(END, 6), GenerationId(QUERY_ID, 5)) == LeaseAheadOfLog(GenerationId(QUERY_ID, 6))


@pytest.mark.parametrize(("stamped", "pinned", "latest"), [(7, 6, 7), (6, 7, 7), (7, None, 7), (None, 7, 7)])
def test_the_latest_generation_is_the_highest_of_stamps_and_pin(
    stamped: int | None, pinned: int | None, latest: int
) -> None:
    """A stamp stays when the pin is promoted, and a pin may be newer than the stamps. Other queries do not count."""
    stamps = ((OTHER_QUERY_ID, 9), *(() if stamped is None else ((QUERY_ID, stamped),)))
    found = replace(lease(None if pinned is None else END, pinned or 0), generations=stamps)
    assert latest_generation(found, QUERY_ID) == GenerationId(QUERY_ID, latest)
    assert next_slice(found, GenerationId(QUERY_ID, 5)) == LeaseAheadOfLog(GenerationId(QUERY_ID, latest))


def test_a_replay_delivers_the_pin_of_its_own_generation() -> None:
    """It delivers no pin of another generation or query."""
    assert generation_end(lease(END, 4), GenerationId(QUERY_ID, 4)) == END
    assert generation_end(lease(END, 3), GenerationId(QUERY_ID, 4)) is None
    assert generation_end(lease(END, 4, query_id=OTHER_QUERY_ID), GenerationId(QUERY_ID, 4)) is None
    assert generation_end(lease(), GenerationId(QUERY_ID, 4)) is None
    assert generation_end(None, GenerationId(QUERY_ID, 4)) is None


def test_after_a_refused_pin_a_task_delivers_up_to_the_first_pin() -> None:
    """The lease may have another owner since: the first pin decided the slice."""
    taken = replace(lease(MIDDLE, 4), owner=WorkerId("thief"), session=LeaseSessionId("second"))
    for now in (lease(MIDDLE, 4), taken):
        assert resolve_refused_pin(lease(), GenerationId(QUERY_ID, 4), now) == DeliverUpTo(MIDDLE)


@pytest.mark.parametrize(
    ("planned", "now"),
    [
        (lease(END, 3), lease(at=END)),  # the member promoted the pin of the batch before
        (lease(), replace(lease(), counter=9)),  # a heartbeat
        (lease(), replace(lease(), owner=WorkerId("asker"), checkpoint_owner=WorkerId("me"))),
    ],
)
def test_a_refused_pin_is_retried_if_the_slice_is_unchanged(planned: Lease, now: Lease) -> None:
    """A promotion, a heartbeat or a handoff request does not change the slice."""
    assert resolve_refused_pin(planned, GenerationId(QUERY_ID, 4), now) == RetryPin(now)


@pytest.mark.parametrize(
    "now",
    [
        None,
        replace(lease(), session=LeaseSessionId("second")),
        replace(lease(), owner=WorkerId("thief")),
        replace(lease(), owner=None, session=None),
        lease(at=TRIM_HORIZON),
        lease(END, 5),
        lease(at=END),
    ],
)
def test_after_a_refused_pin_a_task_delivers_nothing_if_it_lost_the_slice(now: Lease | None) -> None:
    """The lease was deleted, has another owner or session, or has a later checkpoint."""
    assert isinstance(resolve_refused_pin(lease(), GenerationId(QUERY_ID, 4), now), DeliverNothing)


def test_a_refused_redelivery_yields_to_a_later_generation() -> None:
    """The end is the same, but the slice now belongs to the later generation."""
    planned = lease(END, 9, query_id=OTHER_QUERY_ID)
    assert isinstance(resolve_refused_pin(planned, GenerationId(QUERY_ID, 4), lease(END, 5)), DeliverNothing)
    assert resolve_refused_pin(planned, GenerationId(QUERY_ID, 4), lease(END, 4)) == DeliverUpTo(END)
