"""Each write to a lease: who may make it, under which condition, and what it changes.

The conditions are the Java KCL's, so that Java and Python members can share a table; docs/algorithm.md lists them
side by side. On top of them stands a fence of our own: whoever begins to serve a lease writes a fresh `holding` id into
the row, and every later write of that holder asks for owner *and* holding. It tells apart what the counter alone
cannot: a paused process that wakes up, a second process with the same worker id, a lease lost and regained.

A rule is a function from the lease as last seen to a row write. Nothing here reads or retries.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from leasehold.core.leases.lease_row import (
    CHECKPOINT,
    CHECKPOINT_OWNER,
    CHECKPOINT_SUB,
    CHILDREN,
    COUNTER,
    HASH_END,
    HASH_START,
    KEY,
    NUDGE,
    OWNER,
    OWNER_SWITCHES,
    PENDING,
    PENDING_STATE,
    PENDING_SUB,
    SESSION,
    THROUGHPUT,
    lease_to_row,
)
from leasehold.core.leases.row_writes import (
    Absent,
    Attribute,
    Condition,
    DeleteRow,
    Equals,
    PutRow,
    UpdateRow,
    binary,
    number,
    text,
    text_set,
)
from leasehold.core.model import HashRange, Lease, LeaseSessionId, Pin, ShardId, WorkerId
from leasehold.core.position import SHARD_END, Position
from leasehold.errors import CheckpointRejectedError

NO_PIN = (PENDING, PENDING_SUB, PENDING_STATE)


def create(lease: Lease) -> PutRow:
    """A new lease, free and unread. That the row exists already is success for whoever wanted it there."""
    return PutRow(lease.key, lease_to_row(lease))


def take(lease: Lease, by: WorkerId, session: LeaseSessionId) -> UpdateRow:
    """Become the owner of a lease that is free, silent, or too much for its owner; the counter must not have moved."""
    return UpdateRow(
        key=lease.key,
        when=(_counter(lease),),
        set={OWNER: text(by), **_begun(lease, session)},
        remove=(CHECKPOINT_OWNER,),
        add=_owner_switch(lease, by),
        proof=(Equals(OWNER, text(by)), Equals(SESSION, text(session))),
    )


def begin_session(lease: Lease, by: WorkerId, session: LeaseSessionId) -> UpdateRow:
    """Begin to serve a lease that already names us: assigned by a leader, or ours before a restart."""
    assert lease.owner == by
    return UpdateRow(
        key=lease.key,
        when=(_counter(lease), Equals(OWNER, text(by)), Absent(CHECKPOINT_OWNER)),
        set=_begun(lease, session),
        proof=(Equals(OWNER, text(by)), Equals(SESSION, text(session))),
    )


def renew(lease: Lease, throughput_kbps: Decimal | None = None) -> UpdateRow:
    """The heartbeat. Fails when a handoff has begun, so that the owner learns of it (see `interpret_failed_renewal`)."""
    return _own_write(lease, _delivering(throughput_kbps))


def nudge(lease: Lease, nudge: str) -> UpdateRow:
    """Tell the owner of a lease to look at the table; it finds the word in the answer to its next heartbeat.

    Changes nothing that anybody decides by, so whoever has a reason may write it.
    """
    return UpdateRow(
        key=lease.key,
        when=(_row_exists(lease), *_owners_as_seen(lease)),
        set={NUDGE: text(nudge)},
        proof=(Equals(NUDGE, text(nudge)),),
    )


def checkpoint(lease: Lease, at: Position, throughput_kbps: Decimal | None = None) -> UpdateRow:
    """Everything up to `at` is done. Clears the pin, and counts as a heartbeat."""
    if at.is_shard_end:
        raise CheckpointRejectedError(
            f"lease {lease.key}: the end of a shard is written by `finish`, children first"
        )
    _refuse_going_back(lease, at)
    return _own_write(lease, {**_done_up_to(at), **_delivering(throughput_kbps)}, remove=NO_PIN)


def prepare(lease: Lease, end: Position, state: bytes | None = None) -> UpdateRow:
    """The first half of a two-phase checkpoint: where the coming effect will end. Replaces an earlier one."""
    _refuse_going_back(lease, end)
    return _own_write(lease, _pinned(Pin(end, state)), remove=_no_state(state))


def pin(lease: Lease, end: Position, state: bytes | None = None) -> UpdateRow:
    """Fix where the batch that begins at the lease's checkpoint ends. The first writer wins.

    Several processes of one member (Spark tasks, their retries and copies) may try at once, and none of them knows the
    counter, which the heartbeat moves. So the condition names what must not have changed instead: owner, holding, the
    start of the batch, and that nobody has pinned it. When `lease` carries a pin, that batch is done: the same write
    promotes it, and the new batch begins at its end.
    """
    start = lease.checkpoint if lease.pin is None else lease.pin.end
    _refuse_going_back(lease, end)
    if end < start:
        raise CheckpointRejectedError(
            f"lease {lease.key}: a batch from {start} cannot end at {end}, before it"
        )
    promoted = {} if lease.pin is None else _done_up_to(start)
    return UpdateRow(
        key=lease.key,
        when=(*_fence(lease), *_is_at(lease.checkpoint), *_is_pinned(lease.pin)),
        set={**promoted, **_pinned(Pin(end, state))},
        remove=_no_state(state),
        add={COUNTER: 1},
        proof=(*_fence(lease), *_is_at(start), *_is_pinned(Pin(end)), _has_state(state)),
    )


def repin(lease: Lease, state: bytes) -> UpdateRow:
    """Put our note on a pin that an earlier holder left unfinished, before its batch is done again. The end stays.

    The first writer wins: a note that came in between, of a later batch perhaps, is not written over.
    """
    assert lease.pin is not None
    return UpdateRow(
        key=lease.key,
        when=(
            *_fence(lease),
            *_is_at(lease.checkpoint),
            *_is_pinned(lease.pin),
            _has_state(lease.pin.state),
        ),
        set={PENDING_STATE: binary(state)},
        add={COUNTER: 1},
        proof=(*_fence(lease), *_is_at(lease.checkpoint), *_is_pinned(Pin(lease.pin.end)), _has_state(state)),
    )


def promote(lease: Lease) -> UpdateRow:
    """The pinned batch is done: its end becomes the checkpoint. For processes that do not know the counter."""
    assert lease.pin is not None
    return UpdateRow(
        key=lease.key,
        when=(*_fence(lease), *_is_at(lease.checkpoint), *_is_pinned(lease.pin)),
        set=_done_up_to(lease.pin.end),
        remove=NO_PIN,
        add={COUNTER: 1},
        proof=(*_fence(lease), *_is_at(lease.pin.end), Absent(PENDING)),
    )


def finish(lease: Lease, children: frozenset[ShardId]) -> UpdateRow:
    """The shard is read to its end. Goes with the creation of its children's leases in one transaction."""
    if lease.checkpoint.is_shard_end:
        raise CheckpointRejectedError(f"lease {lease.key} has already ended")
    family = {CHILDREN: text_set(children)} if children else {}
    return _own_write(lease, {**_done_up_to(SHARD_END), **family}, remove=NO_PIN)


