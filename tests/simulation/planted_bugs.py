"""Planted bugs: small patches of the engine, each with the promise that it breaks. A checker that none of them trips
is not a checker.

Each is planted for the length of one run. Where bugs of other clients are known, they are among them: the second parent
that is ignored, the checkpoint before the handler, the clock on the wall, the end of a shard by someone who lost it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from leasehold.adapters.memory import rows as memory_rows
from leasehold.config.settings import FleetSettings, ReadSettings
from leasehold.core.assignment import peer_assignment
from leasehold.core.leases import lease_rules
from leasehold.core.leases.row_writes import Equals, UpdateRow
from leasehold.core.position import LATEST, Position
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.core.shards.lease_cleanup import CleanupPlan, DeleteLease, DeleteReason
from leasehold.core.shards.lease_creation import CreateChildren
from leasehold.fleet import held_lease
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.maintenance import shard_sync
from leasehold.fleet.maintenance.shard_sync import ShardSync
from leasehold.fleet.reading import chunking as slicing
from leasehold.fleet.reading import cursor
from leasehold.fleet.reading import shard_reader as reading
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.cursor import Cursor
from leasehold.fleet.table.lease_table import Contended, LeaseTable
from leasehold.simulation.faults import Fault
from leasehold.simulation.process import ProcessClock
from leasehold.simulation.virtual_time import START_WALL_MS
from leasehold.worker.batch_handler import _FunctionConsumer
from leasehold.worker.batching.batch_builder import BatchBuilder
from leasehold.worker.delivery.poison_disposal import PoisonDisposal
from leasehold.worker.delivery.retrying_consumer import RetryingConsumer
from leasehold.worker.engine.shard_server import ShardServer
from leasehold.worker.user_code.handler_runners import Returned

Original = Any  # what a patch replaces: a function, a method or a property


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One planted bug. `breaks` names the promises that may fall first; `faults` bring it to light soon."""

    name: str
    breaks: frozenset[str]
    faults: frozenset[Fault]
    plant: Callable[[], AbstractContextManager[None]]
    first_seed: int  # of the worlds to look for it in


@contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Original], Any]) -> Iterator[None]:
    original = owner.__dict__[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


PLANTED_BUGS: Final[dict[str, PlantedBug]] = {}


def _mutant(
    name: str,
    breaks: str,
    faults: tuple[Fault, ...],
    *patches: tuple[Any, str, Callable[[Original], Any]],
    first_seed: int = 0,
) -> None:
    @contextmanager
    def plant() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, attribute, make in patches:
                stack.enter_context(_replaced(owner, attribute, make))
            yield

    PLANTED_BUGS[name] = PlantedBug(name, frozenset(breaks.split()), frozenset(faults), plant, first_seed)


def _always(value: object) -> Callable[[Original], Any]:
    """A function that returns the same, whatever it is asked."""
    return lambda _: lambda *_, **__: value


def _nothing(_: Original) -> Any:
    async def do_nothing(*_: object, **__: object) -> None:
        pass

    return do_nothing


def _only_if_the_row_exists(write: UpdateRow) -> UpdateRow:
    return replace(write, when=(Equals("leaseKey", {"S": write.key}),))


_ZOMBIES: Final = (Fault.PAUSES, Fault.CRASHES, Fault.STALLS)
_MOVES: Final = (Fault.LEAVERS, Fault.CRASHES)
_RESHARDS: Final = (Fault.RESHARDS, Fault.STORMS)

# -- what the bugs do instead --------------------------------------------------------------------------------------


def _thrice(original: Original) -> Any:
    async def renew(self: HeldLease) -> None:
        for _ in range(3):
            await original(self)

    return renew


def _without_visitor(row: Any) -> Any:
    return row and {name: value for name, value in row.items() if name != "visitor"}


def _believing(original: Original) -> Any:
    async def take(self: LeaseTable, lease: Any, by: Any, session: Any) -> Any:
        outcome = await original(self, lease, by, session)
        if isinstance(outcome, Contended) and outcome.current is not None:
            return replace(outcome.current, owner=by, checkpoint_owner=None, session=session)
        return outcome

    return take


def _falling(active: Any, *_: object) -> list[Any]:
    return [active[len(active)]]


def _restless(active: Any, shares: Any, room: int, view: Any) -> list[Any]:
    richest = max(shares, key=lambda worker: (shares[worker], worker))
    theirs = [lease for lease in active if lease.owner == richest and not lease.is_in_handoff]
    return theirs[:1] if richest != view.me and shares[richest] > shares[view.me] else []


def _with_one_parent(lease: Any) -> Any:
    return replace(lease, parents=frozenset(sorted(lease.parents)[:1]))


def _first_parent_only(original: Original) -> Any:
    async def unfinished_parents(self: Any) -> Any:
        running = await original(self)
        return tuple(parent for parent in running if parent in _with_one_parent(self.lease).parents)

    return unfinished_parents


def _at_the_tip(plan: Any) -> Any:
    if not isinstance(plan, CreateChildren):
        return plan
    return replace(plan, leases=tuple(replace(lease, checkpoint=LATEST) for lease in plan.leases))


def _unleased(plan: Any) -> Any:
    return replace(plan, leases=()) if isinstance(plan, CreateChildren) else plan


def _end_first(original: Original) -> Any:
    async def finish(self: LeaseTable, lease: Any, plan: CreateChildren) -> Any:
        outcome = await original(self, lease, replace(plan, leases=()))
        for child in plan.leases:
            await self.create(child)
        return outcome

    return finish


def _delete_all(leases: Any) -> CleanupPlan:
    return CleanupPlan(delete=tuple(DeleteLease(lease.key, DeleteReason.GONE) for lease in leases))


async def _no_audit(self: ShardSync, before: Any, listing: Any) -> Any:
    return before


def _ending_early(original: Original) -> Any:
    async def read(self: Cursor, limit: int) -> Any:
        page, records = await original(self, limit)
        return (replace(page, next_iterator=None) if not page.records else page), records

    return read


def _without_broken(batch: Any) -> Any:
    bad = {incident.sequence_number for incident in batch.incidents}
    return replace(batch, records=tuple(each for each in batch.records if each.sequence_number not in bad))


def _greedy(original: Original) -> Any:
    return replace(original(None, 0, ReadSettings()), records_max=10_000)


def _checkpoint_first(original: Original) -> Any:
    async def take(self: Any, cut: Any) -> None:
        if cut.records:
            await self._held.checkpoint(cut.end)
        await original(self, cut)

    return take


async def _disposed(*_: object) -> bool:
    return True


def _leaving_a_task(original: Original) -> Any:
    async def serve(self: Any, held: Any) -> None:
        self.context.handler_slots.left_behind = asyncio.ensure_future(held.lost.wait())
        await original(self, held)

    return serve


# -- writes and their conditions -----------------------------------------------------------------------------------

_mutant(
    "writes without a condition",
    "stale-owners-stop checkpoints-never-go-back nothing-lost",
    (*_ZOMBIES, Fault.LATE),
    (
        lease_rules,
        "_own_write",
        lambda original: lambda *args, **kw: _only_if_the_row_exists(original(*args, **kw)),
    ),
)
_mutant(
    "taken whatever the counter says",
    "stale-owners-stop",
    (*_ZOMBIES, Fault.STALE),
    (lease_rules, "take", lambda original: lambda *args: _only_if_the_row_exists(original(*args))),
    first_seed=2,
)
_mutant(
    "a lost race counts as won",
    "stale-owners-stop runs-until-told-to-stop",
    (*_ZOMBIES, Fault.STALE),
    (LeaseTable, "take", _believing),
)


_mutant(
    "attributes of others are dropped",
    "unknown-attributes-survive",
    (Fault.HOSTILE,),
    (
        memory_rows,
        "next_row",
        lambda original: lambda *args: _without_visitor(original(*args)),
    ),
)
_mutant(
    "the sub-sequence number is not stored",
    "clean-handovers-repeat-nothing checkpoints-never-go-back",
    (Fault.AGGREGATES, Fault.LEAVERS, Fault.POISON),
    (lease_rules, "_at", lambda original: lambda at: original(Position(at.sequence_number))),
)

# -- who may own ---------------------------------------------------------------------------------------------------

_mutant(
    "live owners are robbed",
    "stale-owners-stop",
    (Fault.LEAVERS,),
    (
        peer_assignment,
        "_is_free",
        lambda original: (
            lambda lease, view, limits: original(lease, view, replace(limits, failover_ms=1_000))
        ),
    ),
)
_mutant(
    "the proof of a lease never lapses",
    "stale-owners-stop",
    _ZOMBIES,
    (HeldLease, "is_valid", _always(True)),
    (HeldLease, "wait_for_expiry", lambda _: lambda self: self.lost.wait()),
    first_seed=8,
)
_mutant(
    "the proof outlasts the failover time",
    "stale-owners-stop",
    (*_ZOMBIES, Fault.CUTS),
    (FleetSettings, "lease_valid_for", lambda _: property(lambda self: self.failover_after * 3)),
    first_seed=2,
)
_mutant(
    "the clock on the wall decides",
    "stale-owners-stop runs-until-told-to-stop every-shard-owned balanced-and-still comes-to-rest",
    (Fault.CLOCKS,),
    (ProcessClock, "now_ms", lambda _: lambda self: round(self._loop.time() * 1000) + self.wall_error_ms),
    (ProcessClock, "wall_ms", lambda _: lambda self: START_WALL_MS + self.now_ms()),
)
_mutant(
    "no heartbeat",
    "every-shard-owned balanced-and-still comes-to-rest stale-owners-stop lag-to-zero",
    (Fault.LEAVERS,),
    (HeldLease, "renew", _nothing),
)
_mutant(
    "nobody asks the richer one",
    "balanced-and-still comes-to-rest",
    (Fault.LEAVERS,),
    (peer_assignment, "_asks", _always([])),
)
_mutant(
    "one lease more is too rich",
    "balanced-and-still comes-to-rest",
    (Fault.LEAVERS,),
    (peer_assignment, "_asks", lambda _: _restless),
)


_mutant(
    "silent owners are waited for",
    "every-shard-owned",
    (Fault.CRASHES,),
    (peer_assignment, "_is_free", lambda _: lambda lease, _view, _limits: lease.owner is None),
)
_mutant(
    "a member falls over its own plan",
    "runs-until-told-to-stop",
    (Fault.LEAVERS,),
    (peer_assignment, "_asks", lambda _: _falling),
)
_mutant(
    "a twin's lease is ours",
    "stale-owners-stop",
    (Fault.TWINS, Fault.LEAVERS),
    (
        peer_assignment,
        "_is_given_to_us",
        lambda _: lambda lease, view: lease.owner == view.me and lease.key not in view.held,
    ),
)

# -- families of shards --------------------------------------------------------------------------------------------

_mutant(
    "children do not wait",
    "parents-before-children",
    (*_RESHARDS, Fault.SLUGGISH),
    (HeldLease, "wait_for_parents", _nothing),
    (peer_assignment, "unfinished_parents", _always(())),
)
_mutant(
    "the second parent is ignored",
    "parents-before-children",
    (*_RESHARDS, Fault.SLUGGISH),
    (HeldLease, "_running_parents", _first_parent_only),
    (
        peer_assignment,
        "unfinished_parents",
        lambda original: lambda lease, leases: original(_with_one_parent(lease), leases),
    ),
)


_mutant(
    "children begin at the tip",
    "nothing-lost order-within-an-ownership lag-to-zero comes-to-rest",
    _RESHARDS,
    (held_lease, "plan_children", lambda original: lambda *args, **kw: _at_the_tip(original(*args, **kw))),
)
_mutant(
    "children get no leases",
    "leases-cover-the-hash-range",
    _RESHARDS,
    (held_lease, "plan_children", lambda original: lambda *args, **kw: _unleased(original(*args, **kw))),
)


_mutant(
    "the end of a shard is written before its children",
    "leases-cover-the-hash-range",
    _RESHARDS,
    (LeaseTable, "finish", _end_first),
)


_mutant(
    "leases that are in use are cleaned away",
    "leases-cover-the-hash-range",
    _RESHARDS,
    (shard_sync, "plan_cleanup", lambda _: lambda leases, *_, **__: _delete_all(leases)),
)


_mutant(
    "nobody audits",
    "leases-cover-the-hash-range lag-to-zero comes-to-rest",
    (Fault.DELETIONS,),
    (ShardSync, "audit", lambda _: _no_audit),
)

# -- reading -------------------------------------------------------------------------------------------------------

_mutant(
    "a renewed iterator begins at the tip",
    "order-within-an-ownership nothing-lost",
    (Fault.ODDITIES, Fault.CUTS),
    (cursor, "replacement_start", _always(IteratorStart(IteratorKind.LATEST))),
)
_mutant(
    "an empty page is the end",
    "nothing-lost leases-cover-the-hash-range order-within-an-ownership",
    (Fault.ODDITIES,),
    (Cursor, "read", _ending_early),
)


_mutant(
    "trimmed records are passed over in silence",
    "losses-are-told",
    (Fault.TRIMS, *_MOVES),
    (cursor, "gap_before", _always(None)),
)


_mutant(
    "the rest of an aggregate is skipped",
    "order-within-an-ownership nothing-lost",
    (Fault.AGGREGATES, Fault.POISON, *_MOVES),
    (
        slicing,
        "records_after",
        lambda _: lambda users, at: tuple(user for user in users if int(user.sequence_number) > at.number),
    ),
)
_mutant(
    "the record at the checkpoint comes again",
    "order-within-an-ownership",
    _MOVES,
    (slicing, "records_after", lambda _: lambda users, _at: tuple(users)),
    (RetryingConsumer, "_skip_done", lambda _: lambda _self, _pending, to_try: to_try),
)
_mutant(
    "a renewed iterator repeats its record",
    "order-within-an-ownership",
    (Fault.ODDITIES,),
    (Cursor, "_without_repeats", lambda _: lambda _self, records: records),
    (RetryingConsumer, "_skip_done", lambda _: lambda _self, _pending, to_try: to_try),
)
_mutant(
    "broken aggregates are dropped",
    "nothing-lost order-within-an-ownership",
    (Fault.AGGREGATES,),
    (slicing, "deaggregate_all", lambda original: lambda *args: _without_broken(original(*args))),
)


_mutant(
    "shards are asked five times a second",
    "calls-within-budget",
    (),
    (reading, "next_call_ms", lambda _: lambda asked_ms, *_, **__: asked_ms + 200),
)
_mutant(
    "three heartbeats for one",
    "calls-within-budget",
    (),
    (HeldLease, "renew", _thrice),
    first_seed=6,
)
_mutant(
    "the byte budget is not waited for",
    "buffer-within-budget",
    (Fault.LARGE, Fault.SLUGGISH, Fault.FAILURES, Fault.CUTS),
    (ByteBudget, "_has_room_for", _always(True)),
    (reading, "call_size", lambda original: lambda *_, **__: _greedy(original)),
)


_mutant(
    "bytes are never given back",
    "lag-to-zero comes-to-rest balanced-and-still every-shard-owned",
    (Fault.LARGE,),
    (ByteBudget, "release", _always(None)),
)

# -- handlers and checkpoints --------------------------------------------------------------------------------------

_mutant(
    "the checkpoint comes before the handler",
    "no-checkpoint-past-an-unfinished-handler nothing-lost",
    (),
    (RetryingConsumer, "handle", _checkpoint_first),
)


_mutant(
    "a handler that failed is done",
    "nothing-lost order-within-an-ownership",
    (Fault.FAILURES,),
    (_FunctionConsumer, "_check_outcome", _always(Returned(None))),
)
_mutant(
    "poison is skipped in silence",
    "nothing-lost order-within-an-ownership",
    (Fault.POISON,),
    (PoisonDisposal, "dispose", lambda _: _disposed),
)


_mutant(
    "what is done is not stored on leaving",
    "clean-handovers-repeat-nothing",
    (Fault.LEAVERS, Fault.FAILURES),
    (ShardServer, "_store_remaining", _nothing),
)
_mutant(
    "a pin is not written",
    "sink-equals-produced",
    (*_MOVES, Fault.PAUSES),
    (HeldLease, "prepare_checkpoint", _nothing),
    first_seed=17,
)
_mutant(
    "a pin is not honoured",
    "sink-equals-produced",
    (*_MOVES, Fault.PAUSES),
    (BatchBuilder, "__init__", lambda original: lambda self, *args, **_: original(self, *args)),
    first_seed=21,
)

# -- stopping ------------------------------------------------------------------------------------------------------

_mutant(
    "nothing is released",
    "clean-stop every-shard-owned",
    (Fault.LEAVERS,),
    (HeldLease, "release", _nothing),
)
_mutant(
    "a task is left behind",
    "clean-stop",
    (),
    (ShardServer, "__call__", _leaving_a_task),
)
