"""Every write to a lease: its conditions and its changes. Each rule is a function from a lease to a row write.

The conditions are those of the Java KCL, so that Java and Python members can share a table. docs/algorithm.md lists
them side by side. We add a fencing token: a member that begins to serve a lease writes a new `session` id into the row,
and each later write of this member requires its owner *and* its session. The counter alone does not detect a paused
process that resumes, a second process with the same worker id, or a lease that was lost and regained.

A write of another member that requires the counter also requires the session as it was read: a row that was deleted and
created again counts from 0, so the same counter may be that of a living owner.

The lease that a rule takes is the lease as last read. If the row has changed since, the conditions fail.

A row that can be parsed can be parsed after each of these writes. A counter that is too large for that raises a
`MalformedRowError`, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from leasehold.core.leases.lease_row import (
    CHECKPOINT,
    CHECKPOINT_OWNER,
    CHECKPOINT_SUB,
    CHILDREN,
    COUNTER,
    COUNTER_LIMIT,
    GENERATIONS,
    HASH_END,
    HASH_START,
    KEY,
    LATEST_AT,
    NUDGE,
    OWNER,
    OWNER_SWITCHES,
    PARENTS,
    PENDING,
    PENDING_STATE,
    PENDING_SUB,
    SESSION,
    THROUGHPUT,
    generations_to_text,
    lease_to_row,
    require_room_in_counter,
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
from leasehold.core.model import HashRange, Lease, LeaseSessionId, Pin, Shard, ShardId, WorkerId
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position
from leasehold.errors import CheckpointRejectedError

NO_PIN = (PENDING, PENDING_SUB, PENDING_STATE)
# How many queries a row remembers. More than this rarely share the shards of one application.
GENERATIONS_MAX: Final = 8


def create(lease: Lease) -> PutRow:
    """Create a lease without an owner. Refused if the row exists, which callers treat as success."""
    return PutRow(lease.key, lease_to_row(lease))


def take(lease: Lease, by: WorkerId, session: LeaseSessionId) -> UpdateRow:
    """Become the owner of a lease that is free, silent, or has an overdue handoff. Its owner must not have written."""
    return UpdateRow(
        key=lease.key,
        when=_as_seen(lease),
        set={OWNER: text(by), **_begin(lease, session)},
        remove=(CHECKPOINT_OWNER,),
        add=_owner_switch(lease, by),
        proof=(Equals(OWNER, text(by)), Equals(SESSION, text(session))),
    )


def begin_session(lease: Lease, by: WorkerId, session: LeaseSessionId) -> UpdateRow:
    """Begin to serve a lease whose owner we already are: a leader assigned it, or we owned it before a restart."""
    assert lease.owner == by
    return UpdateRow(
        key=lease.key,
        when=(*_as_seen(lease), Equals(OWNER, text(by)), Absent(CHECKPOINT_OWNER)),
        set=_begin(lease, session),
        proof=(Equals(OWNER, text(by)), Equals(SESSION, text(session))),
    )


def renew(lease: Lease, throughput_kbps: Decimal | None = None) -> UpdateRow:
    """The heartbeat. Refused during a handoff, which tells the owner of it (see `interpret_failed_renewal`)."""
    return _own_write(lease, _throughput(throughput_kbps))


def nudge(lease: Lease, value: str) -> UpdateRow:
    """Make the owner of a lease refresh. It finds the new value in the response to its next heartbeat.

    No decision depends on this attribute, so every member may write it.
    """
    return UpdateRow(
        key=lease.key,
        when=(_row_exists(lease), *_owners_as_seen(lease)),
        set={NUDGE: text(value)},
        proof=(Equals(NUDGE, text(value)),),
    )


def checkpoint(lease: Lease, at: Position, throughput_kbps: Decimal | None = None) -> UpdateRow:
    """Store that all records up to `at` are done. Removes the pin, and counts as a heartbeat."""
    if at.is_shard_end:
        raise CheckpointRejectedError(
            f"lease {lease.key}: write the end of a shard with `finish`, which creates its children"
        )
    _refuse_moving_back(lease, at)
    return _own_write(lease, {**_done_up_to(at), **_throughput(throughput_kbps)}, remove=NO_PIN)


def prepare(lease: Lease, end: Position, state: bytes | None = None) -> UpdateRow:
    """The first half of a two-phase checkpoint: pin where the next effect will end. Replaces an earlier pin."""
    _refuse_moving_back(lease, end)
    return _own_write(lease, _pinned(Pin(end, state)), remove=_obsolete_state(state))


def pin(
    lease: Lease, end: Position, state: bytes | None = None, generation: tuple[str, int] | None = None
) -> UpdateRow:
    """Pin the end of the batch that begins at the checkpoint of the lease. The first writer wins.

    `generation` is the query id and the number of the batch. It stays in the row after the pin.

    Several processes of one member (Spark tasks, their retries and speculative copies) may write at the same time. They
    do not know the counter, because each heartbeat changes it. So the conditions require instead: the same owner and
    session, the same start of the batch, and the same pin as read. If `lease` has a pin, that batch is done: the same
    write promotes it, and the new batch begins at its end.
    """
    start = lease.checkpoint if lease.pin is None else lease.pin.end
    _refuse_moving_back(lease, end)
    if end < start:
        raise CheckpointRejectedError(
            f"lease {lease.key}: a batch from {start} cannot end before it, at {end}"
        )
    promoted = {} if lease.pin is None else _done_up_to(start)
    # An empty batch is pinned at its beginning. Only its state distinguishes it from an empty batch before it.
    as_read = () if lease.pin is None else (_has_state(lease.pin.state),)
    # An empty batch that was promoted leaves no other trace: a late attempt at it must not pin records.
    no_batch_since = () if generation is None else (_has_generations(lease),)
    return UpdateRow(
        key=lease.key,
        when=(
            *_fence(lease),
            *_is_at(lease.checkpoint),
            *_is_pinned(lease.pin),
            *as_read,
            *no_batch_since,
        ),
        set={**promoted, **_pinned(Pin(end, state)), **_generations_with(lease, generation)},
        remove=_obsolete_state(state),
        add=_increment(lease),
        proof=(*_fence(lease), *_is_at(start), *_is_pinned(Pin(end)), _has_state(state)),
    )


def repin(lease: Lease, state: bytes, generation: tuple[str, int] | None = None) -> UpdateRow:
    """Write our state into a pin that an earlier owner left, before the batch is repeated. The end stays the same.

    The first writer wins: a state that was written in between, perhaps for a later batch, is not overwritten.
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
        set={PENDING_STATE: binary(state), **_generations_with(lease, generation)},
        add=_increment(lease),
        proof=(*_fence(lease), *_is_at(lease.checkpoint), *_is_pinned(Pin(lease.pin.end)), _has_state(state)),
    )