def assign(lease: Lease, to: WorkerId) -> UpdateRow:
    """The leader gives a lease to a worker: free, expired, or moved by force.

    The KCL asks for the owners only. Scans may be behind, so an owner that seems silent may have renewed since; the
    counter tells.
    """
    return UpdateRow(
        key=lease.key,
        when=(_row_exists(lease), _counter(lease), *_owners_as_seen(lease)),
        set={OWNER: text(to)},
        remove=(CHECKPOINT_OWNER, SESSION),
        add={COUNTER: 1, **_owner_switch(lease, to)},
        proof=(Equals(OWNER, text(to)), Absent(CHECKPOINT_OWNER), _counter_after(lease)),
    )


def request_handoff(lease: Lease, to: WorkerId) -> UpdateRow:
    """The leader asks the owner to let go in its own time. The counter stays, or the owner would lose the lease now."""
    assert lease.owner is not None
    assert lease.owner != to
    return UpdateRow(
        key=lease.key,
        when=(_row_exists(lease), Equals(OWNER, text(lease.owner)), Absent(CHECKPOINT_OWNER)),
        set={OWNER: text(to), CHECKPOINT_OWNER: text(lease.owner)},
        proof=(Equals(OWNER, text(to)), Equals(CHECKPOINT_OWNER, text(lease.owner))),
    )


