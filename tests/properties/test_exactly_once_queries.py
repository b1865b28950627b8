"""Every record reaches a sink with named ranges exactly once, whatever crashes, hangs, comes late or takes over."""

from collections.abc import Sequence
from enum import Enum, auto

from hypothesis import example, given, settings
from hypothesis import strategies as st

from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.spark.query.pinned_slices import PinnedSlice, SlicePlan
from tests.unit.spark.query_world import Attempt, QueryRun, QueryWorld


class Task(Enum):
    """The fate of a slice's task."""

    FINE = auto()
    RETRIED = auto()  # the first attempt pins and fails; the second could read further
    COPIED = auto()  # two attempts; the second reads further and pins first; both write
    HANGS = auto()  # the first attempt hangs before its pin, while a copy finishes
    HANGS_BEFORE_READ = auto()  # the first attempt hangs before its first read


class Crash(Enum):
    """The point at which the driver crashes. Its tasks stay as they are."""

    NEVER = auto()
    BEFORE_PINS = auto()
    BETWEEN_PINS = auto()
    BEFORE_WRITE = auto()
    BEFORE_COMMIT = auto()


put = st.tuples(st.just("put"), st.integers(1, 30))
split = st.tuples(st.just("split"), st.integers(0, 7))
batch = st.tuples(
    st.just("batch"), st.lists(st.sampled_from(Task), min_size=1, max_size=3), st.sampled_from(Crash)
)
late = st.tuples(st.just("late"), st.integers(0, 7), st.booleans())
steal = st.tuples(st.just("steal"), st.integers(0, 7), st.integers(0, 2), st.booleans())
stop = st.tuples(st.just("stop"))
wait = st.tuples(st.just("wait"), st.integers(1, 30))
Action = tuple[object, ...]


class Interleaving:
    """Performs actions on a world."""

    def __init__(self, world: QueryWorld) -> None:
        self.world = world
        self.run = QueryRun(world)
        self.late: list[Attempt | SlicePlan] = []

    async def do(self, action: Action) -> None:
        match action:
            case ("put", int(count)):
                self.world.put(count)
            case ("split", int(index)):
                shards = await self.world.open_shards()
                if len(shards) < 6:
                    await self.world.split(shards[index % len(shards)])
            case ("batch", list(tasks), Crash() as crash):
                await self._batch(tasks, crash)
            case ("late", int(index), bool(writes)) if self.late:
                done = await self.wake(self.late.pop(index % len(self.late)))
                if writes:
                    self.world.sink.write(done)
            case ("steal", int(index), int(slices), bool(releases)):
                shards = await self.world.open_shards()
                lease = await self.world.steal(shards[index % len(shards)])
                if lease is not None:
                    await self.world.serve_stolen(lease, slices=slices, releases=releases)
            case ("stop",):
                await self.run.stop()
                await self._restart()
            case ("wait", int(seconds)):
                await self.world.clock.sleep_ms(seconds * 1000)

    async def wake(self, late: Attempt | SlicePlan) -> PinnedSlice | None:
        """Continue a late attempt that no driver waits for any more."""
        return await (late if isinstance(late, Attempt) else self.world.attempt(late)).result()

    async def _batch(self, tasks: Sequence[Task], crash: Crash) -> None:
        plans = await self.run.next_plans()
        if plans is None:
            return
        done: list[PinnedSlice | None] = []
        for index, plan in enumerate(plans):
            if crash is Crash.BEFORE_PINS or (crash is Crash.BETWEEN_PINS and index):
                await self._abandon(plan)
            else:
                done.append(await self._task(plan, tasks[index % len(tasks)]))
        if crash in {Crash.BEFORE_PINS, Crash.BETWEEN_PINS, Crash.BEFORE_WRITE}:
            await self._crash()
            return
        self.world.deliver(done)
        if crash is Crash.BEFORE_COMMIT:
            await self._crash()
            return
        self.world.commit(done)

    async def _task(self, plan: SlicePlan, fate: Task) -> PinnedSlice | None:
        if fate is Task.HANGS:
            await self._abandon(plan)
        elif fate is Task.HANGS_BEFORE_READ:
            self.late.append(plan)
        elif fate is Task.RETRIED:
            await self.world.attempt(plan).result()
            self.world.put(2)
        elif fate is Task.COPIED:
            slow = self.world.attempt(plan)
            await slow.wait_for_pin()
            self.world.put(2)
            self.world.sink.write(await self.world.attempt(plan).result())
            return await slow.result()
        return await self.world.attempt(plan).result()

    async def _abandon(self, plan: SlicePlan) -> None:
        attempt = self.world.attempt(plan)
        await attempt.wait_for_pin()
        self.late.append(attempt)

    async def _crash(self) -> None:
        await self.run.kill()
        await self._restart()

    async def _restart(self) -> None:
        self.run = QueryRun(self.world)
        await self.run.start()


