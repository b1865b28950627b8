"""Planted bugs (mutants): small patches of the shipped code, each with the promises that it breaks.

A bug is planted for the duration of one run. They prove that the checkers work: each promise is broken by some bug.
Known bugs of other clients are among them: the second parent is ignored, the checkpoint is written before the handler
ran, the wall clock decides on liveness.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Final

from leasehold.adapters.memory import rows as memory_rows
from leasehold.archive import rows as archive_rows
from leasehold.archive import shard_rows
from leasehold.archive.archive import Archive
from leasehold.archive.compaction import Compactor
from leasehold.archive.listings import Listing
from leasehold.config.settings import FleetSettings, Mode, ReadSettings, Retrieval
from leasehold.core.assignment import leader_assignment, peer_assignment
from leasehold.core.exactly_once import pinned_batch
from leasehold.core.exactly_once.archive_plan import ArchivedRanges
from leasehold.core.exactly_once.archive_reading import ObjectPart
from leasehold.core.exactly_once.position_ranges import Range
from leasehold.core.leases import lease_rules
from leasehold.core.leases.row_writes import Equals, UpdateRow
from leasehold.core.position import LATEST, Position
from leasehold.core.records.iterators import IteratorKind, IteratorStart
from leasehold.core.records.keyed_window import KeyedWindow
from leasehold.core.records.record_columns import as_user_records
from leasehold.core.shards import shard_graph
from leasehold.core.shards.lease_cleanup import CleanupPlan, DeleteLease, DeleteReason
from leasehold.core.shards.lease_creation import CreateChildren
from leasehold.errors import AccessDeniedError, ConfigError, LeaseholdError
from leasehold.fleet import held_lease
from leasehold.fleet.assignment import leader_election
from leasehold.fleet.held_lease import HeldLease
from leasehold.fleet.held_leases import HeldLeases
from leasehold.fleet.lease_writer import LeaseWriter
from leasehold.fleet.maintenance import lease_maintenance, shard_sync
from leasehold.fleet.maintenance.shard_sync import ShardSync
from leasehold.fleet.operations import Operations
from leasehold.fleet.reading import chunking as slicing
from leasehold.fleet.reading import polling_reader, read_position, subscription_reader
from leasehold.fleet.reading.byte_budget import ByteBudget
from leasehold.fleet.reading.cursor import Cursor
from leasehold.fleet.reading.read_ahead import ChunkWriter
from leasehold.fleet.reading.read_position import ReadPosition
from leasehold.fleet.table.lease_table import Contended, LeaseTable
from leasehold.ports import Created
from leasehold.simulation.checkers.unknown_attributes import FOREIGN_ATTRIBUTE
from leasehold.simulation.environment.fan_out import ProcessSubscription
from leasehold.simulation.environment.objects import Put, SimulatedObjects
from leasehold.simulation.environment.process import ProcessClock
from leasehold.simulation.environment.query_history import CommittedBatch
from leasehold.simulation.environment.streams import StreamChoice
from leasehold.simulation.faults import Fault
from leasehold.simulation.runtime import Runtime
from leasehold.simulation.starts import Start
from leasehold.simulation.virtual_time import START_WALL_MS
from leasehold.simulation.world import World
from leasehold.spark.query import batch_planner, log_comparison, pinned_slices
from leasehold.spark.query.idle_probe import IdleProbe
from leasehold.worker.batch_handler import _FunctionConsumer
from leasehold.worker.batching.batch_builder import BatchBuilder
from leasehold.worker.checkpointing.checkpoints import Checkpoints
from leasehold.worker.delivery import retrying_consumer
from leasehold.worker.delivery.poison_disposal import PoisonDisposal
from leasehold.worker.delivery.poison_search import Bisect, Poison
from leasehold.worker.delivery.retrying_consumer import RetryingConsumer
from leasehold.worker.delivery.served_shard import ServedShard
from leasehold.worker.engine.shard_server import ShardServer
from leasehold.worker.record_handler import RecordConsumer
from leasehold.worker.user_code.handler_runners import Returned

Original = Any  # the function, method or property that a patch replaces


@dataclass(frozen=True, slots=True)
class PlantedBug:
    """One planted bug. Any of the promises in `breaks` may be broken first; `faults` make it show soon."""

    name: str
    breaks: frozenset[str]
    faults: frozenset[Fault]
    plant: Callable[[], AbstractContextManager[None]]
    first_seed: int  # the first seed that the test tries
    runtime: Runtime
    mode: Mode
    retrieval: Retrieval
    start: Start
    streams: StreamChoice
    has_load: bool
    is_concurrent: bool
    has_compaction: bool


@contextmanager
def _replace_attribute(owner: Any, name: str, make: Callable[[Original], Any]) -> Iterator[None]:
    original = owner.__dict__[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)


PLANTED_BUGS: Final[dict[str, PlantedBug]] = {}


def _plant(
    name: str,
    breaks: str,
    faults: tuple[Fault, ...],
    *patches: tuple[Any, str, Callable[[Original], Any]],
    first_seed: int = 0,
    runtime: Runtime = Runtime.WORKER,
    mode: Mode = Mode.PEER,
    retrieval: Retrieval = Retrieval.POLLING,
    start: Start = Start.OLDEST,
    streams: StreamChoice = StreamChoice.ONE,
    has_load: bool = False,
    is_concurrent: bool = False,
    has_compaction: bool = False,
) -> None:
    @contextmanager
    def planted() -> Iterator[None]:
        with ExitStack() as stack:
            for owner, attribute, make in patches:
                stack.enter_context(_replace_attribute(owner, attribute, make))
            yield

    PLANTED_BUGS[name] = PlantedBug(
        name,
        frozenset(breaks.split()),
        frozenset(faults),
        planted,
        first_seed,
        runtime,
        mode,
        retrieval,
        start,
        streams,
        has_load,
        is_concurrent,
        has_compaction,
    )


def _always(value: object) -> Callable[[Original], Any]:
    """Make a function that always returns this value."""
    return lambda _: lambda *_, **__: value


def _do_nothing(_: Original) -> Any:
    async def do_nothing(*_: object, **__: object) -> None:
        pass

    return do_nothing


def _only_if_the_row_exists(write: UpdateRow) -> UpdateRow:
    return replace(write, when=(Equals("leaseKey", {"S": write.key}),))


_SILENCES: Final = (Fault.PAUSES, Fault.CRASHES, Fault.STALLS)
_OWNER_CHANGES: Final = (Fault.MEMBERSHIP, Fault.CRASHES)
_RESHARDS: Final = (Fault.RESHARDS, Fault.RESHARD_STORMS)


def _count_as_finished_up_to(original: Original) -> Any:
    def finish(self: KeyedWindow, number: int) -> None:
        original(self, number)
        self._first_unfinished = max(self._first_unfinished, number + 1)

    return finish


def _with_a_key_for_each_record(original: Original) -> Any:
    def add(self: KeyedWindow, keys: Iterable[str]) -> None:
        original(self, [f"{key}:{number}" for number, key in enumerate(keys, self._added)])

    return add


def _dispose_at_once(_: Original) -> Any:
    async def dispose(self: RecordConsumer, _number: int, failed: Any, error: Exception) -> bool:
        return await self._poison.dispose(failed, error)

    return dispose


def _delete_small_objects_first(original: Original) -> Any:
    async def create(self: Compactor, group: Any, body: bytes, rows: int) -> None:
        for each in group.objects:
            await self._store.delete(each.name)
        await original(self, group, body, rows)

    return create


def _all_objects(_: Original) -> Any:
    def parts_to_read(keys: Iterable[Any], *_: object) -> list[ObjectPart]:
        return [ObjectPart(key) for key in sorted(keys, key=lambda key: key.range.first)]

    return parts_to_read


# -- what the bugs do --------------------------------------------------------------------------------------


def _three_times(original: Original) -> Any:
    async def renew(self: HeldLease) -> None:
        for _ in range(3):
            await original(self)

    return renew


def _without_unknown_attribute(row: Any) -> Any:
    return row and {name: value for name, value in row.items() if name != FOREIGN_ATTRIBUTE}


def _ignore_lost_race(original: Original) -> Any:
    async def take(self: LeaseTable, lease: Any, by: Any, session: Any) -> Any:
        outcome = await original(self, lease, by, session)
        if isinstance(outcome, Contended) and outcome.current is not None:
            return replace(outcome.current, owner=by, checkpoint_owner=None, session=session)
        return outcome

    return take


def _raise_index_error(active: Any, *_: object) -> list[Any]:
    return [active[len(active)]]


def _ask_for_one_too_many(active: Any, shares: Any, view: Any, _: object) -> list[Any]:
    richest = max(shares, key=lambda worker: (shares[worker], worker))
    theirs = [lease for lease in active if lease.owner == richest and not lease.is_in_handoff]
    return theirs[:1] if richest != view.me and shares[richest] > shares[view.me] else []


def _with_one_parent(lease: Any) -> Any:
    return replace(lease, parents=frozenset(sorted(lease.parents)[:1]))


def _only_first_parent(original: Original) -> Any:
    async def parents_ended(self: Any) -> Any:
        parents = await original(self)
        return {parent: parents[parent] for parent in _with_one_parent(self.lease).parents}

    return parents_ended


def _children_at_latest(plan: Any) -> Any:
    if not isinstance(plan, CreateChildren):
        return plan
    return replace(plan, leases=tuple(replace(lease, checkpoint=LATEST) for lease in plan.leases))


def _without_children(plan: Any) -> Any:
    return replace(plan, leases=()) if isinstance(plan, CreateChildren) else plan


def _finish_before_children(original: Original) -> Any:
    async def finish(self: LeaseTable, lease: Any, plan: CreateChildren) -> Any:
        outcome = await original(self, lease, replace(plan, leases=()))
        for child in plan.leases:
            await self.create(child)
        return outcome

    return finish


def _delete_all(leases: Any) -> CleanupPlan:
    return CleanupPlan(delete=tuple(DeleteLease(lease.key, DeleteReason.GONE) for lease in leases))


async def _skip_audit(self: ShardSync, before: Any, listing: Any, shards: Any) -> Any:
    return before


def _end_on_empty_page(original: Original) -> Any:
    async def read(self: Cursor, limit: int) -> Any:
        page, records = await original(self, limit)
        return (replace(page, next_iterator=None) if not page.records else page), records

    return read


_LOST: Final[list[str]] = []


def _note_lost_events(original: Original) -> Any:
    """Note the continuation of every event, also of those that are lost on the way."""

    async def wait_for_event(self: ProcessSubscription) -> Any:
        event = await original(self)
        _LOST[:] = [event.continuation] if event.continuation else []
        return event

    return wait_for_event


def _after_lost_event() -> IteratorStart | None:
    return IteratorStart(IteratorKind.AFTER_SEQUENCE_NUMBER, _LOST[0]) if _LOST else None


def _without_children_of_event(original: Original) -> Any:
    async def write(self: ChunkWriter, records: Any, *, children: Any, **arguments: Any) -> None:
        await original(self, records, children=None if children is None else (), **arguments)

    return write


def _without_corrupt(batch: Any) -> Any:
    bad = {incident.sequence_number for incident in batch.incidents}
    good = [each for each in batch.records if each.sequence_number not in bad]
    return replace(batch, records=as_user_records(good))


def _ten_thousand_records(original: Original) -> Any:
    return replace(original(None, 0, ReadSettings()), records_max=10_000)


def _checkpoint_before_handler(original: Original) -> Any:
    async def take(self: Any, pending: Any) -> None:
        if pending.records:
            await self._held.checkpoint(pending.end)
        await original(self, pending)

    return take


async def _skip_silently(*_: object) -> bool:
    return True


def _leave_a_task(original: Original) -> Any:
    async def serve(self: Any, held: Any) -> None:
        self.context.handler_slots.left_behind = asyncio.ensure_future(held.lost.wait())
        await original(self, held)

    return serve


def _no_ranges(_: Original) -> Any:
    return lambda self, _shard: ArchivedRanges(self.from_minute, {}, None)


def _named_by_first_record(original: Original) -> Any:
    def range_of(table: Any) -> Range:
        first = original(table).first
        return Range(first, first)

    return range_of


def _ignore_condition(original: Original) -> Any:
    def put_if_absent(self: SimulatedObjects, key: str, body: bytes, by: Any) -> Any:
        before = self.bodies.pop(key, None)
        created = original(self, key, body, by)
        self.on_put(Put(self._now_ms(), key, body, before, body, by))
        return created

    return put_if_absent


async def _put_once(self: Archive, key: str, body: bytes, part: Any) -> bool:
    return isinstance(await self._retry(lambda: self.store.put_if_absent(key, body)), Created)


def _count_from_response(original: Original) -> Any:
    async def attempt(self: LeaseWriter, write: Any) -> bool:
        is_applied = bool(await original(self, write))
        if is_applied:
            self._last_write = replace(self._last_write, at_ms=self._operations.clock.now_ms())
        return is_applied

    return attempt


def _poison_instead_of_bisecting(original: Original) -> Any:
    def decide(*args: Any) -> Any:
        decision = original(*args)
        return Poison() if isinstance(decision, Bisect) else decision

    return decide


def _store_in_background(original: Original) -> Any:
    async def try_to_store(self: PoisonDisposal, letter: Any) -> str | None:
        setattr(self._context.handler_slots, "left_behind", asyncio.ensure_future(original(self, letter)))  # noqa: B010
        return None

    return try_to_store


async def _deliver_without_pin(_plan: Any, _ports: Any, end: Any, _fetched: Any) -> Any:
    return pinned_slices.Pinned(end, None)


def _date_latest_by_monotonic_clock(_: Original) -> Any:
    async def create_now(self: ShardSync, lease: Any) -> Any:
        if lease.checkpoint == LATEST and lease.latest_at_ms is None:
            lease = replace(lease, latest_at_ms=self.operations.clock.now_ms())
        return await self.table.create(lease)

    return create_now


async def _read_all_at_once(_planner: Any) -> bool:
    return True


def _ignore_is_consistent(original: Original) -> Any:
    async def list_leases(self: LeaseTable, **arguments: Any) -> Any:
        return await original(self, **{**arguments, "is_consistent": False})

    return list_leases


def _store_under_a_new_name(original: Original) -> Any:
    def store(self: World, committed: CommittedBatch) -> None:
        original(self, replace(committed, batch=committed.batch + 1_000_000 * len(self.query.sink)))

    return store


# -- writes and their conditions -----------------------------------------------------------------------------------

_plant(
    "writes without a condition",
    "stale-owners-stop checkpoints-never-go-back nothing-lost",
    (*_SILENCES, Fault.LATE_CALLS),
    (
        lease_rules,
        "_own_write",
        lambda original: lambda *args, **kw: _only_if_the_row_exists(original(*args, **kw)),
    ),
)
_plant(
    "a lease is taken without checking the counter",
    "stale-owners-stop",
    (*_SILENCES, Fault.STALE_READS),
    (lease_rules, "take", lambda original: lambda *args: _only_if_the_row_exists(original(*args))),
    first_seed=2,
)
_plant(
    "a lost race counts as won",
    "stale-owners-stop runs-until-stopped",
    (*_SILENCES, Fault.STALE_READS),
    (LeaseTable, "take", _ignore_lost_race),
)
_plant(
    "unknown attributes are dropped",
    "unknown-attributes-survive",
    (Fault.BAD_ROWS,),
    (
        memory_rows,
        "next_row",
        lambda original: lambda *args: _without_unknown_attribute(original(*args)),
    ),
)
_plant(
    "the sub-sequence number is not stored",
    "clean-handoffs-repeat-nothing checkpoints-never-go-back",
    (Fault.AGGREGATES, Fault.MEMBERSHIP, Fault.POISON_RECORDS),
    (lease_rules, "_at", lambda original: lambda at: original(Position(at.sequence_number))),
)

# -- ownership ---------------------------------------------------------------------------------------------------

_plant(
    "leases of live owners are taken",
    "stale-owners-stop",
    (Fault.MEMBERSHIP,),
    (
        peer_assignment,
        "_is_free",
        lambda original: (
            lambda lease, view, limits: original(lease, view, replace(limits, failover_ms=1_000))
        ),
    ),
)
_plant(
    "a lease is valid forever",
    "delivers-while-valid stale-owners-stop",
    _SILENCES,
    (LeaseWriter, "is_valid", _always(True)),
    (HeldLease, "wait_for_expiry", lambda _: lambda self: self.lost.wait()),
    first_seed=8,
)
_plant(
    "a lease is valid for longer than the failover time",
    "stale-owners-stop",
    (*_SILENCES, Fault.PARTITIONS),
    (FleetSettings, "lease_valid_for", lambda _: property(lambda self: self.failover_after * 3)),
    first_seed=2,
)
_plant(
    "the wall clock decides on liveness",
    "stale-owners-stop runs-until-stopped every-shard-owned balanced-and-stable reaches-steady-state",
    (Fault.CLOCK_JUMPS,),
    (ProcessClock, "now_ms", lambda _: lambda self: round(self._loop.time() * 1000) + self.wall_error_ms),
    (ProcessClock, "wall_ms", lambda _: lambda self: START_WALL_MS + self.now_ms()),
)
_plant(
    "no heartbeat",
    "every-shard-owned balanced-and-stable reaches-steady-state stale-owners-stop lag-to-zero",
    (Fault.MEMBERSHIP,),
    (HeldLease, "renew", _do_nothing),
)
_plant(
    "no handoff is requested",
    "balanced-and-stable reaches-steady-state",
    (Fault.MEMBERSHIP,),
    (peer_assignment, "_requests", _always([])),
)
_plant(
    "a handoff is requested for a difference of one",
    "balanced-and-stable reaches-steady-state",
    (Fault.MEMBERSHIP,),
    (peer_assignment, "_requests", lambda _: _ask_for_one_too_many),
)
_plant(
    "leases of silent owners are never taken",
    "every-shard-owned",
    (Fault.CRASHES,),
    (peer_assignment, "_is_free", lambda _: lambda lease, _view, _limits: lease.owner is None),
)
_plant(
    "planning raises an error",
    "runs-until-stopped",
    (Fault.MEMBERSHIP,),
    (peer_assignment, "_requests", lambda _: _raise_index_error),
)
_plant(
    "a lease of another process with our id counts as ours",
    "stale-owners-stop",
    (Fault.DUPLICATE_IDS, Fault.MEMBERSHIP),
    (
        peer_assignment,
        "_is_ours_to_begin",
        lambda _: lambda lease, view: lease.owner == view.me and lease.key not in view.held,
    ),
)

_plant(
    "the validity of a lease counts from the response",
    "delivers-while-valid stale-owners-stop",
    (Fault.SLOW_CALLS, Fault.LATE_CALLS, Fault.PARTITIONS, Fault.PAUSES, Fault.STALLS),
    (LeaseWriter, "_attempt", _count_from_response),
)
_plant(
    "the leader lock is taken from a live leader",
    "one-leader-at-a-time",
    (Fault.MEMBERSHIP,),
    (leader_election, "may_acquire", _always(True)),
    mode=Mode.LEADER,
)

# -- parents and children --------------------------------------------------------------------------------------------

_plant(
    "children do not wait for their parents",
    "parents-before-children",
    (*_RESHARDS, Fault.SLOW_HANDLERS),
    (HeldLease, "wait_for_parents", _do_nothing),
    (shard_graph, "unfinished_parents", _always(())),
)
_plant(
    "the second parent is ignored",
    "parents-before-children",
    (*_RESHARDS, Fault.SLOW_HANDLERS),
    (HeldLease, "_parents_ended", _only_first_parent),
    (
        shard_graph,
        "unfinished_parents",
        lambda original: lambda lease, leases: original(_with_one_parent(lease), leases),
    ),
)
_plant(
    "children start at LATEST",
    "nothing-lost order-within-a-session lag-to-zero reaches-steady-state",
    _RESHARDS,
    (
        held_lease,
        "plan_children",
        lambda original: lambda *args, **kw: _children_at_latest(original(*args, **kw)),
    ),
)
_plant(
    "children get no leases",
    "leases-cover-the-hash-range",
    _RESHARDS,
    (
        held_lease,
        "plan_children",
        lambda original: lambda *args, **kw: _without_children(original(*args, **kw)),
    ),
)
_plant(
    "a shard is finished before its children exist",
    "leases-cover-the-hash-range",
    _RESHARDS,
    (LeaseTable, "finish", _finish_before_children),
)
_plant(
    "cleanup deletes leases in use",
    "leases-cover-the-hash-range",
    _RESHARDS,
    (shard_sync, "plan_cleanup", lambda _: lambda leases, *_, **__: _delete_all(leases)),
)
_plant(
    "audits are skipped",
    "leases-cover-the-hash-range lag-to-zero reaches-steady-state",
    (Fault.DELETIONS,),
    (ShardSync, "audit", lambda _: _skip_audit),
)

# -- reading -------------------------------------------------------------------------------------------------------

_plant(
    "a renewed iterator starts at LATEST",
    "order-within-a-session nothing-lost",
    (Fault.STREAM_QUIRKS, Fault.PARTITIONS),
    (read_position, "replacement_start", _always(IteratorStart(IteratorKind.LATEST))),
)
_plant(
    "an empty page ends the shard",
    "nothing-lost leases-cover-the-hash-range order-within-a-session",
    (Fault.STREAM_QUIRKS,),
    (Cursor, "read", _end_on_empty_page),
)
_plant(
    "trimmed records are not reported",
    "losses-are-reported",
    (Fault.TRIMS, *_OWNER_CHANGES),
    (read_position, "gap_before", _always(None)),
)
_plant(
    "the rest of an aggregate is skipped",
    "order-within-a-session nothing-lost",
    (Fault.AGGREGATES, Fault.POISON_RECORDS, *_OWNER_CHANGES),
    (
        slicing,
        "records_after",
        lambda _: lambda users, at: users.after_number(at.number),
    ),
)
_plant(
    "the record at the checkpoint is delivered again",
    "order-within-a-session",
    _OWNER_CHANGES,
    (slicing, "records_after", lambda _: lambda users, _at: users),
    (RetryingConsumer, "_skip_done", lambda _: lambda _self, _pending, to_try: to_try),
)
_plant(
    "a renewed iterator repeats its record",
    "order-within-a-session",
    (Fault.STREAM_QUIRKS,),
    (ReadPosition, "_without_repeats", lambda _: lambda _self, records: records),
    (RetryingConsumer, "_skip_done", lambda _: lambda _self, _pending, to_try: to_try),
)
_plant(
    "corrupt aggregates are dropped",
    "nothing-lost order-within-a-session",
    (Fault.AGGREGATES,),
    (slicing, "deaggregate_all", lambda original: lambda *args: _without_corrupt(original(*args))),
)
_plant(
    "shards are polled five times a second",
    "calls-within-budget",
    (),
    (polling_reader, "next_call_ms", lambda _: lambda asked_ms, *_, **__: asked_ms + 200),
)
_plant(
    "each heartbeat is written three times",
    "calls-within-budget",
    (),
    (HeldLease, "renew", _three_times),
    first_seed=6,
)
_plant(
    "the byte budget is ignored",
    "buffer-within-budget",
    (Fault.LARGE_RECORDS, Fault.SLOW_HANDLERS, Fault.HANDLER_FAILURES, Fault.PARTITIONS),
    (ByteBudget, "_has_room_for", _always(True)),
    (polling_reader, "call_size", lambda original: lambda *_, **__: _ten_thousand_records(original)),
)
_plant(
    "bytes are never returned to the budget",
    "lag-to-zero reaches-steady-state balanced-and-stable every-shard-owned",
    (Fault.LARGE_RECORDS,),
    (ByteBudget, "release", _always(None)),
)

# -- enhanced fan-out ----------------------------------------------------------------------------------------------

_plant(
    "a renewed subscription starts at LATEST",
    "order-within-a-session nothing-lost",
    (Fault.STREAM_QUIRKS,),
    (read_position, "subscription_start", _always(IteratorStart(IteratorKind.LATEST))),
    retrieval=Retrieval.FAN_OUT,
)
_plant(
    "a renewed subscription ignores the continuation",
    "order-within-a-session",
    (Fault.STREAM_QUIRKS,),
    (read_position, "subscription_start", _always(IteratorStart(IteratorKind.TRIM_HORIZON))),
    (ReadPosition, "_without_repeats", lambda _: lambda _self, records: records),
    (RetryingConsumer, "_skip_done", lambda _: lambda _self, _pending, to_try: to_try),
    retrieval=Retrieval.FAN_OUT,
)
_plant(
    "the continuation of a lost event is used",
    "order-within-a-session nothing-lost",
    (Fault.STREAM_QUIRKS,),
    (ProcessSubscription, "_wait_for_event", _note_lost_events),
    (read_position, "subscription_start", lambda _: lambda _progress: _after_lost_event()),
    retrieval=Retrieval.FAN_OUT,
)
_plant(
    "the children of an event are dropped",
    "leases-cover-the-hash-range nothing-lost",
    _RESHARDS,
    (ChunkWriter, "write", _without_children_of_event),
    retrieval=Retrieval.FAN_OUT,
)
_plant(
    "a lost subscription stays open beside the next one",
    "one-subscription-a-shard",
    (Fault.STREAM_QUIRKS,),
    (ProcessSubscription, "close", _do_nothing),
    retrieval=Retrieval.FAN_OUT,
)
_plant(
    "a silent subscription is not abandoned",
    "lag-to-zero reaches-steady-state every-shard-owned balanced-and-stable",
    (Fault.STREAM_QUIRKS, Fault.PARTITIONS),
    (subscription_reader, "SILENCE_MAX_MS", lambda _: 10**9),
    retrieval=Retrieval.FAN_OUT,
)

# -- handlers and checkpoints --------------------------------------------------------------------------------------

_plant(
    "the checkpoint is written before the handler runs",
    "no-checkpoint-past-an-unfinished-handler nothing-lost",
    (),
    (RetryingConsumer, "handle", _checkpoint_before_handler),
)
_plant(
    "a failed handler counts as done",
    "nothing-lost order-within-a-session",
    (Fault.HANDLER_FAILURES,),
    (_FunctionConsumer, "_check_outcome", _always(Returned(None))),
)
_plant(
    "poison records are skipped silently",
    "nothing-lost order-within-a-session",
    (Fault.POISON_RECORDS,),
    (PoisonDisposal, "dispose", lambda _: _skip_silently),
)
_plant(
    "a whole batch is dead-lettered",
    "dead-letters-hold-the-poison",
    (Fault.POISON_RECORDS,),
    (retrying_consumer, "decide_after_failure", _poison_instead_of_bisecting),
)
_plant(
    "a dead letter is stored in the background",
    "dead-letters-hold-the-poison nothing-lost order-within-a-session",
    (Fault.POISON_RECORDS, Fault.SLOW_CALLS, Fault.LOST_CALLS),
    (PoisonDisposal, "_try_to_store", _store_in_background),
    first_seed=10,
)
_plant(
    "done records are not checkpointed before a release",
    "clean-handoffs-repeat-nothing",
    (Fault.MEMBERSHIP, Fault.HANDLER_FAILURES),
    (Checkpoints, "store_before_release", _do_nothing),
)
_plant(
    "a pin is not written",
    "sink-equals-produced",
    (*_OWNER_CHANGES, Fault.PAUSES),
    (HeldLease, "prepare_checkpoint", _do_nothing),
    first_seed=17,
)
_plant(
    "a pin is ignored",
    "sink-equals-produced",
    (*_OWNER_CHANGES, Fault.PAUSES),
    (BatchBuilder, "__init__", lambda original: lambda self, *args, **_: original(self, *args)),
    first_seed=21,
)
_plant(
    "a prepared batch is split or dead-lettered",
    "sink-equals-produced",
    (Fault.HANDLER_FAILURES,),
    (ServedShard, "is_prepared", lambda _: lambda *_: False),
)
_plant(
    "the next owner handles a record that was being dead-lettered",
    "sink-equals-produced",
    (Fault.HANDLER_FAILURES, Fault.CRASHES),
    (PoisonDisposal, "interrupted", lambda _: None),
    first_seed=17,
)

# -- stopping ------------------------------------------------------------------------------------------------------

_plant(
    "leases are not released on stop",
    "clean-stop every-shard-owned",
    (Fault.MEMBERSHIP,),
    (HeldLease, "release", _do_nothing),
)
_plant(
    "a task survives the stop",
    "clean-stop",
    (),
    (ShardServer, "__call__", _leave_a_task),
)

_plant(
    "the monotonic clock stops while the machine is suspended",
    "delivers-while-valid stale-owners-stop one-leader-at-a-time",
    (Fault.SUSPENSIONS,),
    (ProcessClock, "now_ms", lambda original: lambda self: original(self) - self.suspended_ms),
)

# -- the archive ---------------------------------------------------------------------------------------------------

_plant(
    "the archive is not listed",
    "archive-equals-produced",
    (Fault.DELETIONS, Fault.CRASHES),
    (Listing, "of", _no_ranges),
    runtime=Runtime.ARCHIVE,
)
_plant(
    "objects are written before their range is pinned",
    "pinned-before-written",
    (),
    (HeldLease, "prepare_checkpoint", _do_nothing),
    runtime=Runtime.ARCHIVE,
)
_plant(
    "objects are named by their first record",
    "names-have-one-content archive-equals-produced",
    (*_OWNER_CHANGES, Fault.PAUSES, Fault.SLOW_CALLS, Fault.LOST_CALLS),
    (archive_rows, "range_of", _named_by_first_record),
    (Listing, "of", _no_ranges),
    (BatchBuilder, "__init__", lambda original: lambda self, *args, **_: original(self, *args)),
    first_seed=7,
    runtime=Runtime.ARCHIVE,
)
_plant(
    "the store ignores the condition of a put",
    "objects-are-never-replaced",
    (*_OWNER_CHANGES, Fault.DUPLICATE_CALLS),
    (SimulatedObjects, "put_if_absent", _ignore_condition),
    runtime=Runtime.ARCHIVE,
)
_plant(
    "an object counts as written although it does not exist",
    "nothing-lost lag-to-zero",
    (Fault.STORE_CONFLICTS,),
    (Archive, "_create", lambda _: _put_once),
    runtime=Runtime.ARCHIVE,
)

_plant(
    "small objects are deleted before the large one exists",
    "readers-see-each-record-once",
    (),
    (Compactor, "_create", _delete_small_objects_first),
    runtime=Runtime.ARCHIVE,
    has_compaction=True,
)
_plant(
    "a reader reads small objects beside the large one",
    "readers-see-each-record-once",
    (),
    (shard_rows, "parts_to_read", _all_objects),
    runtime=Runtime.ARCHIVE,
    has_compaction=True,
)

# -- Spark queries -------------------------------------------------------------------------------------------------

_plant(
    "a task delivers rows before it pins them",
    "pinned-before-delivered",
    (),
    (pinned_slices, "_pin", lambda _: _deliver_without_pin),
    runtime=Runtime.SPARK,
)
_plant(
    "every attempt pins its own end",
    "batch-ends-never-move checkpoints-never-go-back repeated-batches-are-identical stale-owners-stop",
    (Fault.SLOW_CALLS, Fault.LATE_CALLS, Fault.SLOW_HANDLERS),
    (lease_rules, "pin", lambda original: lambda *args, **kw: _only_if_the_row_exists(original(*args, **kw))),
    runtime=Runtime.SPARK,
)
_plant(
    "a task delivers rows beyond the pinned end",
    # Of the records that it has beyond the pinned number, it delivers the newest: so it also skips some.
    "nothing-lost pinned-before-written repeated-batches-are-identical",
    (Fault.SLOW_CALLS, Fault.SLOW_HANDLERS, Fault.CRASHES),
    (pinned_slices._Fetched, "up_to", lambda _: lambda self, _end: self.records),
    runtime=Runtime.SPARK,
)
_plant(
    "rows of a task are out of order",
    "rows-in-order",
    (),
    (pinned_slices._Fetched, "up_to", lambda original: lambda self, end: original(self, end)[::-1]),
    runtime=Runtime.SPARK,
)
_plant(
    "trimmed records do not stop a query",
    "data-loss-stops-the-query",
    (Fault.TRIMS, Fault.CRASHES),
    (pinned_slices._Losses, "_refuse", _always(None)),
    runtime=Runtime.SPARK,
)
_plant(
    "an old checkpoint location is not noticed",
    "old-logs-are-refused",
    (Fault.OLD_LOGS,),
    (pinned_batch, "latest_generation", _always(None)),
    (batch_planner, "latest_generation", _always(None)),
    first_seed=17,
    runtime=Runtime.SPARK,
)
_plant(
    "a lease behind the log is not noticed",
    "committed-rows-are-not-repeated batches-equal-produced",
    (Fault.DELETIONS,),
    (log_comparison, "find_lost_leases", _always([])),
    (batch_planner, "compare_lease", _always(None)),
    runtime=Runtime.SPARK,
)
_plant(
    "the log is compared with a list that lacks the newest writes",
    "runs-until-stopped",
    (Fault.STALE_READS, Fault.CRASHES),
    (LeaseTable, "list", _ignore_is_consistent),
    first_seed=10,
    runtime=Runtime.SPARK,
)
_plant(
    "LATEST is dated by the monotonic clock",
    "begins-at-the-initial-position",
    (),
    (ShardSync, "_create_now", _date_latest_by_monotonic_clock),
    runtime=Runtime.SPARK,
    start=Start.LATEST,
)
_plant(
    "a bounded run ends before it has read all",
    "bounded-runs-read-all",
    (Fault.RESHARDS,),
    (batch_planner.BatchPlanner, "has_read_all_available", lambda _: _read_all_at_once),
    first_seed=27,
    runtime=Runtime.SPARK,
)
_plant(
    "an idle query plans batches",
    "idle-queries-plan-nothing",
    (),
    (IdleProbe, "_has_new_records", _always(True)),
    runtime=Runtime.SPARK,
)
_plant(
    "the sink stores a repeated batch again",
    "batches-equal-produced",
    (Fault.CRASHES, Fault.DUPLICATE_IDS),
    (World, "_store_batch", _store_under_a_new_name),
    first_seed=10,
    runtime=Runtime.SPARK,
)
_plant(
    "a query does not wait for parents",
    "parents-before-children",
    (*_RESHARDS, Fault.SLOW_HANDLERS),
    (HeldLease, "wait_for_parents", _do_nothing),
    (shard_graph, "unfinished_parents", _always(())),
    runtime=Runtime.SPARK,
)
_plant(
    "parents are looked for by their shard ids, without the stream",
    "parents-before-children",
    (Fault.RESHARDS, Fault.SLOW_HANDLERS),
    (shard_graph, "lease_key", lambda original: lambda shard, _: original(shard)),
    (held_lease, "lease_key", lambda original: lambda shard, _: original(shard)),
    streams=StreamChoice.SEVERAL,
)
_plant(
    "the leases of a stream that is not listed any more are kept",
    "former-streams-are-given-back",
    (Fault.STREAM_CHANGES,),
    (HeldLeases, "drain_unless", _always(None)),
    streams=StreamChoice.FUNCTION,
)
_plant(
    "the leases of a former stream are deleted at once",
    "former-streams-are-given-back leases-cover-the-hash-range",
    (Fault.STREAM_CHANGES, Fault.MEMBERSHIP),
    (
        lease_maintenance,
        "leases_to_delete",
        lambda _: lambda unused, leases, *_: [each for each in leases if each.key in unused],
    ),
    first_seed=5,
    streams=StreamChoice.LISTED,
)


def _raise_refusals(_: Original) -> Any:
    async def attempt(self: Operations, name: str, operation: Any) -> bool:
        async def call() -> None:
            try:
                await operation()
            except AccessDeniedError as error:
                raise ConfigError(str(error)) from error

        try:
            await call()
        except ConfigError:
            raise
        except LeaseholdError as error:
            self.report_failure(name, error)
            return False
        return True

    return attempt


_plant(
    "a member that is denied access ends",
    "runs-until-stopped",
    (Fault.REFUSALS,),
    (Operations, "attempt", _raise_refusals),
)
_plant(
    "failed operations are not reported",
    "refusals-are-told",
    (Fault.REFUSALS,),
    (Operations, "report_failure", _always(None)),
)
_plant(
    "the leader moves no lease of a busy worker",
    "busy-workers-are-relieved",
    (),
    (leader_assignment, "plan_moves", _always([])),
    mode=Mode.LEADER,
    has_load=True,
)

_plant(
    "the checkpoint follows the last finished record of a concurrent handler",
    "nothing-lost no-checkpoint-past-an-unfinished-handler",
    (),
    (KeyedWindow, "finish", _count_as_finished_up_to),
    is_concurrent=True,
)
_plant(
    "two records of one partition key are handled at the same time",
    "order-by-key",
    (),
    (KeyedWindow, "add", _with_a_key_for_each_record),
    is_concurrent=True,
)
_plant(
    "a poison record is pinned before the records before it are done",
    "dead-letters-hold-the-poison nothing-lost",
    (Fault.POISON_RECORDS, Fault.CRASHES, Fault.SLOW_HANDLERS),
    (RecordConsumer, "_dispose", _dispose_at_once),
    first_seed=40,
    is_concurrent=True,
)
_plant(
    "a concurrent handler starts nothing more before a release",
    "clean-handoffs-repeat-nothing",
    (Fault.MEMBERSHIP,),
    (KeyedWindow, "_may_start", lambda _: lambda self, _number: not self._is_draining),
    (KeyedWindow, "is_drained", lambda _: property(lambda self: self._is_draining and not self._running)),
    is_concurrent=True,
)
