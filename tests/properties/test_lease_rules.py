"""A lease row that can be parsed can be parsed after each of our own writes, and proves the write.

So it can be parsed after any sequence of them.
"""

from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.core.leases import lease_row, lease_rules
from leasehold.core.leases.lease_row import COUNTER_LIMIT, NUMBER_MAX, lease_from_row, leases_from_rows
from leasehold.core.leases.row_writes import (
    Row,
    RowWrite,
    UpdateRow,
    binary,
    may_apply,
    next_row,
    number,
    text,
    text_set,
    was_applied,
)
from leasehold.core.model import HASH_KEY_MAX, HashRange, Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId
from leasehold.core.position import SHARD_END, SUB_SEQUENCE_MAX, Position
from leasehold.errors import CheckpointRejectedError, MalformedRowError

WORKERS = st.sampled_from([WorkerId("a"), WorkerId("b"), WorkerId("c" * lease_row.TEXT_LENGTH_MAX)])
SESSIONS = st.sampled_from([LeaseSessionId("s1"), LeaseSessionId("s2")])
NUMBERS = st.sampled_from([0, 1, 2**40, COUNTER_LIMIT - 1, COUNTER_LIMIT, NUMBER_MAX - 1, NUMBER_MAX])
SUBS = st.sampled_from([0, 1, SUB_SEQUENCE_MAX])
RECORDS = st.builds(Position, st.integers(0, 10**56).map(str) | st.just("9" * 128), SUBS)
POSITIONS = RECORDS | st.sampled_from([Position("TRIM_HORIZON"), Position("LATEST"), SHARD_END])
STATES = st.none() | st.binary(max_size=10)
CHILDREN = st.frozensets(st.sampled_from([ShardId("shardId-8"), ShardId("shardId-9")]), min_size=1)
HASH_RANGES = st.sampled_from([HashRange(0, HASH_KEY_MAX), HashRange(5, 6)])
THROUGHPUTS = st.none() | st.decimals(0, 10**30, allow_nan=False, allow_infinity=False)
GENERATIONS = st.none() | st.tuples(st.sampled_from(["0", "f" * 64]), st.integers(0, 10**18 - 1))


@st.composite
def rows(draw: Callable[[st.SearchStrategy[Any]], Any]) -> Row:
    """A lease row as any member may have left it."""
    checkpoint, pinned = draw(POSITIONS), draw(st.none() | POSITIONS)
    row = {
        lease_row.KEY: text("shardId-1"),
        lease_row.COUNTER: number(draw(NUMBERS)),
        lease_row.OWNER_SWITCHES: number(draw(NUMBERS)),
        lease_row.CHECKPOINT: text(checkpoint.sequence_number),
        lease_row.CHECKPOINT_SUB: number(checkpoint.sub_sequence_number),
    }
    optional = {
        lease_row.OWNER: WORKERS.map(text),
        lease_row.CHECKPOINT_OWNER: WORKERS.map(text),
        lease_row.SESSION: SESSIONS.map(text),
        lease_row.LATEST_AT: NUMBERS.map(number),
        lease_row.THROUGHPUT: st.sampled_from([{"N": "0"}, {"N": "1E+30"}, {"N": "0.001"}]),
        lease_row.GENERATIONS: st.sampled_from([text("f:999999999999999999"), text("?")]),
        lease_row.PARENTS: st.just(text_set(frozenset({"shardId-0"}))),
        lease_row.CHILDREN: CHILDREN.map(text_set),
        "unknown": st.just({"BOOL": True}),
    }
    row |= {name: draw(values) for name, values in optional.items() if draw(st.booleans())}
    if pinned is not None:
        row[lease_row.PENDING] = text(pinned.sequence_number)
        row[lease_row.PENDING_SUB] = number(pinned.sub_sequence_number)
        row |= draw(st.sampled_from([{}, {lease_row.PENDING_STATE: binary(b"state")}]))
    return row


Draw = Callable[[st.SearchStrategy[Any]], Any]


def writes_of_any_member(lease: Lease) -> list[Callable[[Draw], RowWrite]]:
    rules: list[Callable[[Draw], RowWrite]] = [
        lambda draw: lease_rules.take(lease, draw(WORKERS), draw(SESSIONS)),
        lambda draw: lease_rules.nudge(lease, draw(st.text(min_size=1))),
        lambda draw: lease_rules.assign(lease, draw(WORKERS)),
        lambda draw: lease_rules.set_children(lease, draw(CHILDREN)),
        lambda draw: lease_rules.set_hash_range(lease, draw(HASH_RANGES)),
        lambda _: lease_rules.delete(lease),
        lambda _: lease_rules.delete_unused(lease),
    ]
    if (owner := lease.owner) is not None:
        others = WORKERS.filter(lambda worker: worker != owner)
        rules += [
            lambda draw: lease_rules.begin_session(lease, owner, draw(SESSIONS)),
            lambda draw: lease_rules.request_handoff(lease, draw(others)),
        ]
    return rules