async def run_actions(actions: Sequence[Action]) -> None:
    """Perform all actions, then let the query catch up."""
    world = QueryWorld()
    interleaving = Interleaving(world)
    await interleaving.run.start()
    for action in actions:
        await interleaving.do(action)
    await world.drain(interleaving.run, lambda: not world.missing())
    for late in interleaving.late:
        world.sink.write(await interleaving.wake(late))
    await interleaving.run.stop()
    world.check_once()


FINE = ("batch", [Task.FINE], Crash.NEVER)
A_TASK_OF_A_KILLED_RUN_PINS_AFTER_ITS_GENERATION_WAS_COMMITTED: Sequence[Action] = [
    ("put", 9),
    ("batch", [Task.FINE], Crash.BEFORE_PINS),
    FINE,
    ("late", 0, False),
    ("late", 0, False),
]
A_COPY_FINDS_RECORDS_AFTER_THE_FIRST_ATTEMPT_FOUND_NONE: Sequence[Action] = [
    ("batch", [Task.HANGS_BEFORE_READ], Crash.NEVER),
    ("put", 9),
    ("late", 0, False),
    ("late", 0, False),
]
ANOTHER_MEMBER_STEALS_A_LEASE_WITH_A_PIN_OF_A_KILLED_RUN: Sequence[Action] = [
    ("put", 9),
    ("batch", [Task.FINE], Crash.BEFORE_WRITE),
    ("steal", 0, 0, False),
    ("wait", 5),
    FINE,
    ("wait", 30),
]
THE_SECOND_ATTEMPT_COULD_READ_FURTHER: Sequence[Action] = [
    ("put", 3),
    ("batch", [Task.RETRIED, Task.COPIED], Crash.NEVER),
]

A_REPLAY_ENDS_WITHIN_AN_AGGREGATE: Sequence[Action] = [
    ("put", 60),
    ("batch", [Task.FINE], Crash.BEFORE_COMMIT),
    FINE,
    ("put", 60),
    ("batch", [Task.FINE], Crash.BEFORE_WRITE),
]

A_LATE_TASK_PINS_BEFORE_THE_NEXT_RUN_STOPS: Sequence[Action] = [
    ("batch", [Task.RETRIED], Crash.BETWEEN_PINS),
    FINE,
    ("late", 0, False),
    ("stop",),
]


@given(st.lists(st.one_of(put, batch, batch, split, late, steal, stop, wait), max_size=14))
@settings(max_examples=100)
@example(A_TASK_OF_A_KILLED_RUN_PINS_AFTER_ITS_GENERATION_WAS_COMMITTED)
@example(A_COPY_FINDS_RECORDS_AFTER_THE_FIRST_ATTEMPT_FOUND_NONE)
@example(ANOTHER_MEMBER_STEALS_A_LEASE_WITH_A_PIN_OF_A_KILLED_RUN)
@example(A_REPLAY_ENDS_WITHIN_AN_AGGREGATE)
@example(THE_SECOND_ATTEMPT_COULD_READ_FURTHER)
@example(A_LATE_TASK_PINS_BEFORE_THE_NEXT_RUN_STOPS)
def test_every_interleaving_delivers_each_record_once(actions: list[Action]) -> None:
    """Attempts, crashes, replays and steals in any order lose and duplicate no record."""
    run_in_virtual_time(run_actions(actions))
