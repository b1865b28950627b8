"""Whatever crashes, hangs, comes late or takes over: every record reaches a sink that goes by ranges exactly once."""

from collections.abc import Sequence
from enum import Enum, auto

from hypothesis import example, given, settings
from hypothesis import strategies as st

from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.spark.query.pinned_slices import PinnedSlice, SlicePlan
from tests.unit.spark.query_world import Attempt, QueryRun, QueryWorld


class Task(Enum):
    """What becomes of a slice's task."""

    FINE = auto()
    RETRIED = auto()  # the first attempt pins and dies; the second could read further
    COPIED = auto()  # two attempts, of which the second reads further and is first to pin; both write
    HANGS = auto()  # the first attempt hangs before its pin, while a copy ends
    SLEEPS = auto()  # the first attempt hangs before it reads anything


class Crash(Enum):
    """Where the driver dies, with its tasks as they stand."""

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
Act = tuple[object, ...]


class Interleaving:
    """Carries out acts on a world."""

    def __init__(self, world: QueryWorld) -> None:
        self.world = world
        self.run = QueryRun(world)
        self.late: list[Attempt | SlicePlan] = []

    async def do(self, act: Act) -> None:
        match act:
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
            case ("steal", int(index), int(slices), bool(gives_back)):
                shards = await self.world.open_shards()
                lease = await self.world.steal(shards[index % len(shards)])
                if lease is not None:
                    await self.world.serve_stolen(lease, slices=slices, gives_back=gives_back)
            case ("stop",):
                await self.run.stop()
                await self._start_again()
            case ("wait", int(seconds)):
                await self.world.clock.sleep_ms(seconds * 1000)

    async def wake(self, late: Attempt | SlicePlan) -> PinnedSlice | None:
        """Let go on what nobody waits for any more."""
        return await (late if isinstance(late, Attempt) else self.world.attempt(late)).result()

    async def _batch(self, tasks: Sequence[Task], crash: Crash) -> None:
        plans = await self.run.next_plans()
        if plans is None:
            return
        done: list[PinnedSlice | None] = []
        for place, plan in enumerate(plans):
            if crash is Crash.BEFORE_PINS or (crash is Crash.BETWEEN_PINS and place):
                await self._leave_behind(plan)
            else:
                done.append(await self._task(plan, tasks[place % len(tasks)]))
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
            await self._leave_behind(plan)
        elif fate is Task.SLEEPS:
            self.late.append(plan)
        elif fate is Task.RETRIED:
            await self.world.attempt(plan).result()
            self.world.put(2)
        elif fate is Task.COPIED:
            slow = self.world.attempt(plan)
            await slow.at_its_pin()
            self.world.put(2)
            self.world.sink.write(await self.world.attempt(plan).result())
            return await slow.result()
        return await self.world.attempt(plan).result()

    async def _leave_behind(self, plan: SlicePlan) -> None:
        attempt = self.world.attempt(plan)
        await attempt.at_its_pin()
        self.late.append(attempt)

    async def _crash(self) -> None:
        await self.run.kill()
        await self._start_again()

    async def _start_again(self) -> None:
        self.run = QueryRun(self.world)
        await self.run.start()


async def play(acts: Sequence[Act]) -> None:
    """Do everything, then let the query catch up."""
    world = QueryWorld()
    game = Interleaving(world)
    await game.run.start()
    for act in acts:
        await game.do(act)
    await world.drain(game.run, lambda: not world.missing())
    for late in game.late:
        world.sink.write(await game.wake(late))
    await game.run.stop()
    world.check_once()


FINE = ("batch", [Task.FINE], Crash.NEVER)
A_TASK_OF_A_DEAD_RUN_PINS_WHAT_ITS_GENERATION_WENT_WITHOUT: Sequence[Act] = [
    ("put", 9),
    ("batch", [Task.FINE], Crash.BEFORE_PINS),
    FINE,
    ("late", 0, False),
    ("late", 0, False),
]
A_COPY_FINDS_RECORDS_WHERE_THE_FIRST_FOUND_NONE: Sequence[Act] = [
    ("batch", [Task.SLEEPS], Crash.NEVER),
    ("put", 9),
    ("late", 0, False),
    ("late", 0, False),
]
A_PIN_OF_A_DEAD_RUN_IS_IN_OTHER_HANDS: Sequence[Act] = [
    ("put", 9),
    ("batch", [Task.FINE], Crash.BEFORE_WRITE),
    ("steal", 0, 0, False),
    ("wait", 5),
    FINE,
    ("wait", 30),
]
THE_SECOND_ATTEMPT_COULD_READ_FURTHER: Sequence[Act] = [
    ("put", 3),
    ("batch", [Task.RETRIED, Task.COPIED], Crash.NEVER),
]

A_REPLAY_ENDS_WITHIN_AN_AGGREGATE: Sequence[Act] = [
    ("put", 60),
    ("batch", [Task.FINE], Crash.BEFORE_COMMIT),
    FINE,
    ("put", 60),
    ("batch", [Task.FINE], Crash.BEFORE_WRITE),
]


@given(st.lists(st.one_of(put, batch, batch, split, late, steal, stop, wait), max_size=14))
@settings(max_examples=100)
@example(A_TASK_OF_A_DEAD_RUN_PINS_WHAT_ITS_GENERATION_WENT_WITHOUT)
@example(A_COPY_FINDS_RECORDS_WHERE_THE_FIRST_FOUND_NONE)
@example(A_PIN_OF_A_DEAD_RUN_IS_IN_OTHER_HANDS)
@example(A_REPLAY_ENDS_WITHIN_AN_AGGREGATE)
@example(THE_SECOND_ATTEMPT_COULD_READ_FURTHER)
def test_every_interleaving_delivers_each_record_once(acts: list[Act]) -> None:
    """Attempts, crashes, replays and take-overs in any order lose nothing and double nothing."""
    run_in_virtual_time(play(acts))