def promote(lease: Lease) -> UpdateRow:
    """Make the end of the pinned batch the checkpoint. For processes that do not know the counter."""
    assert lease.pin is not None
    return UpdateRow(
        key=lease.key,
        when=(*_fence(lease), *_is_at(lease.checkpoint), *_is_pinned(lease.pin)),
        set=_done_up_to(lease.pin.end),
        remove=NO_PIN,
        add=_increment(lease),
        proof=(*_fence(lease), *_is_at(lease.pin.end), Absent(PENDING)),
    )


def stamp(lease: Lease, generation: tuple[str, int]) -> UpdateRow:
    """Store that a generation of a query is logged, although it reads nothing from the shard. Counts as a heartbeat."""
    return _own_write(lease, _generations_with(lease, generation))


def finish(lease: Lease, children: frozenset[ShardId]) -> UpdateRow:
    """Store that the shard is read to its end. Written in one transaction with the leases of its children."""
    if lease.checkpoint.is_shard_end:
        raise CheckpointRejectedError(f"lease {lease.key} has already ended")
    family = {CHILDREN: text_set(children)} if children else {}
    return _own_write(lease, {**_done_up_to(SHARD_END), **family}, remove=NO_PIN)


def finished(lease: Lease, children: frozenset[ShardId]) -> Lease:
    """The lease after `finish`. A transaction returns no row, and a later read may show a write of another member."""
    return replace(
        lease,
        checkpoint=SHARD_END,
        pin=None,
        children=children or lease.children,
        owner_switches=0,
        counter=_next_counter(lease),
    )


def assign(lease: Lease, to: WorkerId) -> UpdateRow:
    """The leader assigns a lease to a worker: a free or silent lease, or one whose handoff is overdue.

    The KCL requires the same owners only. We also require the same counter: a scan may be stale, and an owner that
    seems silent may have renewed the lease since.
    """
    return UpdateRow(
        key=lease.key,
        when=(_row_exists(lease), *_as_seen(lease), *_owners_as_seen(lease)),
        set={OWNER: text(to)},
        remove=(CHECKPOINT_OWNER, SESSION),
        add={**_increment(lease), **_owner_switch(lease, to)},
        # Without the absent session, a second process with the name `to` that has begun the lease would look like this.
        proof=(Equals(OWNER, text(to)), Absent(CHECKPOINT_OWNER), Absent(SESSION), _counter_after(lease)),
    )


