"""What each fault does to the world. An act that begins something also arranges its end; `heal` ends everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from leasehold.config.settings import milliseconds
from leasehold.core.leases.lease_row import COUNTER, ENTITY_TYPE, KEY, OWNER_SWITCHES, PARENTS
from leasehold.core.leases.row_writes import Attribute, Row, number, text
from leasehold.kinesis_model.api_errors import KinesisApiError
from leasehold.kinesis_model.shard import ShardState
from leasehold.simulation.checkers.unknown_attributes import FOREIGN
from leasehold.simulation.faults import Fault
from leasehold.simulation.network import CallFault, Dependency, Partition
from leasehold.simulation.process import ProcessState, SimulatedProcess
from leasehold.simulation.trace import WORLD, short_shard
from leasehold.simulation.world import STREAM, World

Act = Callable[["FaultInjector"], None]

_HOSTILE_KEY: Final = "shardId-999999999999"
# Damaged values of attributes, as a careless script might leave them.
_DAMAGE: Final[Mapping[str, Attribute]] = {
    OWNER_SWITCHES: text("many"),
    PARENTS: text("shardId-000000000000"),
    COUNTER: text("none"),
}


class FaultInjector:
    """Does things to one world, and remembers what must be undone."""

    def __init__(self, world: World, *, workers: int, shards_max: int) -> None:
        self.world = world
        self.workers = workers
        self.shards_max = shards_max
        self.rng = world.rng_for("acts")
        self.counts: dict[str, int] = {}
        self.is_healed = False
        self._repairs: dict[str, Callable[[], None]] = {}

    def act(self) -> None:
        """Let one of the faults of this seed happen, if there are any."""
        chosen = [act for fault, acts in ACTS.items() if self.world.mix.has(fault) for act in acts]
        if chosen:
            self.rng.choice(chosen)(self)

    def note(self, what: str, shard: str = "", detail: str = "") -> None:
        """Count an act, and tell of it."""
        self.counts[what] = self.counts.get(what, 0) + 1
        self.world.trace.add(WORLD, what, shard, detail)

    def after(self, delay_ms: float, action: Callable[[], None]) -> None:
        """Do something later, unless all is healed by then."""
        self.world.call_later(delay_ms, lambda: None if self.is_healed else action())

    def some_process(self) -> SimulatedProcess | None:
        """One of those that run."""
        running = [each for each in self.world.running if each.state is ProcessState.RUNNING]
        return self.rng.choice(running) if running else None

    def heal(self) -> None:
        """The end of all faults: the network clears up, the paused wake, rows are repaired, the dead are replaced."""
        self.is_healed = True
        world = self.world
        world.network.conditions.clear_faults()
        world.quirks.expired_chance = world.quirks.empty_chance = 0.0
        world.table.stale_chance = 0.0
        for process in world.processes:
            process.steps_left = None
            process.resume()
        for repair in self._repairs.values():
            repair()
        self._repairs.clear()
        self._part_twins()
        for process in world.running[self.workers :]:
            world.stop(process)
        for _ in range(self.workers - len(world.running)):
            world.start()
        world.trace.add(WORLD, "healed")

    def repair_row_later(self, key: str, repair: Callable[[], None]) -> None:
        """Undo damage to a row after a while, or when all is healed."""

        def once() -> None:
            if self._repairs.pop(key, None) is not None:
                repair()

        self._repairs[key] = repair
        self.after(self.rng.randint(2_000, 20_000), once)

    def is_damaged(self, key: str) -> bool:
        """Whether a row waits for its repair."""
        return key in self._repairs

    def replace(self, process: SimulatedProcess) -> None:
        """Whoever went is followed by another, with the same id or with a new one."""
        worker = process.worker if self.rng.random() < 0.5 else None
        self.after(self.rng.choice((100, 2_000, 15_000)), lambda: self._start(worker))

    def _start(self, worker: str | None) -> None:
        if len(self.world.running) < self.workers + 2:
            self.world.start(worker)

    def _part_twins(self) -> None:
        seen: set[str] = set()
        for process in self.world.running:
            if process.worker in seen:
                process.kill()
            seen.add(process.worker)


# -- processes -----------------------------------------------------------------------------------------------------


def crash(acts: FaultInjector) -> None:
    """Kill a process now."""
    process = acts.some_process()
    if process is not None:
        acts.note("kill", "", process.name)
        process.kill()
        acts.replace(process)


def crash_at_some_step(acts: FaultInjector) -> None:
    """Kill a process in the middle of whatever it does next."""
    process = acts.some_process()
    if process is not None and process.steps_left is None:
        acts.note("kill soon", "", process.name)
        process.steps_left = acts.rng.randint(0, 300)
        acts.replace(process)


def pause(acts: FaultInjector) -> None:
    """Stop a process for longer than others wait for it, and let it go on."""
    process = acts.some_process()
    if process is not None:
        failover_ms = milliseconds(acts.world.settings.fleet.failover_after)
        length_ms = int(failover_ms * acts.rng.uniform(0.8, 2.5))
        acts.note("pause", "", f"{process.name} for {length_ms} ms")
        process.pause()
        acts.after(length_ms, process.resume)


def stall(acts: FaultInjector) -> None:
    """Keep the event loop of a process busy for a while."""
    process = acts.some_process()
    if process is not None:
        length_ms = acts.rng.randint(200, 4_000)
        acts.note("stall", "", f"{process.name} for {length_ms} ms")
        process.pause()
        acts.after(length_ms, process.resume)


def jump_clock(acts: FaultInjector) -> None:
    """Set the wall clock of a process."""
    process = acts.some_process()
    if process is not None:
        process.clock.wall_error_ms = acts.rng.choice((-3_600_000, -20_000, 0, 20_000, 3_600_000))
        acts.note("clock", "", f"{process.name} off by {process.clock.wall_error_ms} ms")


def start_twin(acts: FaultInjector) -> None:
    """Start a second process with a worker id that is in use."""
    process = acts.some_process()
    if process is not None and len(acts.world.running) < acts.workers + 2:
        twin = acts.world.start(process.worker)
        acts.note("twin", "", f"{twin.name} of {process.name}")


def leave(acts: FaultInjector) -> None:
    """Stop a process in good order."""
    process = acts.some_process()
    if process is not None:
        acts.note("leave", "", process.name)
        acts.world.stop(process)
        acts.replace(process)


def join(acts: FaultInjector) -> None:
    """Start another process."""
    if len(acts.world.running) < acts.workers + 2:
        acts.note("join")
        acts.world.start()


# -- the network ---------------------------------------------------------------------------------------------------


def throttle(acts: FaultInjector) -> None:
    """Refuse most calls to a dependency for a while."""
    dependency = acts.rng.choice((Dependency.LEASES, Dependency.STREAM))
    throttle_chances = acts.world.network.conditions.throttle_chances
    throttle_chances[dependency] = acts.rng.uniform(0.3, 0.95)
    acts.note("throttle", "", f"{dependency.value} {throttle_chances[dependency]:.0%}")
    acts.after(acts.rng.randint(1_000, 15_000), lambda: throttle_chances.update({dependency: 0.0}))


def cut(acts: FaultInjector) -> None:
    """Lose all requests, or all answers, between a dependency and one process or all of them."""
    process = acts.some_process() if acts.rng.random() < 0.8 else None
    trouble = acts.rng.choice((CallFault.REQUEST_LOST, CallFault.ANSWER_LOST))
    made = Partition(process, acts.rng.choice(list(Dependency)), trouble)
    partitions = acts.world.network.conditions.partitions
    partitions.append(made)
    who = process.name if process else "everyone"
    acts.note("cut", "", f"{who} from {made.dependency.value}, {trouble.value}")
    acts.after(acts.rng.randint(1_000, 25_000), lambda: partitions.remove(made))


# -- shards --------------------------------------------------------------------------------------------------------


def split(acts: FaultInjector) -> None:
    """Split an open shard."""
    shards = acts.world.stream.open_shards
    if len(shards) < acts.shards_max:
        _split(acts, acts.rng.choice(shards))


def merge(acts: FaultInjector) -> None:
    """Merge two neighbours."""
    shards = acts.world.stream.open_shards
    if len(shards) > 1:
        lower = acts.rng.randrange(len(shards) - 1)
        _merge(acts, shards[lower], shards[lower + 1])


def split_and_merge(acts: FaultInjector) -> None:
    """Split a shard, and merge its children before anyone has read them."""
    shards = acts.world.stream.open_shards
    if len(shards) < acts.shards_max:
        shard = acts.rng.choice(shards)
        _split(acts, shard)
        children = [acts.world.stream.shards[child] for child in shard.children]
        if len(children) == 2:
            acts.after(acts.rng.choice((1, 500, 3_000)), lambda: _merge(acts, *children))


def scale(acts: FaultInjector) -> None:
    """Another number of shards, all at once."""
    world = acts.world
    now = len(world.stream.open_shards)
    target = acts.rng.randint(max(1, (now + 1) // 2), min(acts.shards_max, 2 * now))
    try:
        world.service.update_shard_count(world.clock.wall_ms(), STREAM, target)
    except KinesisApiError:
        return
    acts.note("scale", "", f"from {now} to {target} shards")


def _split(acts: FaultInjector, shard: ShardState) -> None:
    world, keys = acts.world, shard.hash_range
    if keys.end - keys.start < 8:
        return
    middle = acts.rng.randint(keys.start + 2, keys.end - 2)
    world.service.split_shard(world.clock.wall_ms(), STREAM, shard.id, middle)
    acts.note("split", shard.id, "into " + " ".join(map(short_shard, shard.children)))


def _merge(acts: FaultInjector, lower: ShardState, upper: ShardState) -> None:
    world = acts.world
    if not (lower.is_open and upper.is_open):
        return
    world.service.merge_shards(world.clock.wall_ms(), STREAM, lower.id, upper.id)
    acts.note("merge", lower.id, f"with {short_shard(upper.id)} into {short_shard(lower.children[0])}")


def trim(acts: FaultInjector) -> None:
    """Let everything that was written so far leave the stream, read or not."""
    world = acts.world
    acts.note("trim")
    world.shards_were_trimmed = True
    for book in world.ledger.shards.values():
        book.trim()
    world.stream.trim_all_records()


# -- rows ----------------------------------------------------------------------------------------------------------


def delete_row(acts: FaultInjector) -> None:
    """Delete the row of some lease."""
    keys = sorted(lease.key for lease in acts.world.leases())
    if keys:
        key = acts.rng.choice(keys)
        acts.note("delete row", key)
        acts.world.destroy_row(key)


def delete_table(acts: FaultInjector) -> None:
    """Delete every row."""
    acts.note("delete all")
    for row in acts.world.table.rows():
        acts.world.destroy_row(row[KEY]["S"])


def plant_hostile_row(acts: FaultInjector) -> None:
    """Put a row that claims to be a lease and is none, until someone removes it."""
    if acts.is_damaged(_HOSTILE_KEY):
        return
    acts.note("hostile row")
    acts.world.overwrite_row(_HOSTILE_KEY, {KEY: text(_HOSTILE_KEY), COUNTER: number(-1)})
    acts.repair_row_later(_HOSTILE_KEY, lambda: acts.world.overwrite_row(_HOSTILE_KEY, None))


def plant_foreign_row(acts: FaultInjector) -> None:
    """Put a row of a kind that nobody here knows."""
    key = f"foreign-{acts.rng.randrange(3)}"
    if acts.world.table.get(key) is None:
        acts.note("foreign row", "", key)
        acts.world.overwrite_row(key, {KEY: text(key), ENTITY_TYPE: FOREIGN, "note": text("mine")})


def plant_attribute(acts: FaultInjector) -> None:
    """Add an attribute that nobody here knows to some lease."""
    rows = sorted(acts.world.table.rows(), key=lambda row: str(row[KEY]["S"]))
    if rows:
        row = acts.rng.choice(rows)
        acts.note("attribute", row[KEY]["S"])
        acts.world.overwrite_row(row[KEY]["S"], {**row, "visitor": text("was here")})


def damage_row(acts: FaultInjector) -> None:
    """Damage one attribute of some lease, until someone repairs it."""
    keys = sorted(lease.key for lease in acts.world.leases() if not acts.is_damaged(lease.key))
    if not keys:
        return
    key, name = acts.rng.choice(keys), acts.rng.choice(sorted(_DAMAGE))
    row = acts.world.table.get(key)
    assert row is not None
    acts.note("damage", key, name)
    acts.world.overwrite_row(key, {**row, name: _DAMAGE[name]})
    acts.repair_row_later(key, lambda: _repair(acts, key, name, row.get(name)))


def _repair(acts: FaultInjector, key: str, name: str, value: Attribute | None) -> None:
    row: Row | None = acts.world.table.get(key)
    if row is None:
        return
    acts.note("repair", key, name)
    rest = {each: row[each] for each in row if each != name}
    acts.world.overwrite_row(key, rest if value is None else {**rest, name: value})


ACTS: Final[Mapping[Fault, tuple[Act, ...]]] = {
    Fault.THROTTLING: (throttle,),
    Fault.CUTS: (cut,),
    Fault.CRASHES: (crash, crash_at_some_step, crash_at_some_step),
    Fault.PAUSES: (pause,),
    Fault.STALLS: (stall,),
    Fault.CLOCKS: (jump_clock,),
    Fault.TWINS: (start_twin,),
    Fault.LEAVERS: (leave, join),
    Fault.RESHARDS: (split, merge),
    Fault.STORMS: (split_and_merge, merge, scale),
    Fault.HOSTILE: (plant_hostile_row, plant_foreign_row, plant_attribute, damage_row),
    Fault.TRIMS: (trim,),
    Fault.DELETIONS: (delete_row, delete_row, delete_table),
}