def complete_handoff(lease: Lease) -> UpdateRow:
    """The old owner lets go, after its last checkpoint; the next owner may begin."""
    assert lease.owner is not None
    assert lease.checkpoint_owner is not None
    return UpdateRow(
        key=lease.key,
        when=(_row_exists(lease), *_owners_as_seen(lease), *_holding(lease)),
        set={OWNER: text(lease.owner)},
        remove=(CHECKPOINT_OWNER, SESSION),
        add={COUNTER: 1},
        proof=(Equals(OWNER, text(lease.owner)), Absent(CHECKPOINT_OWNER), _counter_after(lease)),
    )


def decline_handoff(lease: Lease) -> UpdateRow:
    """The old owner is not ready to let go: it keeps the lease. Whoever asked may ask again."""
    assert lease.checkpoint_owner is not None
    keeper = text(lease.checkpoint_owner)
    return UpdateRow(
        key=lease.key,
        when=(_row_exists(lease), *_owners_as_seen(lease), *_holding(lease)),
        set={OWNER: keeper},
        remove=(CHECKPOINT_OWNER,),
        add={COUNTER: 1},
        proof=(Equals(OWNER, keeper), Absent(CHECKPOINT_OWNER), *_holding(lease)),
    )


def release(lease: Lease) -> UpdateRow:
    """A clean stop: free the lease at once instead of letting it expire. A waiting next owner keeps its claim."""
    if lease.is_in_handoff:
        return complete_handoff(lease)
    return UpdateRow(
        key=lease.key,
        when=(_row_exists(lease), *_owners_as_seen(lease), *_holding(lease)),
        remove=(OWNER, SESSION),
        add={COUNTER: 1},
        proof=(Absent(OWNER), _counter_after(lease)),
    )


def release_to(lease: Lease, to: WorkerId) -> UpdateRow:
    """A clean stop under a leader: name the next owner, who need not wait until the leader has noticed."""
    if lease.is_in_handoff:
        return complete_handoff(lease)
    return UpdateRow(
        key=lease.key,
        when=(_row_exists(lease), *_owners_as_seen(lease), *_holding(lease)),
        set={OWNER: text(to)},
        remove=(SESSION,),
        add={COUNTER: 1},
        proof=(Equals(OWNER, text(to)), Absent(SESSION), _counter_after(lease)),
    )


def set_children(lease: Lease, children: frozenset[ShardId]) -> UpdateRow:
    """Note the children of a finished shard. A fact about the stream, so whoever learns it may write it."""
    names = {CHILDREN: text_set(children)}
    return UpdateRow(key=lease.key, when=(_row_exists(lease),), set=names, proof=_are(names))


def set_hash_range(lease: Lease, hash_range: HashRange) -> UpdateRow:
    """Note the hash range of a lease that was written without one."""
    ends = {HASH_START: text(str(hash_range.start)), HASH_END: text(str(hash_range.end))}
    return UpdateRow(key=lease.key, when=(_row_exists(lease),), set=ends, proof=_are(ends))


def delete(lease: Lease) -> DeleteRow:
    """Remove a lease that is done with. Java asks for nothing; we ask that it is still where it was when we decided."""
    return DeleteRow(key=lease.key, when=(Equals(CHECKPOINT, text(lease.checkpoint.sequence_number)),))


@dataclass(frozen=True, slots=True)
class StillHeld:
    """The lease is ours after all; go on with this copy of it, which may say that it is to be handed over."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Lost:
    """Stop now. `holder` is who may read the shard, as far as the row says."""

    holder: WorkerId | None


def interpret_failed_renewal(mine: Lease, now: Lease | None) -> StillHeld | Lost:
    """What a refused heartbeat means, from the row as it is now."""
    if now is None:
        return Lost(holder=None)
    if (
        now.session != mine.session
        or now.actual_owner != mine.actual_owner
        or now.owner == now.checkpoint_owner
    ):
        return Lost(holder=now.actual_owner)
    # A handoff was asked for. Or the counter was moved by this very holding: another process of ours pinned a batch.
    return StillHeld(now)


def _begun(lease: Lease, session: LeaseSessionId) -> Mapping[str, Attribute]:
    return {
        SESSION: text(session),
        COUNTER: number(lease.counter + 1),
        # Missing in rows of some other clients, where it means 0; `pin` needs it to be there to ask for it.
        CHECKPOINT_SUB: number(lease.checkpoint.sub_sequence_number),
    }


def _own_write(lease: Lease, changes: Mapping[str, Attribute], *, remove: tuple[str, ...] = ()) -> UpdateRow:
    """A write of the lease's holder that knows the counter. It moves the counter, so it is a heartbeat as well."""
    changed = {COUNTER: number(lease.counter + 1), **changes}
    return UpdateRow(
        key=lease.key,
        when=(_counter(lease), *_fence(lease)),
        set=changed,
        remove=remove,
        # Not the fence: a handoff may have been requested since, and it leaves all of this as it is.
        proof=(*_holding(lease), *_are(changed), *(Absent(name) for name in remove)),
    )