def request_handoff(lease: Lease, to: WorkerId) -> UpdateRow:
    """Ask the owner to release the lease after its current work.

    The counter stays the same. If it changed, the owner would lose the lease at once.
    """
    assert lease.owner is not None
    assert lease.owner != to
    return UpdateRow(
        key=lease.key,
        when=(_row_exists(lease), Equals(OWNER, text(lease.owner)), Absent(CHECKPOINT_OWNER)),
        set={OWNER: text(to), CHECKPOINT_OWNER: text(lease.owner)},
        proof=(Equals(OWNER, text(to)), Equals(CHECKPOINT_OWNER, text(lease.owner))),
    )


def complete_handoff(lease: Lease) -> UpdateRow:
    """The old owner releases the lease after its last checkpoint. The next owner may begin."""
    assert lease.owner is not None
    assert lease.checkpoint_owner is not None
    return UpdateRow(
        key=lease.key,
        when=(_row_exists(lease), *_owners_as_seen(lease), *_same_session(lease)),
        set={OWNER: text(lease.owner)},
        remove=(CHECKPOINT_OWNER, SESSION),
        add=_increment(lease),
        proof=(
            Equals(OWNER, text(lease.owner)),
            Absent(CHECKPOINT_OWNER),
            Absent(SESSION),
            _counter_after(lease),
        ),
    )


def decline_handoff(lease: Lease) -> UpdateRow:
    """The old owner keeps the lease, because its current work takes too long. A handoff may be requested again."""
    assert lease.checkpoint_owner is not None
    keeper = text(lease.checkpoint_owner)
    return UpdateRow(
        key=lease.key,
        when=(_row_exists(lease), *_owners_as_seen(lease), *_same_session(lease)),
        set={OWNER: keeper},
        remove=(CHECKPOINT_OWNER,),
        add=_increment(lease),
        proof=(Equals(OWNER, keeper), Absent(CHECKPOINT_OWNER), *_same_session(lease)),
    )


def withdraw_handoff(lease: Lease) -> UpdateRow:
    """The requester no longer wants the lease: the old owner keeps it, as if it had not been asked.

    The counter stays the same, as after the request: an owner that has not seen the request renews as before.
    """
    assert lease.owner is not None
    assert lease.checkpoint_owner is not None
    keeper = text(lease.checkpoint_owner)
    return UpdateRow(
        key=lease.key,
        when=(_row_exists(lease), *_owners_as_seen(lease)),
        set={OWNER: keeper},
        remove=(CHECKPOINT_OWNER,),
        proof=(Equals(OWNER, keeper), Absent(CHECKPOINT_OWNER), _session_as_seen(lease)),
    )


def release(lease: Lease) -> UpdateRow:
    """Free the lease on a clean stop, so that it need not expire. A lease in handoff goes to its next owner."""
    if lease.is_in_handoff:
        return complete_handoff(lease)
    return UpdateRow(
        key=lease.key,
        when=(_row_exists(lease), *_owners_as_seen(lease), *_same_session(lease)),
        remove=(OWNER, SESSION),
        add=_increment(lease),
        proof=(Absent(OWNER), _counter_after(lease)),
    )


def release_to(lease: Lease, to: WorkerId) -> UpdateRow:
    """Release the lease on a clean stop to the next owner, which need not wait for the leader."""
    if lease.is_in_handoff:
        return complete_handoff(lease)
    return UpdateRow(
        key=lease.key,
        when=(_row_exists(lease), *_owners_as_seen(lease), *_same_session(lease)),
        set={OWNER: text(to)},
        remove=(SESSION,),
        add=_increment(lease),
        proof=(Equals(OWNER, text(to)), Absent(SESSION), _counter_after(lease)),
    )


def set_children(lease: Lease, children: frozenset[ShardId]) -> UpdateRow:
    """Store the children of a finished shard. They never change, so every member may write them."""
    names = {CHILDREN: text_set(children)}
    return UpdateRow(key=lease.key, when=(_row_exists(lease),), set=names, proof=_are(names))


