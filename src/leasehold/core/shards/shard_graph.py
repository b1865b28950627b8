"""The graph of the shards in one list: parents, children, open shards, roots. Also decides when a child may start.

Rejects a list that contradicts itself. Lists come from outside: no function recurses, so a chain of 10,000 generations
works, and a cycle of parents is an error that names its shards. In the order `parents_first` every question about
ancestors takes a single pass.

`unfinished_parents` is the rule for children: a shard may be read only after all its parents have ended.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from leasehold.core.model import Lease, LeaseKey, Shard, ShardId, lease_key, parent_keys
from leasehold.errors import ShardListError

_IDS_SHOWN_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class ShardGraph:
    """The listed shards, with parents and children. Parents that are not listed (trimmed, or filtered out) are ignored.

    `shard_graph` creates it. Methods ignore ids of shards that are not listed.
    """

    shards: Mapping[ShardId, Shard]
    parents_first: tuple[ShardId, ...]
    _children: Mapping[ShardId, tuple[ShardId, ...]] = field(repr=False)

    @property
    def roots(self) -> tuple[Shard, ...]:
        """Shards without a listed parent: they never had a parent, or it was trimmed."""
        return tuple(shard for shard in self.shards.values() if not self.parents_of(shard.id))

    @property
    def open_shards(self) -> tuple[Shard, ...]:
        """Shards that still accept records."""
        return tuple(shard for shard in self.shards.values() if shard.is_open)

    @property
    def unexpected_children(self) -> frozenset[ShardId]:
        """Children of a listed parent that is still open: the stream was resharded while the list was read."""
        return frozenset(child for shard in self.open_shards for child in self.children_of(shard.id))

    def parents_of(self, shard_id: ShardId) -> tuple[ShardId, ...]:
        """The listed parents of a listed shard."""
        named = dict.fromkeys(self.shards[shard_id].parents)
        return tuple(parent for parent in named if parent in self.shards)

    def missing_parents_of(self, shard_id: ShardId) -> tuple[ShardId, ...]:
        """The parents of a listed shard that are not listed."""
        return tuple(parent for parent in self.shards[shard_id].parents if parent not in self.shards)

    def children_of(self, shard_id: ShardId) -> tuple[ShardId, ...]:
        """The listed children of a shard. The shard itself need not be listed."""
        return self._children.get(shard_id, ())

    def upward_from(
        self, starts: Iterable[ShardId], *, avoiding: Collection[ShardId] = frozenset()
    ) -> frozenset[ShardId]:
        """`starts` and all their ancestors that are reachable without passing a shard of `avoiding`."""
        reached = {start for start in starts if start in self.shards}
        for shard_id in reversed(self.parents_first):
            if shard_id in reached:
                reached.update(parent for parent in self.parents_of(shard_id) if parent not in avoiding)
        return frozenset(reached)

    def downward_from(self, starts: Iterable[ShardId]) -> frozenset[ShardId]:
        """`starts` and all their listed descendants."""
        reached = {start for start in starts if start in self.shards}
        for shard_id in self.parents_first:
            if shard_id in reached:
                reached.update(self.children_of(shard_id))
        return frozenset(reached)


def shard_graph(shards: Iterable[Shard]) -> ShardGraph:
    """Builds the graph of a list of shards. A shard may be listed twice.

    Raises ShardListError for two different versions of a shard, and for a cycle of parents.

    >>> from leasehold.core.model import HashRange
    >>> parent = Shard(ShardId("s-0"), HashRange(0, 9), "1", "5")
    >>> child = Shard(ShardId("s-1"), HashRange(0, 4), "6", parents=(ShardId("s-0"), ShardId("s-trimmed")))
    >>> graph = shard_graph([child, parent])
    >>> graph.parents_first, graph.parents_of(child.id), graph.missing_parents_of(child.id)
    (('s-0', 's-1'), ('s-0',), ('s-trimmed',))
    """
    by_id = _by_id(shards)
    children: defaultdict[ShardId, list[ShardId]] = defaultdict(list)
    for shard in by_id.values():
        # A parent named twice (parent and adjacent parent alike) is still one parent.
        for parent in dict.fromkeys(shard.parents):
            children[parent].append(shard.id)
    children_of = {parent: tuple(ids) for parent, ids in children.items()}
    return ShardGraph(by_id, _parents_first(by_id, children_of), children_of)


def unfinished_parents(lease: Lease, leases: Mapping[LeaseKey, Lease]) -> tuple[ShardId, ...]:
    """The parents that a shard still has to wait for. The shard may be read when there are none.

    A parent without a lease does not count: it was trimmed, or its lease was deleted after it had ended.
    """
    found = ((parent, leases.get(lease_key(parent, lease.stream))) for parent in sorted(lease.parents))
    return tuple(parent for parent, its in found if its and not its.checkpoint.is_shard_end)


def readable_leases(leases: Iterable[Lease], unreadable: AbstractSet[LeaseKey]) -> list[Lease]:
    """The leases whose shards can be read now: not finished, and not waiting for a parent.

    `unreadable` are the keys of malformed rows. Such a row does not show whether its shard has ended, so the children
    of this shard wait.
    """
    by_key = {lease.key: lease for lease in leases}
    return [
        lease
        for lease in by_key.values()
        if not lease.checkpoint.is_shard_end
        and not unfinished_parents(lease, by_key)
        and unreadable.isdisjoint(parent_keys(lease))
    ]


def format_shard_ids(shard_ids: Iterable[ShardId]) -> str:
    """Shard ids for a message; a long list is shortened.

    >>> format_shard_ids(ShardId(f"s-{i}") for i in range(10))
    's-0, s-1, s-2, s-3, s-4, s-5, s-6, s-7 and 2 more'
    """
    # Ids come from outside. Control characters must not reach a terminal.
    shown = [ascii(shard_id)[1:-1] for shard_id in shard_ids]
    rest = len(shown) - _IDS_SHOWN_MAX
    return ", ".join(shown[:_IDS_SHOWN_MAX]) + (f" and {rest} more" if rest > 0 else "")


def _by_id(shards: Iterable[Shard]) -> dict[ShardId, Shard]:
    by_id: dict[ShardId, Shard] = {}
    for shard in shards:
        known = by_id.setdefault(shard.id, shard)
        if known != shard:
            raise ShardListError(
                f"shard {format_shard_ids([shard.id])} is listed twice with different contents ({_brief(known)}; "
                f"{_brief(shard)}): the stream was resharded while its pages were read; list again"
            )
    return by_id


def _brief(shard: Shard) -> str:
    state = "open" if shard.is_open else "closed"
    return (
        f"{state}, hash keys {shard.hash_range.start}..{shard.hash_range.end}, {len(shard.parents)} parents"
    )


def _parents_first(
    shards: Mapping[ShardId, Shard], children: Mapping[ShardId, tuple[ShardId, ...]]
) -> tuple[ShardId, ...]:
    waiting_for = {
        shard.id: len({parent for parent in shard.parents if parent in shards}) for shard in shards.values()
    }
    order = [shard_id for shard_id, parents in waiting_for.items() if parents == 0]
    # The list grows during the loop: a shard is appended after the last of its parents.
    for shard_id in order:
        for child in children.get(shard_id, ()):
            waiting_for[child] -= 1
            if waiting_for[child] == 0:
                order.append(child)
    if len(order) < len(shards):
        cycle = tuple(
            _find_cycle(shards, {shard_id for shard_id, parents in waiting_for.items() if parents > 0})
        )
        raise ShardListError(
            f"{len(cycle)} shards are their own ancestors ({format_shard_ids(cycle)}): no stream can have such shards, "
            "so the response was damaged; list again, and check proxies between this process and Kinesis"
        )
    return tuple(order)


def _find_cycle(shards: Mapping[ShardId, Shard], stuck: Collection[ShardId]) -> Iterator[ShardId]:
    """One cycle of parents. Each shard in `stuck` has a parent in `stuck`."""

    def up(shard_id: ShardId) -> ShardId:
        return next(parent for parent in shards[shard_id].parents if parent in stuck)

    passed: set[ShardId] = set()
    here = min(stuck)
    while here not in passed:
        passed.add(here)
        here = up(here)
    first = here
    yield first
    while (here := up(here)) != first:
        yield here
