"""The lease table of a query was deleted, restored or reset while the query was down. Every combination of what the
query had read, what was lost, how the query had ended and what the options choose ends in one of two ways: an error,
or each record once.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from leasehold.core.exactly_once import lost_leases
from leasehold.core.exactly_once.query_offset import ReadStart, StreamOffset, next_offset
from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.core.leases.lease_row import lease_to_row
from leasehold.core.leases.row_writes import Row
from leasehold.core.model import InitialPosition, LeaseKey, ShardId
from leasehold.core.position import LATEST, TRIM_HORIZON
from leasehold.core.shards.lease_creation import initial_shard_filter, plan_first_leases
from leasehold.core.shards.shard_graph import shard_graph
from leasehold.errors import OffsetMismatchError
from leasehold.simulation.virtual_time import run_in_virtual_time
from leasehold.spark.query import batch_planner
from leasehold.spark.query.batch_planner import BatchPlanner
from leasehold.spark.query.log_comparison import LogComparison
from leasehold.spark.query_settings import OnLeasesBehind, QuerySettings
from tests.unit.spark.query_world import QueryRun, QueryWorld, until

FIRST, SECOND = ShardId("shardId-000000000000"), ShardId("shardId-000000000001")
FROM_START, FROM_TIP = InitialPosition(TRIM_HORIZON), InitialPosition(LATEST)


@dataclass
class Case:
    """A query and what the table was before."""

    world: QueryWorld
    run: QueryRun
    backup: Sequence[Row] = ()
    others: set[int] = field(default_factory=set)  # records that another member has delivered

    async def read(self) -> None:
        """Let the query read all records, in several batches."""
        await self.world.drain(self.run, lambda: not self.missing())

    def delivered(self) -> Counter[int]:
        """How often this query has delivered each record, to a sink that knows batch ids."""
        return Counter(int(row) for rows in self.world.log.batches.values() for row in rows)

    def missing(self) -> set[int]:
        return set(range(self.world.produced)) - self.delivered().keys() - self.others

    async def put_and_read(self) -> None:
        self.world.put(24)
        await self.read()

    async def finish(self, shard: ShardId) -> None:
        """Let the query write the end of a shard."""

        async def has_ended() -> bool:
            await self.world.run_batch(self.run)
            lease = await self.world.table.get(LeaseKey(shard))
            return lease is None or lease.checkpoint.is_shard_end

        await until(self.world.clock, has_ended)


# -- what the query had read -----------------------------------------------------------------------------------


async def read_open_shards(case: Case) -> None:
    """No reshard."""
    await case.put_and_read()
    case.backup = await case.world.rows.scan()
    await case.put_and_read()


async def start_children(case: Case) -> None:
    """A shard is finished, and the query has read its children."""
    await case.put_and_read()
    case.backup = await case.world.rows.scan()
    await case.world.split(FIRST)
    await case.finish(FIRST)
    for _ in range(2):
        await case.put_and_read()


async def start_grandchildren(case: Case) -> None:
    """The lease of the first shard is implied by its grandchildren only."""
    await start_children(case)
    await case.world.split((await case.world.open_shards())[-1])
    for _ in range(3):
        await case.put_and_read()


async def start_merged_child(case: Case) -> None:
    """Two shards are finished, and the query has read their child."""
    await case.put_and_read()
    case.backup = await case.world.rows.scan()
    case.world.merge(FIRST, SECOND)
    await case.finish(FIRST)
    await case.finish(SECOND)
    for _ in range(2):
        await case.put_and_read()


async def leave_children_unread(case: Case) -> None:
    """A shard is finished. Another member has the children, and has read nothing."""
    await case.put_and_read()
    case.backup = await case.world.rows.scan()
    await case.world.split(FIRST)
    await case.finish(FIRST)
    for shard in (await case.world.open_shards())[-2:]:
        await case.world.steal(shard)


async def read_another_shard_meanwhile(case: Case) -> None:
    """As above, and the children have records. The query has read another shard since, so its log names the first."""
    await leave_children_unread(case)
    case.world.put(24)
    while LeaseKey(FIRST) in case.world.log.committed.starts:
        await case.world.run_batch(case.run)
        await case.world.clock.sleep_ms(200)


async def leave_a_child_to_another(case: Case) -> None:
    """A shard is finished. Another member has read one of the children."""
    await start_children(case)
    stolen = await case.world.steal((await case.world.open_shards())[-1])
    assert stolen is not None
    case.world.put(24)
    before = set(case.world.sink.numbers())
    await case.world.serve_stolen(stolen, slices=8, releases=False)
    case.others = set(case.world.sink.numbers()) - before - case.delivered().keys()
    while stolen.key in case.world.log.committed.starts:
        case.world.put(2)
        await case.world.run_batch(case.run)
        await case.world.clock.sleep_ms(500)


STORIES: list[Callable[[Case], Awaitable[None]]] = [
    read_open_shards,
    start_children,
    start_grandchildren,
    start_merged_child,
    leave_children_unread,
    read_another_shard_meanwhile,
    leave_a_child_to_another,
]


# -- how the query had ended -----------------------------------------------------------------------------------


async def end_bounded_run(case: Case) -> None:
    """A run with Trigger.AvailableNow has ended: the log contains the ends of its last batch."""
    await case.run.stop()
    await case.world.read_all_available()


async def kill_query(case: Case) -> None:
    """The log contains the beginning of the last batch."""
    await case.run.kill()


ENDINGS: list[Callable[[Case], Awaitable[None]]] = [end_bounded_run, kill_query]


# -- what was lost ---------------------------------------------------------------------------------------------


DELETED = "the table was deleted"
RECREATED = "another member has created the table again"
RESTORED = "a backup was restored"
RESET = "all rows were reset"


def reset(row: Row) -> Row:
    """The row with its checkpoint at the beginning of the shard."""
    kept = (
        "leaseKey",
        "entityType",
        "parentShardId",
        "startingHashKey",
        "endingHashKey",
        "leaseholdGenerations",
    )
    start: Row = {
        "leaseCounter": {"N": "0"},
        "ownerSwitchesSinceCheckpoint": {"N": "0"},
        "checkpoint": {"S": "TRIM_HORIZON"},
        "checkpointSubSequenceNumber": {"N": "0"},
    }
    return {**{name: row[name] for name in kept if name in row}, **start}


async def recreated(case: Case) -> list[Row]:
    """The rows that another member creates in an empty table."""
    initial = case.world.settings.initial
    listed = await case.world.stream.list_shards(initial_shard_filter(initial))
    return [lease_to_row(lease) for lease in plan_first_leases(shard_graph(listed), initial)]


async def damages(case: Case) -> dict[str, Sequence[Row]]:
    """The rows of the table after each kind of damage."""
    rows = {row["leaseKey"]["S"]: row for row in await case.world.rows.scan()}
    found: dict[str, Sequence[Row]] = {
        DELETED: [],
        RECREATED: await recreated(case),
        RESTORED: case.backup,
        RESET: [reset(row) for row in rows.values()],
    }
    for key in rows:
        found[f"{key} was deleted"] = [row for other, row in rows.items() if other != key]
        found[f"{key} was reset"] = [reset(row) if other == key else row for other, row in rows.items()]
    return found


async def build(
    story: Callable[[Case], Awaitable[None]], end: Callable[[Case], Awaitable[None]], initial: InitialPosition
) -> Case:
    shards = 2 if story in {read_open_shards, start_merged_child, read_another_shard_meanwhile} else 1
    world = QueryWorld(
        shards=shards, limits=BatchLimits(records=9), settings=QuerySettings(initial=initial), per_aggregate=3
    )
    run = QueryRun(world)
    await run.start()
    case = Case(world, run)
    await world.run_batch(run)  # fixes the meaning of "latest"
    await story(case)
    await end(case)
    return case


async def run_again(case: Case, choice: OnLeasesBehind) -> bool:
    """Start the query with the damaged table, and let it read for a while. Returns False if it was refused."""
    world = case.world
    world.settings = replace(world.settings, on_leases_behind=choice)
    world.put(12)
    case.run = QueryRun(world)
    try:
        await case.run.start()
        # A lease that is missing is created after a few audits.
        await world.drain(case.run, lambda: not case.missing(), within_s=1200)
        for _ in range(15):
            await world.run_batch(case.run)
            await world.clock.sleep_ms(1000)
    except OffsetMismatchError:
        return False
    finally:
        await case.run.kill()
    return True


Step = Callable[[Case], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """What the query had read, how it had ended, what the options choose and where new shards begin."""

    story: Step
    end: Step
    choice: OnLeasesBehind
    initial: InitialPosition = FROM_START

    def damages(self) -> list[str]:
        """The names of the damages."""

        async def name() -> list[str]:
            return list(await damages(await build(self.story, self.end, self.initial)))

        return run_in_virtual_time(name())

    def was_refused(self, damage: str) -> bool:
        """Run the query with a damaged table. Asserts what is promised, and returns whether the query was refused."""
        return not run_in_virtual_time(self._run(damage))

    async def _run(self, damage: str) -> bool:
        case = await build(self.story, self.end, self.initial)
        last_batch = {int(row) for row in [rows for rows in case.world.log.batches.values() if rows][-1]}
        case.world.replace_rows((await damages(case))[damage])
        before = case.delivered()
        if not await run_again(case, self.choice):
            assert self.choice is OnLeasesBehind.FAIL, "the options have chosen a side"
            assert case.delivered() == before, "a refused query delivers nothing"
            return False
        assert not case.missing()
        repeated = {number for number, times in case.delivered().items() if times > 1}
        if self.choice is OnLeasesBehind.FAIL:
            assert not repeated
            assert not case.delivered().keys() & case.others
        if self.choice is OnLeasesBehind.OFFSETS:
            assert repeated <= (set() if self.end is end_bounded_run else last_batch)
        assert await run_again(case, OnLeasesBehind.FAIL), "the next run needs no option"
        return True


INITIALS = {"from start": FROM_START, "from tip": FROM_TIP}


@pytest.mark.parametrize("initial", INITIALS.values(), ids=INITIALS)
@pytest.mark.parametrize("end", ENDINGS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_by_default_a_lost_table_is_an_error_or_nothing_is_repeated(
    story: Step, end: Step, initial: InitialPosition
) -> None:
    scenario = Scenario(story, end, OnLeasesBehind.FAIL, initial)
    refused = {damage for damage in scenario.damages() if scenario.was_refused(damage)}
    # Children without records are read from their first record in any case, and the backup may be up to date.
    may_continue = {RECREATED, RESTORED} if story is leave_children_unread else set()
    assert refused >= {DELETED, RECREATED, RESTORED, RESET} - may_continue


@pytest.mark.parametrize("initial", INITIALS.values(), ids=INITIALS)
@pytest.mark.parametrize("end", ENDINGS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_with_offsets_the_log_decides(story: Step, end: Step, initial: InitialPosition) -> None:
    """The query always continues, loses nothing, and repeats at most its last batch: nothing after a bounded run."""
    scenario = Scenario(story, end, OnLeasesBehind.OFFSETS, initial)
    assert not any(scenario.was_refused(damage) for damage in scenario.damages())


@pytest.mark.parametrize("end", ENDINGS, ids=lambda end: end.__name__)
@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_with_leases_nothing_is_lost(story: Step, end: Step) -> None:
    """The query reads again what the table lost."""
    scenario = Scenario(story, end, OnLeasesBehind.LEASES)
    assert not any(scenario.was_refused(damage) for damage in scenario.damages())


# -- planted bugs ----------------------------------------------------------------------------------------------


async def do_nothing(*_arguments: object) -> None:
    """Replace a step of the query."""


def forget_former_shards(
    _logged: StreamOffset, starts: Mapping[ShardId, ReadStart], *_arguments: object
) -> StreamOffset:
    """Log only the shards that the query reads now."""
    return StreamOffset(starts)


def forget_finished_shards(*arguments: Any) -> StreamOffset:
    return replace(next_offset(*arguments), finished=frozenset())


def ignore_ancestors(logged: StreamOffset, _graph: object) -> frozenset[ShardId]:
    """A shard is finished only if the log names it."""
    return logged.finished


FAIL, OFFSETS = OnLeasesBehind.FAIL, OnLeasesBehind.OFFSETS
UNREAD_CHILDREN = Scenario(read_another_shard_meanwhile, kill_query, OFFSETS, FROM_TIP)
ELSEWHERE = Scenario(leave_a_child_to_another, kill_query, FAIL)
PLANTED_BUGS = [
    (batch_planner, "next_offset", forget_former_shards, ELSEWHERE, "shardId-000000000002 was reset"),
    (batch_planner, "next_offset", forget_finished_shards, UNREAD_CHILDREN, DELETED),
    (LogComparison, "require_leases", do_nothing, UNREAD_CHILDREN, DELETED),
    (lost_leases, "_begins_late", lambda _lease: False, UNREAD_CHILDREN, RECREATED),
    (
        lost_leases,
        "finished_shards",
        ignore_ancestors,
        Scenario(start_children, end_bounded_run, FAIL),
        f"{FIRST} was reset",
    ),
    (
        BatchPlanner,
        "plan_final",
        lambda *_arguments: None,
        Scenario(read_open_shards, end_bounded_run, OFFSETS),
        DELETED,
    ),
]


@pytest.mark.parametrize(("place", "name", "bug", "scenario", "damage"), PLANTED_BUGS)
def test_a_planted_bug_is_noticed(
    place: object, name: str, bug: object, scenario: Scenario, damage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks above would fail."""
    monkeypatch.setattr(place, name, bug)
    with pytest.raises(AssertionError):
        scenario.was_refused(damage)
