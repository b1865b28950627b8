"""Carries out faults in a simulated world. A fault with a duration also schedules its own end.

Invariant: the order of random draws, and of `INJECTIONS`, is part of what a seed means.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from leasehold.config.settings import milliseconds
from leasehold.core.leases.lease_row import COUNTER, ENTITY_TYPE, KEY, OWNER_SWITCHES, PARENTS
from leasehold.core.leases.row_writes import Attribute, Row, number, text
from leasehold.kinesis_model.api_errors import KinesisApiError
from leasehold.kinesis_model.shard import ShardState
from leasehold.simulation.checkers.unknown_attributes import FOREIGN, FOREIGN_ATTRIBUTE
from leasehold.simulation.environment.network import CallFault, Dependency, Partition
from leasehold.simulation.environment.process import ProcessState, Role, SimulatedProcess
from leasehold.simulation.environment.streams import StreamChoice
from leasehold.simulation.environment.trace import WORLD, short_shard
from leasehold.simulation.faults import Fault
from leasehold.simulation.world import World

Injection = Callable[["FaultInjector"], None]

_MALFORMED_SHARD: Final = "shardId-999999999999"
# Longer than a late request takes to arrive.
_TABLE_LOST_AFTER_MS: Final = 10_000
_BETWEEN_TABLE_LOSSES_MS: Final = 30_000
_RESTART_AFTER_MS: Final = 3_000
# Attributes with a wrong type, as a careless script may write them.
_DAMAGE: Final[Mapping[str, Attribute]] = {
    OWNER_SWITCHES: text("many"),
    PARENTS: text("shardId-000000000000"),
    COUNTER: text("none"),
}


@dataclass(slots=True)
class TableLoss:
    """A loss of the whole lease table. The archive allows it only while no member runs."""

    is_under_way: bool = False
    next_ms: int = 0  # not before this time
    backup: Sequence[Row] = ()


class RestartedQuery(Protocol):
    """A Spark query that is restarted whenever its driver ends, unless it is held."""

    is_held: bool

    @property
    def running(self) -> Sequence[SimulatedProcess]: ...
    def start(self) -> None: ...
    def ensure_running(self) -> None: ...
    def keep_one_driver(self) -> None: ...
    def back_up_log(self) -> None: ...
    def has_old_log(self) -> bool: ...
    def put_back_old_log(self) -> None: ...
    def delete_log(self) -> None: ...
    def run_continuously(self) -> None: ...


class FaultInjector:
    """Injects faults into one world, and remembers what to repair."""

    def __init__(
        self, world: World, *, workers: int, shards_max: int, query: RestartedQuery | None = None
    ) -> None:
        self.world = world
        self.query = query
        self.workers = workers
        self.shards_max = shards_max
        self.rng = world.spec.rng_for("acts")
        self.counts: dict[str, int] = {}
        self.has_ended = False
        self.table_loss = TableLoss()
        self._repairs: dict[str, Callable[[], None]] = {}
        world.on_ended = self._restart_ended

    def inject_one(self) -> None:
        """Inject one of the faults of this seed, if it has any."""
        is_plain = self.query is None and not self.world.is_archived
        injections = dict(INJECTIONS if is_plain else {**INJECTIONS, **ARCHIVE_INJECTIONS})
        if self.world.settings.fan_out.is_fan_out:
            injections |= FAN_OUT_INJECTIONS
        chosen = [
            inject for fault in injections if self.world.spec.mix.has(fault) for inject in injections[fault]
        ]
        if chosen:
            self.rng.choice(chosen)(self)

    def record(self, what: str, shard: str = "", detail: str = "") -> None:
        """Count a fault and add it to the trace."""
        self.counts[what] = self.counts.get(what, 0) + 1
        self.world.trace.add(WORLD, what, shard, detail)

    def call_later(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Run an action after a delay, unless all faults have ended by then."""
        self.world.services.network.call_later(delay_ms, lambda: None if self.has_ended else action())

    def pick_process(self) -> SimulatedProcess | None:
        """Choose a running process."""
        running = [each for each in self.world.running if each.state is ProcessState.RUNNING]
        return self.rng.choice(running) if running else None

    def pick_stream(self) -> str:
        """Choose a stream."""
        names = self.world.services.streams.names
        return self.rng.choice(names) if len(names) > 1 else names[0]

    def describe_stream(self, stream: str) -> str:
        """Return the name of a stream for the trace, if the run has several."""
        is_only = self.world.services.streams.plan.choice is StreamChoice.ONE
        return "" if is_only else f"{stream} "

    def end_all(self) -> None:
        """End all faults: resume processes, repair rows, and start or stop processes until the number is right."""
        self.has_ended = True
        world = self.world
        world.services.clear_faults()
        for process in world.processes:
            process.steps_left = None
            process.resume()
        for repair in self._repairs.values():
            repair()
        self._repairs.clear()
        for name in sorted(world.services.streams.unlisted):
            end_leaving_out(self, name)
        self._kill_duplicate_ids()
        for process in world.running_workers[self.workers :]:
            world.stop(process)
        for _ in range(self.workers - len(world.running_workers)):
            world.start()
        if self.query is not None:
            self.query.is_held = False
            self.query.run_continuously()
            self.query.keep_one_driver()
            self.query.ensure_running()
        world.trace.add(WORLD, "faults end")

    def repair_row_later(self, key: str, repair: Callable[[], None]) -> None:
        """Repair a row after some seconds, or when all faults end."""

        def repair_once() -> None:
            if self._repairs.pop(key, None) is not None:
                repair()

        self._repairs[key] = repair
        self.call_later(self.rng.randint(2_000, 20_000), repair_once)

    def is_damaged(self, key: str) -> bool:
        """Return whether a row is damaged and not yet repaired."""
        return key in self._repairs

    def start_replacement(self, process: SimulatedProcess) -> None:
        """Start another worker some time later, with the same worker id or a new one. Spark replaces its processes."""
        if process.role is not Role.WORKER:
            return
        worker = process.worker if self.rng.random() < 0.5 else None
        self.call_later(self.rng.choice((100, 2_000, 15_000)), lambda: self._start(worker))

    def may_start(self) -> bool:
        """Return whether another process may be started."""
        is_possible = self.workers > 0 and not self.table_loss.is_under_way
        return is_possible and len(self.world.running_workers) < self.workers + 2

    def _start(self, worker: str | None) -> None:
        if self.may_start():
            self.world.start(worker)

    def _restart_ended(self, process: SimulatedProcess) -> None:
        """Start a worker again that ended by itself, as a service manager does: it was denied access at its start."""
        if process.role is not Role.WORKER or process.is_stopping:
            return

        def restart() -> None:
            is_missing = not self.has_ended or len(self.world.running_workers) < self.workers
            if is_missing and not any(each.worker == process.worker for each in self.world.running_workers):
                self._start(process.worker)

        self.world.services.network.call_later(_RESTART_AFTER_MS, restart)

    def _kill_duplicate_ids(self) -> None:
        seen: set[str] = set()
        for process in self.world.running_workers:
            if process.worker in seen:
                process.kill()
            seen.add(process.worker)