def _delivering(throughput_kbps: Decimal | None) -> Mapping[str, Attribute]:
    return {} if throughput_kbps is None else {THROUGHPUT: number(throughput_kbps)}


def _refuse_going_back(lease: Lease, to: Position) -> None:
    if to < lease.checkpoint:
        raise CheckpointRejectedError(
            f"lease {lease.key}: checkpoint {to} is before {lease.checkpoint}, which is already done; "
            "checkpoints never go back while a lease is held"
        )


def _fence(lease: Lease) -> tuple[Condition, ...]:
    """What every write of a lease's holder asks for: still the one who may read it, in this very holding."""
    assert lease.actual_owner is not None
    if lease.is_in_handoff:
        return (Equals(CHECKPOINT_OWNER, text(lease.actual_owner)), *_holding(lease))
    return (Equals(OWNER, text(lease.actual_owner)), Absent(CHECKPOINT_OWNER), *_holding(lease))


def _holding(lease: Lease) -> tuple[Condition, ...]:
    assert lease.session is not None, "a lease is served only after `take` or `hold`"
    return (Equals(SESSION, text(lease.session)),)


def _counter(lease: Lease) -> Condition:
    return Equals(COUNTER, number(lease.counter))


def _counter_after(lease: Lease) -> Condition:
    return Equals(COUNTER, number(lease.counter + 1))


def _row_exists(lease: Lease) -> Condition:
    return Equals(KEY, text(lease.key))


def _owners_as_seen(lease: Lease) -> tuple[Condition, ...]:
    owner = Absent(OWNER) if lease.owner is None else Equals(OWNER, text(lease.owner))
    old = lease.checkpoint_owner
    return (owner, Absent(CHECKPOINT_OWNER) if old is None else Equals(CHECKPOINT_OWNER, text(old)))


def _owner_switch(lease: Lease, to: WorkerId) -> Mapping[str, int]:
    """A forced change of owner counts; the end of a handoff does not."""
    forced = (lease.owner is not None and lease.owner != to) or lease.checkpoint_owner == to
    return {OWNER_SWITCHES: 1} if forced else {}


def _at(position: Position) -> Mapping[str, Attribute]:
    return {
        CHECKPOINT: text(position.sequence_number),
        CHECKPOINT_SUB: number(position.sub_sequence_number),
    }


def _done_up_to(position: Position) -> Mapping[str, Attribute]:
    return {**_at(position), OWNER_SWITCHES: number(0)}


def _is_at(position: Position) -> tuple[Condition, ...]:
    return _are(_at(position))


def _pinned(batch: Pin) -> Mapping[str, Attribute]:
    end = {PENDING: text(batch.end.sequence_number), PENDING_SUB: number(batch.end.sub_sequence_number)}
    return end if batch.state is None else {**end, PENDING_STATE: binary(batch.state)}


def _is_pinned(batch: Pin | None) -> tuple[Condition, ...]:
    if batch is None:
        return (Absent(PENDING),)
    return _are(_pinned(Pin(batch.end)))


def _no_state(state: bytes | None) -> tuple[str, ...]:
    """What a pin without a state removes: the state of the pin before it."""
    return () if state is not None else (PENDING_STATE,)


def _has_state(state: bytes | None) -> Condition:
    return Absent(PENDING_STATE) if state is None else Equals(PENDING_STATE, binary(state))


def _are(values: Mapping[str, Attribute]) -> tuple[Condition, ...]:
    return tuple(Equals(name, value) for name, value in values.items())
