"""What holds for every plan of new leases, whatever the stream went through."""

from collections.abc import Collection
from dataclasses import dataclass, replace

from hypothesis import given

from leasehold.core.model import InitialPosition, Lease, LeaseKey, Shard, ShardId
from leasehold.core.position import LATEST, SHARD_END, TRIM_HORIZON, Position
from leasehold.core.shards.hash_coverage import first_hole
from leasehold.core.shards.lease_creation import plan_first_leases, plan_missing_leases
from leasehold.core.shards.shard_graph import ShardGraph, shard_graph
from tests.properties.reshard_histories import (
    POSITIONS,
    Choices,
    StreamHistory,
    cases,
    choices,
    epoch_of,
    random_history,
)


@dataclass(frozen=True)
class Case:
    """A stream, leases of some of the shards that it ever had, finished or not, and an initial position."""

    history: StreamHistory
    leases: list[Lease]
    initial: InitialPosition

    @property
    def graph(self) -> ShardGraph:
        return shard_graph(self.history.shards)

    @property
    def leased(self) -> set[ShardId]:
        return {lease.shard_id for lease in self.leases}


def random_case(choices: Choices) -> Case:
    history = random_history(choices)
    leased = choices.some_of(list(history.born), one_in=2 + choices.below(3))
    leases = [lease_of(shard_id, choices.one_of([Position("5"), SHARD_END])) for shard_id in leased]
    return Case(history, leases, choices.one_of(POSITIONS))


def lease_of(shard_id: ShardId, at: Position) -> Lease:
    return Lease(key=LeaseKey(shard_id), shard_id=shard_id, checkpoint=at)


def java_choice(
    shards: dict[ShardId, Shard], leased: Collection[ShardId], initial: InitialPosition
) -> set[ShardId]:
    """The Java KCL's own procedure (its memoised recursion up the ancestors), told independently of ours."""
    open_ids = {shard.id for shard in shards.values() if shard.is_open}
    inconsistent = {shard.id for shard in shards.values() if open_ids & set(shard.parents)}
    known: dict[ShardId, bool] = {}
    marked: set[ShardId] = set()
    new: set[ShardId] = set()

    def is_descendant(shard_id: ShardId) -> bool:
        if shard_id not in known:
            known[shard_id] = shard_id in leased or look_up(shard_id)
        return known[shard_id]

    def look_up(shard_id: ShardId) -> bool:
        parents = [parent for parent in shards[shard_id].parents if parent in shards]
        coming = {parent for parent in parents if is_descendant(parent) or parent in marked}
        if coming:
            new.update(p for p in parents if p not in leased and (p in marked or p not in coming))
        elif initial.sentinel != LATEST:
            marked.add(shard_id)
        return bool(coming)

    for shard_id in open_ids - inconsistent:
        if shard_id not in leased and not is_descendant(shard_id):
            new.add(shard_id)
    return new


@cases(5000)
@given(choices)
def test_without_repair_the_plan_is_the_java_procedures(choices: Choices) -> None:
    """Without the repair we create exactly what a Java leader would, also from lists read in a reshard."""
    case = random_case(choices)
    reopened = choices.some_of([shard.id for shard in case.history.shards], one_in=8)
    shards = {
        shard.id: replace(shard, ending_sequence_number=None) if shard.id in reopened else shard
        for shard in case.history.shards
    }
    plan = plan_missing_leases(
        shard_graph(shards.values()), case.leases, case.initial, ignore_unexpected_children=True, repair=False
    )
    assert {lease.shard_id for lease in plan} == java_choice(shards, case.leased, case.initial)
    assert {lease.checkpoint for lease in plan} <= {case.initial.sentinel}


@cases(1500)
@given(choices)
def test_a_plan_creates_nothing_twice_and_nothing_unasked(choices: Choices) -> None:
    """New leases are of listed shards that have none, oldest first, and none will be reached from another."""
    case = random_case(choices)
    graph = case.graph
    new = [lease.shard_id for lease in plan_missing_leases(graph, case.leases, case.initial)]
    assert len(new) == len(set(new))
    assert set(new) <= graph.shards.keys() - case.leased
    assert new == sorted(new, key=lambda each: (int(graph.shards[each].starting_sequence_number), each))
    for each in new:
        above = graph.upward_from(set(graph.parents_of(each)) - case.leased, avoiding=case.leased)
        assert above.isdisjoint(new)


@cases(1500)
@given(choices)
def test_a_plan_is_complete(choices: Choices) -> None:
    """After a plan every open shard is leased or descends from a lease, and a second plan is empty."""
    case = random_case(choices)
    graph = case.graph
    after = [*case.leases, *plan_missing_leases(graph, case.leases, case.initial)]
    assert {shard.id for shard in graph.open_shards} <= graph.downward_from(each.shard_id for each in after)
    assert plan_missing_leases(graph, after, case.initial) == ()


@cases(1500)
@given(choices)
def test_a_plan_creates_nothing_above_a_lease_and_skips_nothing(choices: Choices) -> None:
    """A new lease has no lease below it, and no parent will create it. None begins at a tip after the fleet began."""
    case = random_case(choices)
    if not case.leases:
        return
    graph = case.graph
    ended = {lease.shard_id for lease in case.leases if lease.checkpoint == SHARD_END}
    passed = graph.upward_from(case.leased) - case.leased
    for lease in plan_missing_leases(graph, case.leases, case.initial):
        assert not graph.downward_from([lease.shard_id]) & case.leased
        waits_for = lease.parents & graph.shards.keys() - ended - passed
        assert waits_for <= case.leased
        assert not waits_for or lease.parents - graph.shards.keys() - case.leased
        assert lease.checkpoint != LATEST


@cases(500)
@given(choices)
def test_the_first_leases_tell_when_the_fleet_began(choices: Choices) -> None:
    """A fleet that begins at LATEST loses a lease: the new one begins when the fleet began, not at the tip of today."""
    history, latest = random_history(choices), InitialPosition(LATEST)
    first = plan_first_leases(shard_graph(history.alive_at(history.epoch)), latest)
    began = [replace(lease, latest_at_ms=7 + index) for index, lease in enumerate(first)]
    kept = began[: 1 + choices.below(len(began))]
    for lease in plan_missing_leases(shard_graph(history.shards), kept, latest):
        assert (lease.checkpoint, lease.latest_at_ms, lease.owner_switches) == (LATEST, 7, 1)


@cases(1500)
@given(choices)
def test_a_crash_while_creating_the_first_leases_is_repaired(choices: Choices) -> None:
    """Wherever the first leases stop being written, the next sync leaves no hash key without a reader."""
    history, initial = random_history(choices), choices.one_of(POSITIONS)
    first = plan_first_leases(shard_graph(history.alive_at(epoch_of(initial, history, choices))), initial)
    written = list(first[: 1 + choices.below(len(first))])
    written += plan_missing_leases(shard_graph(history.shards), written, initial)
    assert first_hole(lease.hash_range for lease in written if lease.hash_range) is None
    assert len({lease.key for lease in written}) == len(written)
    if initial.sentinel == TRIM_HORIZON:
        assert set(written) == set(first)
