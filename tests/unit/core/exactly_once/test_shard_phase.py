"""The phases of a query's shard: each transition follows from the lease and the offset log."""

from typing import get_args

import pytest

from leasehold.core.exactly_once.pinned_batch import (
    GenerationId,
    LeaseAheadOfLog,
    PinMetadata,
    pin_metadata_to_bytes,
)
from leasehold.core.exactly_once.query_offset import QueryOffset, ReadStart
from leasehold.core.exactly_once.shard_phase import (
    TRANSITIONS,
    Ended,
    Finished,
    Idle,
    InBatch,
    PhaseDecision,
    Ready,
    ShardPhase,
    Taken,
    TipProgress,
    next_phase,
    next_start,
    require_transition,
)
from leasehold.core.model import ChildShard, HashRange, Lease, LeaseKey, Pin, ShardId
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Position

SHARD = ShardId("shardId-000000000000")
CHILD = ChildShard(ShardId("shardId-000000000001"), (SHARD,), HashRange(0, 99))
START, END = Position("10"), Position("20")
COMMITTED = GenerationId("00c0ffee", 3)
LOGGED = QueryOffset(COMMITTED, {LeaseKey(SHARD): ReadStart(START)})


def lease(metadata: PinMetadata | None = None, *, at: Position = START) -> Lease:
    """A lease, with a pin at END if metadata is given."""
    pin = None if metadata is None else Pin(END, pin_metadata_to_bytes(metadata))
    return Lease(key=LeaseKey(SHARD), shard_id=SHARD, checkpoint=at, pin=pin)


def decide(before: Taken | InBatch, found: Lease) -> PhaseDecision:
    decision = next_phase(before, found, LOGGED, ReadStart)
    assert isinstance(decision, PhaseDecision)
    return decision


def test_a_shard_that_the_batch_read_to_its_tip_becomes_idle() -> None:
    """Its pin may become the checkpoint, and its records are counted."""
    metadata = PinMetadata(COMMITTED, records=5)
    found = lease(metadata)
    assert decide(InBatch(), found) == PhaseDecision(
        Idle(found, ReadStart(END), END, was_read_to_tip=True), metadata, TipProgress.READ_TO_TIP
    )


def test_a_shard_whose_slice_ended_at_a_limit_is_ready_at_once() -> None:
    metadata = PinMetadata(COMMITTED, has_more=True)
    found = lease(metadata)
    assert decide(InBatch(), found) == PhaseDecision(Ready(found, ReadStart(END), END), metadata)


def test_a_replayed_slice_says_nothing_about_the_tip() -> None:
    """An earlier run chose its end. Records may have arrived since."""
    decision = decide(InBatch(is_replay=True), lease(PinMetadata(COMMITTED)))
    assert decision.tip is TipProgress.BEHIND
    assert isinstance(decision.phase, Idle)


def test_a_shard_that_the_batch_did_not_read_counts_nothing() -> None:
    """Its pin belongs to an older generation."""
    log = QueryOffset(COMMITTED, {LeaseKey(SHARD): ReadStart(END)})
    found = lease(PinMetadata(GenerationId("00c0ffee", 2), records=5))
    assert next_phase(InBatch(), found, log, ReadStart) == PhaseDecision(Idle(found, ReadStart(END), END))


def test_a_late_pin_of_an_older_generation_is_redelivered_if_the_log_begins_before_it() -> None:
    """A shard that the log does not name was not held then, so its pin was committed."""
    found = lease(PinMetadata(GenerationId("00c0ffee", 2)))
    assert decide(InBatch(), found).phase == Ready(found, ReadStart(START), None, redeliver_to=END)
    unnamed = next_phase(Taken(), found, QueryOffset(COMMITTED, {}), ReadStart)
    assert unnamed == PhaseDecision(Idle(found, ReadStart(END), END))


def test_a_new_shard_without_a_record_is_read_at_once() -> None:
    """The first batch fixes where it begins."""
    found = lease(at=LATEST)
    start = ReadStart(AT_TIMESTAMP, 7)
    assert next_phase(Taken(), found, LOGGED, lambda _: start) == PhaseDecision(Ready(found, start, None))


def test_a_new_shard_with_records_is_polled_first() -> None:
    found = lease()
    assert decide(Taken(), found) == PhaseDecision(Idle(found, ReadStart(START), None))


def test_an_unfinished_pin_of_another_query_is_redelivered_and_never_promoted() -> None:
    found = lease(PinMetadata(GenerationId("0badcafe", 9)))
    assert decide(Taken(), found).phase == Ready(found, ReadStart(START), None, redeliver_to=END)


@pytest.mark.parametrize("before", [Taken(), InBatch()])
def test_a_shard_that_was_read_to_its_end_has_ended(before: Taken | InBatch) -> None:
    metadata = PinMetadata(COMMITTED, children=(CHILD,))
    decision = decide(before, lease(metadata))
    assert decision == PhaseDecision(Ended((CHILD,), None, END), delivered=metadata)


def test_the_log_names_what_a_shard_that_has_ended_has_delivered() -> None:
    """Its end may wait for the other parent of a merge, and a bounded run may end meanwhile."""
    assert next_start(Ended((CHILD,), ReadStart(START), END)) == ReadStart(END)
    assert next_start(Ended((CHILD,), ReadStart(START), None)) == ReadStart(START)
    assert next_start(Ended((CHILD,), ReadStart(TRIM_HORIZON), TRIM_HORIZON)) == ReadStart(TRIM_HORIZON)
    assert next_start(InBatch(ReadStart(START), END)) is None


def test_a_generation_that_the_log_does_not_know_is_reported() -> None:
    later = COMMITTED.next
    assert next_phase(Taken(), lease(PinMetadata(later)), LOGGED, ReadStart) == LeaseAheadOfLog(later)


def test_the_table_has_every_phase() -> None:
    assert set(TRANSITIONS) == set(get_args(ShardPhase))


@pytest.mark.parametrize("phase", [Taken, Idle, Ready, InBatch, Ended])
def test_a_replay_is_possible_from_every_phase_but_the_last(phase: type) -> None:
    assert InBatch in TRANSITIONS[phase]


def test_a_transition_outside_the_table_is_a_bug() -> None:
    require_transition(Ended(()), Finished())
    with pytest.raises(AssertionError, match="Finished -> InBatch"):
        require_transition(Finished(), InBatch())