# -- processes -----------------------------------------------------------------------------------------------------


def crash(injector: FaultInjector) -> None:
    """Kill a process now."""
    process = injector.pick_process()
    if process is not None:
        injector.record("kill", "", process.name)
        process.kill()
        injector.start_replacement(process)


def crash_at_random_step(injector: FaultInjector) -> None:
    """Kill a process after a random number of steps."""
    process = injector.pick_process()
    if process is not None and process.steps_left is None:
        injector.record("kill soon", "", process.name)
        process.steps_left = injector.rng.randint(0, 300)
        injector.start_replacement(process)


def pause(injector: FaultInjector) -> None:
    """Pause a process for about the failover time or longer."""
    process = injector.pick_process()
    if process is not None:
        failover_ms = milliseconds(injector.world.settings.fleet.failover_after)
        length_ms = int(failover_ms * injector.rng.uniform(0.8, 2.5))
        injector.record("pause", "", f"{process.name} for {length_ms} ms")
        process.pause()
        injector.call_later(length_ms, process.resume)


def suspend(injector: FaultInjector) -> None:
    """Suspend the machine of a process for about the failover time or longer."""
    process = injector.pick_process()
    if process is None:
        return
    failover_ms = milliseconds(injector.world.settings.fleet.failover_after)
    length_ms = int(failover_ms * injector.rng.uniform(0.3, 4))
    injector.record("suspend", "", f"{process.name} for {length_ms} ms")
    process.pause()

    def resume() -> None:
        process.clock.note_suspension(length_ms)
        process.resume()

    injector.call_later(length_ms, resume)


