"""Renders every lease write as text: conditions, changes and proof.

`python -m tests.unit.core.leases.render_lease_writes` prints the text that `every_lease_write.txt` must contain. Update
the file only if docs/algorithm.md describes the same change.
"""

from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal

from leasehold.core.leases import lease_rules
from leasehold.core.leases.row_writes import (
    Absent,
    Attribute,
    Condition,
    DeleteRow,
    Equals,
    PutRow,
    RowWrite,
    UpdateRow,
)
from leasehold.core.model import HashRange, Lease, LeaseKey, LeaseSessionId, Pin, Shard, ShardId, WorkerId
from leasehold.core.position import TRIM_HORIZON, Position

ME, OTHER = WorkerId("me"), WorkerId("other")
SESSION, NEW_SESSION = LeaseSessionId("session-1"), LeaseSessionId("session-2")
CHILDREN = frozenset({ShardId("child-1"), ShardId("child-2")})

FREE = Lease(key=LeaseKey("shard"), shard_id=ShardId("shard"), checkpoint=Position("100", 2), counter=7)
MINE = replace(FREE, owner=ME, session=SESSION)
PINNED = replace(MINE, pin=Pin(Position("200", 3), b"old state"))
IN_HANDOFF = replace(MINE, owner=OTHER, checkpoint_owner=ME)
NEW = Lease(
    key=LeaseKey("shard"),
    shard_id=ShardId("shard"),
    checkpoint=TRIM_HORIZON,
    parents=frozenset({ShardId("parent")}),
    hash_range=HashRange(0, 9),
    latest_at_ms=1_700_000_000_000,
)
KBPS = Decimal("1.5")
END = Position("300", 4)


def all_writes() -> Iterator[tuple[str, RowWrite]]:
    """Every rule, in every situation that changes its write."""
    rules = lease_rules
    yield "create", rules.create(NEW)
    yield "take, free", rules.take(FREE, ME, NEW_SESSION)
    yield "take, owned", rules.take(replace(MINE, owner=OTHER), ME, NEW_SESSION)
    yield "take, in handoff", rules.take(IN_HANDOFF, ME, NEW_SESSION)
    yield "begin session", rules.begin_session(MINE, ME, NEW_SESSION)
    yield "renew", rules.renew(MINE)
    yield "renew with throughput", rules.renew(MINE, KBPS)
    yield "renew in handoff", rules.renew(IN_HANDOFF)
    yield "nudge", rules.nudge(MINE, "random")
    yield "checkpoint", rules.checkpoint(MINE, END, KBPS)
    yield "checkpoint in handoff", rules.checkpoint(IN_HANDOFF, END)
    yield "prepare", rules.prepare(MINE, END)
    yield "prepare with state", rules.prepare(MINE, END, b"state")
    yield "pin", rules.pin(MINE, END, b"state", ("query", 5))
    yield "pin without state", rules.pin(MINE, END)
    yield "pin and promote", rules.pin(PINNED, END, b"state", ("query", 5))
    yield "pin in handoff", rules.pin(IN_HANDOFF, END, b"state")
    yield "repin", rules.repin(PINNED, b"state", ("query", 5))
    yield "promote", rules.promote(PINNED)
    yield "stamp", rules.stamp(MINE, ("query", 5))
    yield "finish", rules.finish(MINE, CHILDREN)
    yield "finish without children", rules.finish(MINE, frozenset())
    yield "assign, free", rules.assign(FREE, OTHER)
    yield "assign, owned", rules.assign(MINE, OTHER)
    yield "assign, in handoff", rules.assign(IN_HANDOFF, OTHER)
    yield "request handoff", rules.request_handoff(MINE, OTHER)
    yield "complete handoff", rules.complete_handoff(IN_HANDOFF)
    yield "decline handoff", rules.decline_handoff(IN_HANDOFF)
    yield "withdraw handoff", rules.withdraw_handoff(IN_HANDOFF)
    yield "release", rules.release(MINE)
    yield "release in handoff", rules.release(IN_HANDOFF)
    yield "release to", rules.release_to(MINE, OTHER)
    yield "release to, in handoff", rules.release_to(IN_HANDOFF, WorkerId("third"))
    yield "set children", rules.set_children(MINE, CHILDREN)
    yield "set hash range", rules.set_hash_range(MINE, HashRange(0, 9))
    root = Shard(ShardId("shard"), HashRange(0, 9), "1000")
    yield "restart", rules.restart(PINNED, root)
    yield "restart, child", rules.restart(PINNED, replace(root, parents=(ShardId("parent"),)))
    yield "reset", rules.reset(PINNED, Position("50", 1))
    yield "reset, in handoff", rules.reset(IN_HANDOFF, TRIM_HORIZON)
    yield "delete", rules.delete(MINE)
    yield "delete unused", rules.delete_unused(MINE)


def render_all() -> str:
    """The text of every write."""
    return "\n".join(line for name, write in all_writes() for line in _lines(name, write)).rstrip("\n")


def _lines(name: str, write: RowWrite) -> Iterator[str]:
    yield f"{name}: {write.key}"
    match write:
        case PutRow(row=row):
            yield from (f"  put    {key} = {_value(value)}" for key, value in sorted(row.items()))
        case UpdateRow(when=when, set=changes, remove=removed, add=added, proof=proof):
            yield from (f"  when   {_condition(each)}" for each in when)
            yield from (f"  set    {key} = {_value(value)}" for key, value in sorted(changes.items()))
            yield from (f"  remove {key}" for key in sorted(removed))
            yield from (f"  add    {key} + {number}" for key, number in sorted(added.items()))
            yield from (f"  proof  {_condition(each)}" for each in proof)
        case DeleteRow(when=when):
            yield from (f"  when   {_condition(each)}" for each in when)
    yield ""


def _condition(condition: Condition) -> str:
    match condition:
        case Equals(name, value):
            return f"{name} = {_value(value)}"
        case Absent(name):
            return f"{name} is absent"


def _value(value: Attribute) -> str:
    return repr(dict(value))


if __name__ == "__main__":
    print(render_all())
