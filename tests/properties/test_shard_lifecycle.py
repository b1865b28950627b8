"""A small fleet reads a stream while it is resharded and trimmed, in random order and with lost writes.

There is no time and no record here: a shard is *visited* when its lease is read for the first time. The fleet
does only what the plans of `core` say.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import given

from leasehold.core.model import InitialPosition, Lease, LeaseKey, ShardId
from leasehold.core.position import LATEST, SHARD_END, TRIM_HORIZON, Position
from leasehold.core.shards.lease_cleanup import DeleteReason, plan_cleanup
from leasehold.core.shards.lease_creation import (
    CreateChildren,
    plan_children,
    plan_first_leases,
    plan_missing_leases,
)
from leasehold.core.shards.shard_graph import ShardGraph, shard_graph, unfinished_parents
from tests.properties.reshard_histories import (
    POSITIONS,
    Choices,
    StreamHistory,
    cases,
    choices,
    epoch_of,
    random_history,
)

SOME_PLACE = Position("7")


@dataclass
class Fleet:
    """The lease table, and what has been read."""

    history: StreamHistory
    initial: InitialPosition
    leases: dict[LeaseKey, Lease] = field(default_factory=dict)
    begun: set[ShardId] = field(default_factory=set)  # where the fleet began
    visited: set[ShardId] = field(default_factory=set)
    finished: set[ShardId] = field(default_factory=set)

    @property
    def graph(self) -> ShardGraph:
        return shard_graph(self.history.shards)

    def start(self, choices: Choices) -> None:
        """The first leases. Perhaps the leader dies while it writes them, and another one goes on."""
        listed = self.history.alive_at(epoch_of(self.initial, self.history, choices))
        first = plan_first_leases(shard_graph(listed), self.initial)
        first = tuple(
            replace(lease, latest_at_ms=1) if lease.checkpoint == LATEST else lease for lease in first
        )
        self._create(first[: 1 + choices.below(len(first))])
        self.sync()
        self.begun = {lease.shard_id for lease in self.leases.values()}

    def sync(self) -> None:
        self._create(plan_missing_leases(self.graph, self.leases.values(), self.initial))

    def read(self, lease: Lease) -> None:
        """Read something, if the lease may start. A shard that is gone ends at once, without children."""
        if unfinished_parents(lease, self.leases) or lease.shard_id in self.finished:
            return
        if lease.shard_id in self.history.trimmed:
            self._finish(lease, frozenset())
        elif lease.checkpoint != SOME_PLACE:
            self._visit(lease)
            self.leases[lease.key] = replace(lease, checkpoint=SOME_PLACE)

    def end(self, lease: Lease, *, lose: bool) -> None:
        """Read a closed shard to its end. `lose`: the children's leases are not written, the end is."""
        shard = self.history.born[lease.shard_id]
        self.read(lease)
        if lease.shard_id not in self.visited - self.finished or shard.is_open:
            return
        plan = plan_children(lease, self.history.children_of(shard.id), self.leases.keys(), draw=0.5)
        if isinstance(plan, CreateChildren):
            self._create(() if lose else plan.leases)
            self._finish(lease, frozenset() if lose else plan.children)

    def clean(self, shards: ShardGraph | None) -> None:
        for gone in plan_cleanup(self.leases.values(), shards).delete:
            self._check_deletion(self.leases[gone.key], gone.reason)
            del self.leases[gone.key]

    def trim_oldest(self) -> None:
        """The oldest closed shard leaves the retention period, if the fleet has ever had it in its table."""
        closed = [shard for shard in self.history.shards if not shard.is_open]
        oldest = min(closed, key=lambda shard: int(shard.ending_sequence_number or 0), default=None)
        if oldest and (oldest.id in self.finished or LeaseKey(oldest.id) in self.leases):
            self.history.trim(oldest.id)

    def _create(self, leases: tuple[Lease, ...]) -> None:
        for lease in leases:
            assert lease.key not in self.leases, "planned although it exists"
            assert lease.shard_id not in self.visited, "will be read again"
            self.leases[lease.key] = lease

    def _visit(self, lease: Lease) -> None:
        assert lease.shard_id not in self.visited, "visited twice"
        from_start = self.initial.sentinel if lease.shard_id in self.begun else TRIM_HORIZON
        assert lease.checkpoint == from_start, "began in the middle"
        before = self.descended() & set(self.history.born[lease.shard_id].parents)
        assert before <= self.finished, "visited before its parents ended"
        self.visited.add(lease.shard_id)

    def _finish(self, lease: Lease, children: frozenset[ShardId]) -> None:
        self.finished.add(lease.shard_id)
        self.leases[lease.key] = replace(lease, checkpoint=SHARD_END, children=children)

    def _check_deletion(self, lease: Lease, reason: DeleteReason) -> None:
        assert lease.shard_id in self.finished
        children = [child.id for child in self.history.children_of(lease.shard_id)]
        leased = {child for child in children if LeaseKey(child) in self.leases}
        if reason is DeleteReason.PASSED:
            assert leased == set(children), "a child has no lease"
            assert leased <= self.visited | self.finished, "a child has not started"
            assert not any(LeaseKey(parent) in self.leases for parent in lease.parents)
        else:
            assert lease.shard_id in self.history.trimmed
            assert set(children) - self.history.trimmed <= leased, "a child has no lease"

    def descended(self) -> set[ShardId]:
        """Where the fleet began, and all that ever came out of it. A child is born after its parents."""
        line = set(self.begun)
        for shard in self.history.born.values():
            if line & set(shard.parents):
                line.add(shard.id)
        return line


def step(fleet: Fleet, choices: Choices) -> None:
    """Something happens."""

    def some_lease() -> Lease:
        return choices.one_of(list(fleet.leases.values()))

    actions: list[Callable[[], None]] = [
        lambda: fleet.read(some_lease()),
        lambda: fleet.end(some_lease(), lose=False),
        lambda: fleet.end(some_lease(), lose=choices.below(2) == 1),
        lambda: fleet.history.reshard(merge=choices.below(2) == 1, pick=choices.below(8)),
        fleet.sync,
        lambda: fleet.clean(None),
        lambda: fleet.clean(fleet.graph),
        fleet.trim_oldest,
    ]
    choices.one_of(actions)()


def drain(fleet: Fleet) -> None:
    """Go on without accidents until nothing changes any more."""
    before = None
    while before != fleet.leases:
        before = dict(fleet.leases)
        fleet.sync()
        for lease in list(fleet.leases.values()):
            fleet.end(lease, lose=False)
        fleet.clean(fleet.graph)


@cases(2000)
@given(choices)
def test_every_shard_is_visited_once_and_after_its_parents(choices: Choices) -> None:
    """Every shard from the start on that can still be read is visited, once, from its beginning and after
    its parents, whatever happens on the way; and in the end only the open shards have leases.
    """
    fleet = Fleet(random_history(choices, reshards_max=4), choices.one_of(POSITIONS))
    fleet.start(choices)
    for _ in range(choices.below(30)):
        step(fleet, choices)
    drain(fleet)
    assert fleet.descended() - fleet.history.trimmed <= fleet.visited
    assert {lease.shard_id for lease in fleet.leases.values()} == {s.id for s in fleet.history.open_shards}