def stall(injector: FaultInjector) -> None:
    """Block the event loop of a process for a short time."""
    process = injector.pick_process()
    if process is not None:
        length_ms = injector.rng.randint(200, 4_000)
        injector.record("stall", "", f"{process.name} for {length_ms} ms")
        process.pause()
        injector.call_later(length_ms, process.resume)


def jump_clock(injector: FaultInjector) -> None:
    """Set the wall clock of a process."""
    process = injector.pick_process()
    if process is not None:
        process.clock.wall_error_ms = injector.rng.choice((-3_600_000, -20_000, 0, 20_000, 3_600_000))
        injector.record("clock jump", "", f"{process.name} off by {process.clock.wall_error_ms} ms")


def start_duplicate_id(injector: FaultInjector) -> None:
    """Start a second process with a worker id that is in use."""
    process = injector.pick_process()
    if process is None:
        return
    if process.role is Role.WORKER:
        if injector.may_start():
            duplicate = injector.world.start(process.worker)
            injector.record("same id", "", f"{duplicate.name} as {process.name}")
    elif injector.query is not None and len(injector.query.running) == 1:
        injector.record("two drivers")
        injector.query.start()


def stop_member(injector: FaultInjector) -> None:
    """Stop a process cleanly."""
    process = injector.pick_process()
    if process is not None:
        injector.record("stop", "", process.name)
        injector.world.stop(process)
        injector.start_replacement(process)


def join(injector: FaultInjector) -> None:
    """Start another process."""
    if injector.may_start():
        injector.record("join")
        injector.world.start()


# -- the network ---------------------------------------------------------------------------------------------------


def throttle(injector: FaultInjector) -> None:
    """Refuse most calls to a dependency for some seconds."""
    throttling = [Dependency.LEASES, Dependency.STREAM]
    if injector.world.is_archived:
        throttling.append(Dependency.OBJECTS)
    dependency = injector.rng.choice(throttling)
    chances = injector.world.services.network.conditions.throttle_chances
    chances[dependency] = injector.rng.uniform(0.3, 0.95)
    injector.record("throttle", "", f"{dependency.value} {chances[dependency]:.0%}")
    injector.call_later(injector.rng.randint(1_000, 15_000), lambda: chances.update({dependency: 0.0}))


def partition(injector: FaultInjector) -> None:
    """Lose all requests, or all responses, between a dependency and one process or all processes."""
    _partition(injector, CallFault.REQUEST_LOST, CallFault.RESPONSE_LOST)


def refuse(injector: FaultInjector) -> None:
    """Let a dependency deny access to one process or all processes for some seconds."""
    _partition(injector, CallFault.REFUSED)


def _partition(injector: FaultInjector, *faults: CallFault) -> None:
    process = injector.pick_process() if injector.rng.random() < 0.8 else None
    fault = injector.rng.choice(faults)
    reached = [each for each in Dependency if injector.world.is_archived or each is not Dependency.OBJECTS]
    made = Partition(process, injector.rng.choice(reached), fault)
    partitions = injector.world.services.network.conditions.partitions
    partitions.append(made)
    affected = process.name if process else "all processes"
    injector.record("partition", "", f"{affected} from {made.dependency.value}, {fault.value}")
    injector.call_later(injector.rng.randint(1_000, 25_000), lambda: partitions.remove(made))


# -- shards --------------------------------------------------------------------------------------------------------


def split(injector: FaultInjector) -> None:
    """Split an open shard."""
    stream = injector.pick_stream()
    shards = injector.world.services.streams.state(stream).open_shards
    if len(shards) < injector.shards_max:
        _split(injector, stream, injector.rng.choice(shards))


def merge(injector: FaultInjector) -> None:
    """Merge two adjacent shards."""
    stream = injector.pick_stream()
    shards = injector.world.services.streams.state(stream).open_shards
    if len(shards) > 1:
        lower = injector.rng.randrange(len(shards) - 1)
        _merge(injector, stream, shards[lower], shards[lower + 1])


