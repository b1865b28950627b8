"""Leases are deleted by mistake, any of them and at any time. All states that a small fleet can reach are enumerated.

A state is the lease of each shard (none, at its beginning, started, finished) and the shards of which records are still
unread. The fleet does only what the plans of `core` say. In every state this must hold:

* A shard is started only when its parents were read, and no lease is created above a shard that has started.
* If no further lease is deleted, every shard is read, and in the end only the open shards have leases.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from leasehold.core.model import InitialPosition, Lease, LeaseKey, ShardId
from leasehold.core.position import AT_TIMESTAMP, LATEST, SHARD_END, TRIM_HORIZON, Position
from leasehold.core.shards.lease_cleanup import plan_cleanup
from leasehold.core.shards.lease_creation import (
    CreateChildren,
    parents_perhaps_lost,
    plan_children,
    plan_first_leases,
    plan_lost_parents,
    plan_missing_leases,
)
from leasehold.core.shards.shard_graph import shard_graph, unfinished_parents
from tests.properties.reshard_histories import StreamHistory

SOME_PLACE = Position("7")
BEGAN_MS = 1_000
POSITIONS = [InitialPosition(TRIM_HORIZON), InitialPosition(LATEST), InitialPosition(AT_TIMESTAMP, 1)]


@dataclass(frozen=True)
class State:
    """The leases, and the shards of which records are unread."""

    leases: frozenset[Lease]
    unread: frozenset[ShardId]

    @property
    def by_key(self) -> dict[LeaseKey, Lease]:
        return {lease.key: lease for lease in sorted(self.leases, key=lambda lease: lease.key)}

    def put(self, *leases: Lease) -> "State":
        changed = {**self.by_key, **{lease.key: lease for lease in leases}}
        return replace(self, leases=frozenset(changed.values()))

    def describe(self) -> str:
        shown = (f"{key}:{lease.checkpoint.sequence_number}" for key, lease in self.by_key.items())
        return f"{' '.join(shown)}; unread: {' '.join(sorted(self.unread))}"


class Fleet:
    """What a fleet may do with the shards of one stream, from one state to the next."""

    def __init__(self, history: StreamHistory, initial: InitialPosition, epoch: int) -> None:
        self.graph = shard_graph(history.shards)
        self.initial = initial
        self._children = {shard.id: history.children_of(shard.id) for shard in history.shards}
        first = plan_first_leases(shard_graph(history.alive_at(epoch)), initial)
        began = BEGAN_MS if initial.sentinel == LATEST else None
        self.start = State(
            frozenset(replace(lease, latest_at_ms=began) for lease in first),
            self.graph.downward_from(lease.shard_id for lease in first),
        )

    def next_states(self, state: State) -> Iterator[State]:
        """Every state that one step of a member can lead to."""
        yield self.sync(state)
        yield from self.clean(state)
        for lease in state.leases:
            yield self.serve(state, lease)

    def lose(self, state: State) -> Iterator[State]:
        """Every state after one lease was deleted. The progress in its shard is lost unless the shard was finished."""
        if len(state.leases) > 1:  # the loss of all leases is a new start
            for lease in state.leases:
                yield replace(state, leases=state.leases - {lease})

    def sync(self, state: State) -> State:
        return self._create(state, plan_missing_leases(self.graph, state.leases, self.initial))

    def clean(self, state: State) -> Iterator[State]:
        """Deletions happen one by one, and a member may die in between."""
        for gone in plan_cleanup(state.leases, self.graph).delete:
            yield replace(state, leases=state.leases - {state.by_key[gone.key]})

    def serve(self, state: State, lease: Lease) -> State:
        """Start a lease, or read a started one to the end of its shard."""
        leases = state.by_key
        if lease.checkpoint.is_shard_end or unfinished_parents(lease, leases):
            return state
        if lease.checkpoint == SOME_PLACE:
            return self._finish(state, lease)
        parents = {parent: leases.get(LeaseKey(parent)) for parent in sorted(lease.parents)}
        have_ended = {
            parent: None if its is None else its.checkpoint.is_shard_end for parent, its in parents.items()
        }
        lost = parents_perhaps_lost(lease, have_ended, is_first_reading=True)
        if new := plan_lost_parents(lease, lost, self.graph):
            return self._create(state, new)
        assert not state.unread & lease.parents, f"{lease.key} starts before its parents: {state.describe()}"
        self._check_beginning(state, lease)
        # The tip of an open shard is read at once. Its progress is lost with its lease, like that of any other shard.
        return state.put(replace(lease, checkpoint=SOME_PLACE))

    def _finish(self, state: State, lease: Lease) -> State:
        if self.graph.shards[lease.shard_id].is_open:
            return state
        plan = plan_children(lease, self._children[lease.shard_id], state.by_key.keys(), draw=0.5)
        if not isinstance(plan, CreateChildren):
            return state
        ended = replace(lease, checkpoint=SHARD_END, children=plan.children)
        return replace(self._create(state, plan.leases).put(ended), unread=state.unread - {lease.shard_id})

    def _create(self, state: State, new: tuple[Lease, ...]) -> State:
        for lease in new:
            assert lease.key not in state.by_key, f"{lease.key} is created twice: {state.describe()}"
            below = self.graph.downward_from([lease.shard_id])
            started = [each.key for each in state.leases if each.shard_id in below and _has_started(each)]
            assert not started, f"{lease.key} is created above {started}: {state.describe()}"
        return state.put(*new)

    def _check_beginning(self, state: State, lease: Lease) -> None:
        """A shard with unread records is read from its beginning, or from the time at which the fleet began."""
        if lease.shard_id in state.unread and lease.checkpoint == LATEST:
            is_first = lease in self.start.leases
            assert is_first or (lease.latest_at_ms == BEGAN_MS and lease.owner_switches), state.describe()


def _has_started(lease: Lease) -> bool:
    return lease.checkpoint not in {TRIM_HORIZON, LATEST, AT_TIMESTAMP}


def go_on(fleet: Fleet, state: State) -> State:
    """One round of syncing, reading and cleaning up, without losses."""
    state = fleet.sync(state)
    for key in sorted(state.by_key):
        if lease := state.by_key.get(key):
            state = fleet.serve(state, lease)
    return next(fleet.clean(state), state)


def families() -> Iterator[StreamHistory]:
    """Every stream that comes out of one shard in three reshards, or out of two shards in two."""
    for count, reshards_max in ((1, 3), (2, 2)):
        for reshards in range(reshards_max + 1):
            for steps in _reshards(count, reshards):
                history = StreamHistory()
                history.begin(count)
                for merge, pick in steps:
                    history.reshard(merge=merge, pick=pick)
                yield history


def _reshards(open_shards: int, left: int) -> Iterator[tuple[tuple[bool, int], ...]]:
    if left == 0:
        yield ()
        return
    for pick in range(open_shards):
        yield from (((False, pick), *rest) for rest in _reshards(open_shards + 1, left - 1))
    for pick in range(open_shards - 1):
        yield from (((True, pick), *rest) for rest in _reshards(open_shards - 1, left - 1))


def _describe(history: StreamHistory) -> str:
    """Each shard with its parents."""
    return " ".join(f"{'+'.join(shard.parents)}>{shard.id}" for shard in history.born.values()).replace(
        "shardId-", ""
    )


def explore(fleet: Fleet) -> int:
    """Visit every state, with any losses on the way. Return how many there are."""
    found, to_do = {fleet.start}, [fleet.start]
    good: set[State] = set()  # states from which everything is read
    while to_do:
        state = to_do.pop()
        check_end(fleet, state, good)
        for after in [*fleet.next_states(state), *fleet.lose(state)]:
            if after not in found:
                found.add(after)
                to_do.append(after)
    return len(found)


def check_end(fleet: Fleet, begin: State, good: set[State]) -> None:
    """Go on without losses until nothing changes. Then every shard is read, and only the open ones have leases."""
    way, state = [begin], begin
    while state not in good:
        after = go_on(fleet, state)
        if after == state:
            open_shards = {shard.id for shard in fleet.graph.open_shards}
            story = f"from {begin.describe()} to {state.describe()}"
            assert {lease.shard_id for lease in state.leases} == open_shards, story
            assert all(map(_has_started, state.leases)), story
            assert state.unread <= open_shards, story
            break
        way.append(after)
        state = after
    good.update(way)


@pytest.mark.parametrize("history", list(families()), ids=_describe)
def test_a_fleet_that_begins_at_the_oldest_records_survives_every_loss(history: StreamHistory) -> None:
    """Any leases are deleted, at any time."""
    assert explore(Fleet(history, InitialPosition(TRIM_HORIZON), epoch=1)) > 1


@pytest.mark.parametrize("initial", [InitialPosition(LATEST), InitialPosition(AT_TIMESTAMP, 1)], ids=str)
@pytest.mark.parametrize("history", [each for each in families() if len(each.born) <= 5], ids=_describe)
def test_a_fleet_that_begins_later_survives_every_loss(
    history: StreamHistory, initial: InitialPosition
) -> None:
    """It begins in the middle of the history, and never goes back further than it must."""
    for epoch in range(1, history.epoch + 1):
        explore(Fleet(history, initial, epoch))


def test_a_child_of_a_lost_generation_is_read() -> None:
    """0 -> 1,2 -> 3 -> 4,5: the rows of 3 (finished) and 5 (running) are deleted. Java creates nothing, for ever."""
    history = StreamHistory()
    history.begin(1)
    for merge in (False, True, False):
        history.reshard(merge=merge, pick=0)
    leases = [
        lease_of(history, 1, SHARD_END),
        lease_of(history, 2, SHARD_END),
        lease_of(history, 4, SOME_PLACE),
    ]
    for initial in POSITIONS:
        new = plan_missing_leases(shard_graph(history.shards), leases, initial)
        assert [lease.shard_id for lease in new] == ["shardId-5"]
        assert new[0].checkpoint in {TRIM_HORIZON, AT_TIMESTAMP}
    kept = plan_cleanup([*leases, lease_of(history, 5, SOME_PLACE)], shard_graph(history.shards)).keep
    assert {lease.key for lease in kept} == {"shardId-4", "shardId-5"}


def lease_of(history: StreamHistory, number: int, at: Position) -> Lease:
    shard = history.born[ShardId(f"shardId-{number}")]
    children = (
        frozenset(child.id for child in history.children_of(shard.id)) if at == SHARD_END else frozenset()
    )
    return Lease(
        key=LeaseKey(shard.id),
        shard_id=shard.id,
        checkpoint=at,
        parents=frozenset(shard.parents),
        children=children,
        hash_range=shard.hash_range,
    )