def set_hash_range(lease: Lease, hash_range: HashRange) -> UpdateRow:
    """Store the hash range of a lease that was created without one."""
    ends = {HASH_START: text(str(hash_range.start)), HASH_END: text(str(hash_range.end))}
    return UpdateRow(key=lease.key, when=(_row_exists(lease),), set=ends, proof=_are(ends))


def restart(lease: Lease, shard: Shard) -> UpdateRow:
    """Let a lease of an earlier stream begin at the oldest record of the shard that now has its id.

    The lease is free afterwards. An owner that has written since is not overruled, and one that has not is fenced off.
    """
    ends = {HASH_START: text(str(shard.hash_range.start)), HASH_END: text(str(shard.hash_range.end))}
    parents = frozenset(shard.parents)
    changes: dict[str, Attribute] = {
        **_done_up_to(TRIM_HORIZON),
        **ends,
        COUNTER: number(_next_counter(lease)),
        **({PARENTS: text_set(parents)} if parents else {}),
    }
    return UpdateRow(
        key=lease.key,
        when=(*_as_seen(lease), Equals(CHECKPOINT, text(lease.checkpoint.sequence_number))),
        set=changes,
        remove=(
            *(OWNER, CHECKPOINT_OWNER, SESSION, *NO_PIN, CHILDREN, LATEST_AT, GENERATIONS),
            *(() if parents else (PARENTS,)),
        ),
        proof=(_counter_after(lease), *_is_at(TRIM_HORIZON), *_are(ends), Absent(OWNER)),
    )


def reset(lease: Lease, at: Position) -> UpdateRow:
    """Move a lease that we hold to another position, before or after its checkpoint, and free it in the same write.

    A lease in handoff goes to its next owner. The row keeps its generations: a log that is older than they are stays
    outdated.
    """
    if at.is_shard_end:
        raise CheckpointRejectedError(f"lease {lease.key}: a reset never skips the end of a shard")
    owners = (CHECKPOINT_OWNER,) if lease.is_in_handoff else (OWNER,)
    return UpdateRow(
        key=lease.key,
        when=(_counter(lease), *_fence(lease)),
        set={**_done_up_to(at), COUNTER: number(_next_counter(lease))},
        remove=(*owners, SESSION, *NO_PIN, CHILDREN),
        proof=(_counter_after(lease), *_is_at(at), Absent(SESSION), Absent(PENDING), Absent(CHILDREN)),
    )


def delete(lease: Lease) -> DeleteRow:
    """Delete a finished lease. Java has no condition; we require the checkpoint that the decision was based on."""
    return DeleteRow(key=lease.key, when=(Equals(CHECKPOINT, text(lease.checkpoint.sequence_number)),))


def delete_unused(lease: Lease) -> DeleteRow:
    """Delete a lease of a stream that is no longer read. Refused if a member has renewed or checkpointed it."""
    return DeleteRow(
        key=lease.key, when=(*_as_seen(lease), Equals(CHECKPOINT, text(lease.checkpoint.sequence_number)))
    )