def split_and_merge(injector: FaultInjector) -> None:
    """Split a shard, and merge its children soon after."""
    stream = injector.pick_stream()
    state = injector.world.services.streams.state(stream)
    shards = state.open_shards
    if len(shards) < injector.shards_max:
        shard = injector.rng.choice(shards)
        _split(injector, stream, shard)
        children = [state.shards[child] for child in shard.children]
        if len(children) == 2:
            delay_ms = injector.rng.choice((1, 500, 3_000))
            injector.call_later(delay_ms, lambda: _merge(injector, stream, *children))


def scale(injector: FaultInjector) -> None:
    """Change the number of shards in one call."""
    services, stream = injector.world.services, injector.pick_stream()
    now = len(services.streams.state(stream).open_shards)
    target = injector.rng.randint(max(1, (now + 1) // 2), min(injector.shards_max, 2 * now))
    try:
        services.kinesis.update_shard_count(services.clock.wall_ms(), stream, target)
    except KinesisApiError:
        return
    injector.record("scale", "", f"{injector.describe_stream(stream)}from {now} to {target} shards")


def _split(injector: FaultInjector, stream: str, shard: ShardState) -> None:
    services, hash_range = injector.world.services, shard.hash_range
    if hash_range.end - hash_range.start < 8:
        return
    middle = injector.rng.randint(hash_range.start + 2, hash_range.end - 2)
    services.kinesis.split_shard(services.clock.wall_ms(), stream, shard.id, middle)
    key = services.streams.key_of(stream, shard.id)
    injector.record("split", key, "into " + " ".join(map(short_shard, shard.children)))


def _merge(injector: FaultInjector, stream: str, lower: ShardState, upper: ShardState) -> None:
    services = injector.world.services
    key = services.streams.key_of(stream, lower.id)
    is_current = services.streams.find_shard(key) is lower and stream in services.streams.names
    if not (is_current and lower.is_open and upper.is_open):
        return
    services.kinesis.merge_shards(services.clock.wall_ms(), stream, lower.id, upper.id)
    injector.record("merge", key, f"with {short_shard(upper.id)} into {short_shard(lower.children[0])}")


def trim(injector: FaultInjector) -> None:
    """Remove all records so far from a stream, read or not."""
    world, stream = injector.world, injector.pick_stream()
    injector.record("trim", "", injector.describe_stream(stream))
    world.shards_were_trimmed = True
    for shard_ledger in world.ledger.of_stream(world.services.streams.id_of(stream)):
        shard_ledger.trim()
    world.services.streams.state(stream).trim_all_records()


def delete_consumer(injector: FaultInjector) -> None:
    """Delete the registered consumer, as an operator may by mistake."""
    services, stream = injector.world.services, injector.pick_stream()
    for name in services.streams.state(stream).consumers:
        injector.record("no consumer", "", f"{injector.describe_stream(stream)}{name}")
        services.kinesis.deregister_consumer(services.clock.wall_ms(), stream, name)
        return


# -- streams -------------------------------------------------------------------------------------------------------


def create_stream(injector: FaultInjector) -> None:
    """Create a stream."""
    streams = injector.world.services.streams
    if streams.may_create():
        name, shards = streams.next_name(), injector.rng.randint(1, 3)
        injector.record("new stream", "", f"{name}, {shards} shards")
        streams.create(name, shards, injector.world.clock.wall_ms())


def delete_stream(injector: FaultInjector) -> None:
    """Delete a stream. Its records that are not done are lost."""
    world, streams = injector.world, injector.world.services.streams
    if len(streams.names) > 1:
        name = injector.pick_stream()
        injector.record("delete stream", "", name)
        for shard_ledger in world.ledger.of_stream(streams.id_of(name)):
            shard_ledger.lose_open()
        streams.delete(name)


def leave_stream_out(injector: FaultInjector) -> None:
    """Let the user's function leave a stream out, until it names the stream again."""
    streams = injector.world.services.streams
    if len(streams.followed) > 1:
        name = injector.rng.choice(streams.followed)
        injector.record("not listed", "", name)
        streams.unlisted.add(name)
        injector.call_later(injector.rng.randint(1_000, 30_000), lambda: list_again(injector, name))


def list_again(injector: FaultInjector, name: str) -> None:
    """Let the user's function name a stream again."""
    streams = injector.world.services.streams
    if name in streams.unlisted:
        injector.record("listed again", "", name)
        streams.unlisted.discard(name)


def end_leaving_out(injector: FaultInjector, name: str) -> None:
    """Let the user's function name a stream again, or never again. Then its records need not be done."""
    world = injector.world
    if injector.rng.random() < 0.5:
        list_again(injector, name)
        return
    world.services.streams.leave_out(name)
    for shard_ledger in world.ledger.of_stream(world.services.streams.id_of(name)):
        shard_ledger.lose_open()


def change_streams(injector: FaultInjector) -> None:
    """Let a stream appear or disappear, as the members of this run can see it."""
    match injector.world.services.streams.plan.choice:
        case StreamChoice.LISTED:
            injector.rng.choice((create_stream, delete_stream))(injector)
        case StreamChoice.FUNCTION:
            leave_stream_out(injector)


# -- rows ----------------------------------------------------------------------------------------------------------


def delete_row(injector: FaultInjector) -> None:
    """Delete the row of a random lease."""
    keys = sorted(lease.key for lease in injector.world.services.leases())
    if keys:
        key = injector.rng.choice(keys)
        injector.record("delete row", key)
        injector.world.destroy_row(key)


def delete_all_rows(injector: FaultInjector) -> None:
    """Delete every row."""
    injector.record("delete all")
    for row in injector.world.services.table.rows():
        injector.world.destroy_row(row[KEY]["S"])


def back_up_table(injector: FaultInjector) -> None:
    """Copy every row, as a backup of the table does. A damaged row would never be repaired after it was restored."""
    rows = injector.world.services.table.rows()
    injector.table_loss.backup = [row for row in rows if not injector.is_damaged(row[KEY]["S"])]


def lose_table(injector: FaultInjector) -> None:
    """End all processes, then delete the lease table or restore a backup of it, then start all processes."""
    loss, now_ms = injector.table_loss, injector.world.now_ms()
    if loss.is_under_way or now_ms < loss.next_ms:
        return
    loss.is_under_way, loss.next_ms = True, now_ms + _BETWEEN_TABLE_LOSSES_MS
    backup = injector.rng.choice(((), loss.backup))
    injector.record("table lost", "", f"in {_TABLE_LOST_AFTER_MS} ms, {len(backup)} rows are restored")
    if injector.query is not None:
        injector.query.is_held = True
    for process in injector.world.processes:
        process.kill()
    injector.call_later(_TABLE_LOST_AFTER_MS, lambda: _replace_table(injector, backup))


def _replace_table(injector: FaultInjector, backup: Sequence[Row]) -> None:
    injector.table_loss.is_under_way = False
    delete_all_rows(injector)
    for row in backup:
        injector.world.overwrite_row(row[KEY]["S"], row)
    for _ in range(injector.workers):
        injector.world.start()
    if injector.query is not None:
        injector.query.is_held = False
        injector.query.ensure_running()


def back_up_log(injector: FaultInjector) -> None:
    """Copy the checkpoint location of the query."""
    if injector.query is not None:
        injector.query.back_up_log()


def put_back_old_log(injector: FaultInjector) -> None:
    """End the query, replace its checkpoint location by an older copy, and start it."""
    query = injector.query
    if query is not None and not query.is_held and query.has_old_log():
        _end_query(injector, query, "old log", query.put_back_old_log)


def delete_log(injector: FaultInjector) -> None:
    """End the query, delete its checkpoint location, and start it. It starts over as another query."""
    query = injector.query
    if query is not None and not query.is_held:
        _end_query(injector, query, "delete log", query.delete_log)


def _end_query(
    injector: FaultInjector, query: RestartedQuery, what: str, change_log: Callable[[], None]
) -> None:
    """End the query, change its checkpoint location once no process of it is left, and start it."""
    query.is_held, is_clean = True, injector.rng.random() < 0.5
    injector.record(what, "", "after a clean stop" if is_clean else "after a crash")
    for process in query.running:
        if is_clean:
            injector.world.stop(process)
        else:
            process.kill()

    def start_with_changed_log() -> None:
        for process in injector.world.processes:
            if process.role is not Role.WORKER:
                process.kill()
        change_log()
        query.is_held = False
        query.ensure_running()

    injector.call_later(_TABLE_LOST_AFTER_MS, start_with_changed_log)


def add_malformed_row(injector: FaultInjector) -> None:
    """Write a row that looks like a lease but cannot be parsed, until it is repaired."""
    world = injector.world
    key = world.services.streams.key_of(injector.pick_stream(), _MALFORMED_SHARD)
    if injector.is_damaged(key):
        return
    injector.record("bad row")
    world.overwrite_row(key, {KEY: text(key), COUNTER: number(-1)})
    injector.repair_row_later(key, lambda: world.overwrite_row(key, None))


def add_foreign_row(injector: FaultInjector) -> None:
    """Write a row with an unknown entity type."""
    key = f"foreign-{injector.rng.randrange(3)}"
    if injector.world.services.table.get(key) is None:
        injector.record("foreign row", "", key)
        row = {KEY: text(key), ENTITY_TYPE: FOREIGN, "note": text("any value")}
        injector.world.overwrite_row(key, row)


def add_attribute(injector: FaultInjector) -> None:
    """Add an unknown attribute to a random row."""
    rows = sorted(injector.world.services.table.rows(), key=lambda row: str(row[KEY]["S"]))
    if rows:
        row = injector.rng.choice(rows)
        injector.record("attribute", row[KEY]["S"])
        injector.world.overwrite_row(row[KEY]["S"], {**row, FOREIGN_ATTRIBUTE: text("any value")})


def damage_row(injector: FaultInjector) -> None:
    """Damage one attribute of a random lease, until it is repaired."""
    leases = injector.world.services.leases()
    keys = sorted(lease.key for lease in leases if not injector.is_damaged(lease.key))
    if not keys:
        return
    key, name = injector.rng.choice(keys), injector.rng.choice(sorted(_DAMAGE))
    row = injector.world.services.table.get(key)
    assert row is not None
    injector.record("damage", key, name)
    injector.world.overwrite_row(key, {**row, name: _DAMAGE[name]})
    injector.repair_row_later(key, lambda: _repair(injector, key, name, row.get(name)))


def _repair(injector: FaultInjector, key: str, name: str, value: Attribute | None) -> None:
    row: Row | None = injector.world.services.table.get(key)
    if row is None:
        return
    injector.record("repair", key, name)
    others = {each: row[each] for each in row if each != name}
    injector.world.overwrite_row(key, others if value is None else {**others, name: value})


INJECTIONS: Final[Mapping[Fault, tuple[Injection, ...]]] = {
    Fault.THROTTLING: (throttle,),
    Fault.PARTITIONS: (partition,),
    Fault.CRASHES: (crash, crash_at_random_step, crash_at_random_step),
    Fault.PAUSES: (pause,),
    Fault.STALLS: (stall,),
    Fault.CLOCK_JUMPS: (jump_clock,),
    Fault.DUPLICATE_IDS: (start_duplicate_id,),
    Fault.MEMBERSHIP: (stop_member, join),
    Fault.RESHARDS: (split, merge),
    Fault.RESHARD_STORMS: (split_and_merge, merge, scale),
    Fault.BAD_ROWS: (add_malformed_row, add_foreign_row, add_attribute, damage_row),
    Fault.TRIMS: (trim,),
    Fault.DELETIONS: (delete_row, delete_row, delete_all_rows),
    Fault.SUSPENSIONS: (suspend,),
    Fault.REFUSALS: (refuse,),
    Fault.STREAM_CHANGES: (change_streams,),
}
# In runs that read by enhanced fan-out.
FAN_OUT_INJECTIONS: Final[Mapping[Fault, tuple[Injection, ...]]] = {Fault.STREAM_QUIRKS: (delete_consumer,)}
# A lease table may not be lost while members of it run: see docs/archive.md.
ARCHIVE_INJECTIONS: Final[Mapping[Fault, tuple[Injection, ...]]] = {
    Fault.OLD_LOGS: (back_up_log, put_back_old_log, delete_log),
    Fault.DELETIONS: (back_up_table, lose_table),
}