def writes_of_the_owner(lease: Lease) -> list[Callable[[Draw], RowWrite]]:
    if lease.owner is None or lease.session is None:
        return []
    rules: list[Callable[[Draw], RowWrite]] = [
        lambda draw: lease_rules.renew(lease, draw(THROUGHPUTS)),
        lambda draw: lease_rules.checkpoint(lease, draw(RECORDS), draw(THROUGHPUTS)),
        lambda draw: lease_rules.prepare(lease, draw(POSITIONS), draw(STATES)),
        lambda draw: lease_rules.pin(lease, draw(POSITIONS), draw(STATES), draw(GENERATIONS)),
        lambda draw: lease_rules.finish(lease, draw(CHILDREN | st.just(frozenset()))),
        lambda _: lease_rules.release(lease),
        lambda draw: lease_rules.release_to(lease, draw(WORKERS)),
    ]
    if lease.pin is not None:
        rules += [
            lambda draw: lease_rules.repin(lease, draw(st.binary()), draw(GENERATIONS)),
            lambda _: lease_rules.promote(lease),
        ]
    if lease.is_in_handoff:
        rules += [
            lambda _: lease_rules.complete_handoff(lease),
            lambda _: lease_rules.decline_handoff(lease),
            lambda _: lease_rules.withdraw_handoff(lease),
        ]
    return rules


OWNERSHIP = (lease_row.OWNER, lease_row.CHECKPOINT_OWNER, lease_row.SESSION)


def ownership(row: Row) -> list[Any]:
    return [row.get(name) for name in OWNERSHIP]


@settings(max_examples=100)
@given(rows(), st.data())
def test_a_write_is_not_proven_by_a_write_of_another_member(row: Row, data: st.DataObject) -> None:
    """A response is lost, and the row is read back: if it seems to be written, it has the owners and session written.

    Two processes with one worker id are two members.
    """
    lease = lease_from_row(row)
    if lease.counter >= COUNTER_LIMIT:
        return
    drawn = []
    for rule in (*writes_of_any_member(lease), *writes_of_the_owner(lease)):
        with suppress(CheckpointRejectedError):
            drawn.append(rule(data.draw))
    writes = [
        each
        for each in drawn
        if isinstance(each, UpdateRow)
        and may_apply(each, row)
        and each.set.get(lease_row.SESSION) != row.get(lease_row.SESSION, {})  # sessions are random
    ]
    for ours, theirs in product(writes, writes):
        written, found = next_row(ours, row), next_row(theirs, row)
        if written is None or found is None or ownership(written) == ownership(row):
            continue
        if was_applied(ours, found):
            assert ownership(found) == ownership(written), (ours, theirs)


@settings(max_examples=300)
@given(rows(), st.integers(0, 3), st.data())
def test_every_write_leaves_a_row_that_can_be_parsed(row: Row, increments: int, data: st.DataObject) -> None:
    """Also if other processes have incremented the counter since the lease was read."""
    lease = lease_from_row(row)
    newer = {**row, lease_row.COUNTER: number(lease.counter + increments)}
    for rule in (*writes_of_any_member(lease), *writes_of_the_owner(lease)):
        try:
            write = rule(data.draw)
        except CheckpointRejectedError:
            continue
        except MalformedRowError:
            assert lease.counter >= COUNTER_LIMIT
            continue
        if may_apply(write, row):
            check_row(next_row(write, row), write)
        if lease.counter < COUNTER_LIMIT and may_apply(write, newer):
            check_row(next_row(write, newer))


def check_row(after: Row | None, write: RowWrite | None = None) -> None:
    """The row after a write can be parsed, and proves the write unless another process wrote in between."""
    if after is not None:
        lease_from_row(after)
        assert write is None or was_applied(write, after)


@pytest.mark.parametrize("counter", [COUNTER_LIMIT, NUMBER_MAX])
def test_a_lease_whose_counter_cannot_be_incremented_is_rejected(counter: int) -> None:
    """A listing reports it as it reports malformed rows, and reads the others. Nobody takes it."""
    row = {
        lease_row.KEY: text("shardId-1"),
        lease_row.COUNTER: number(counter),
        lease_row.OWNER_SWITCHES: number(0),
        lease_row.CHECKPOINT: text("TRIM_HORIZON"),
    }
    other = {**row, lease_row.KEY: text("shardId-2"), lease_row.COUNTER: number(COUNTER_LIMIT - 1)}
    listing = leases_from_rows([row, other])
    assert [lease.key for lease in listing.leases] == ["shardId-2"]
    (rejected,) = listing.rejected
    assert rejected.key == "shardId-1"
    assert "set it to 0 while no member runs" in rejected.problem
    with pytest.raises(MalformedRowError, match="too large to be incremented"):
        lease_rules.take(lease_from_row(row), WorkerId("a"), LeaseSessionId("s"))


def test_a_damaged_count_of_owner_switches_stays_readable() -> None:
    """It is only shown to people, so it does not prevent a write."""
    lease = Lease(
        key=LeaseKey("shardId-1"),
        shard_id=ShardId("shardId-1"),
        checkpoint=Position("7"),
        owner=WorkerId("a"),
        owner_switches=NUMBER_MAX,
        throughput_kbps=Decimal(0),
    )
    assert not lease_rules.take(lease, WorkerId("b"), LeaseSessionId("s")).add