@dataclass(frozen=True, slots=True)
class StillHeld:
    """The lease is still held. Continue with this copy of it, which may be in handoff."""

    lease: Lease


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease is lost: stop now. `holder` is the worker that may read the shard according to the row."""

    holder: WorkerId | None


def interpret_failed_renewal(mine: Lease, now: Lease | None) -> StillHeld | Lost:
    """What a refused heartbeat means, given the current row."""
    if now is None:
        return Lost(holder=None)
    if (
        now.session != mine.session
        or now.actual_owner != mine.actual_owner
        or now.owner == now.checkpoint_owner
    ):
        return Lost(holder=now.actual_owner)
    # A handoff was requested. Or another process of this session changed the counter: it pinned a batch.
    return StillHeld(now)


def _begin(lease: Lease, session: LeaseSessionId) -> Mapping[str, Attribute]:
    return {
        SESSION: text(session),
        COUNTER: number(_next_counter(lease)),
        # Missing, meaning 0, in rows of some other clients. The conditions of `pin` need the attribute.
        CHECKPOINT_SUB: number(lease.checkpoint.sub_sequence_number),
    }


def _own_write(lease: Lease, changes: Mapping[str, Attribute], *, remove: tuple[str, ...] = ()) -> UpdateRow:
    """A write of the owner that knows the counter. It increments the counter, so it is also a heartbeat."""
    changed = {COUNTER: number(_next_counter(lease)), **changes}
    return UpdateRow(
        key=lease.key,
        when=(_counter(lease), *_fence(lease)),
        set=changed,
        remove=remove,
        # Without the owners: a handoff may have been requested since, which does not undo this write.
        proof=(*_same_session(lease), *_are(changed), *(Absent(name) for name in remove)),
    )


def _throughput(throughput_kbps: Decimal | None) -> Mapping[str, Attribute]:
    return {} if throughput_kbps is None else {THROUGHPUT: number(throughput_kbps)}


def _generations_with(lease: Lease, generation: tuple[str, int] | None) -> Mapping[str, Attribute]:
    """The generations of the row and one more. A query without a batch in this shard for long is forgotten first."""
    if generation is None:
        return {}
    query_id, number_now = generation
    others = [each for each in lease.generations if each[0] != query_id]
    latest = max([number_now, *(each for query, each in lease.generations if query == query_id)])
    return {GENERATIONS: text(generations_to_text([*others, (query_id, latest)][-GENERATIONS_MAX:]))}


def _has_generations(lease: Lease) -> Condition:
    """The row has the generations that were read."""
    if not lease.generations:
        return Absent(GENERATIONS)
    return Equals(GENERATIONS, text(generations_to_text(lease.generations)))


def _refuse_moving_back(lease: Lease, to: Position) -> None:
    if to < lease.checkpoint:
        raise CheckpointRejectedError(
            f"lease {lease.key}: checkpoint {to} is before the current checkpoint {lease.checkpoint}; "
            "checkpoints never go back while a lease is held"
        )


def _fence(lease: Lease) -> tuple[Condition, ...]:
    """The fencing conditions of every write of the owner: it is still the owner, in the same lease session."""
    assert lease.actual_owner is not None
    if lease.is_in_handoff:
        return (Equals(CHECKPOINT_OWNER, text(lease.actual_owner)), *_same_session(lease))
    return (Equals(OWNER, text(lease.actual_owner)), Absent(CHECKPOINT_OWNER), *_same_session(lease))


def _same_session(lease: Lease) -> tuple[Condition, ...]:
    assert lease.session is not None, "a lease is served only after `take` or `begin_session`"
    return (Equals(SESSION, text(lease.session)),)


def _as_seen(lease: Lease) -> tuple[Condition, ...]:
    """The owner has not written since the lease was read, and the row was not created again."""
    return (_counter(lease), _session_as_seen(lease))


def _session_as_seen(lease: Lease) -> Condition:
    return Absent(SESSION) if lease.session is None else Equals(SESSION, text(lease.session))


def _counter(lease: Lease) -> Condition:
    return Equals(COUNTER, number(lease.counter))


def _next_counter(lease: Lease) -> int:
    require_room_in_counter(lease)
    return lease.counter + 1


def _increment(lease: Lease) -> Mapping[str, int]:
    """Increments the counter of the row, which may be higher than that of the lease as last read."""
    require_room_in_counter(lease)
    return {COUNTER: 1}


def _counter_after(lease: Lease) -> Condition:
    return Equals(COUNTER, number(_next_counter(lease)))


def _row_exists(lease: Lease) -> Condition:
    return Equals(KEY, text(lease.key))


def _owners_as_seen(lease: Lease) -> tuple[Condition, ...]:
    owner = Absent(OWNER) if lease.owner is None else Equals(OWNER, text(lease.owner))
    old = lease.checkpoint_owner
    return (owner, Absent(CHECKPOINT_OWNER) if old is None else Equals(CHECKPOINT_OWNER, text(old)))


def _owner_switch(lease: Lease, to: WorkerId) -> Mapping[str, int]:
    """Counts a forced change of owner. The end of a handoff does not count. A damaged, huge count stays as it is."""
    forced = (lease.owner is not None and lease.owner != to) or lease.checkpoint_owner == to
    return {OWNER_SWITCHES: 1} if forced and lease.owner_switches < COUNTER_LIMIT else {}


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


def _obsolete_state(state: bytes | None) -> tuple[str, ...]:
    """A pin without a state removes the state of the pin before it."""
    return () if state is not None else (PENDING_STATE,)


def _has_state(state: bytes | None) -> Condition:
    return Absent(PENDING_STATE) if state is None else Equals(PENDING_STATE, binary(state))


def _are(values: Mapping[str, Attribute]) -> tuple[Condition, ...]:
    return tuple(Equals(name, value) for name, value in values.items())
