"""The family of the shards in one list: who is whose parent, which are open, where the family begins.

Reads a list of shards and refuses one that cannot be true. Knows nothing of leases, except for the one rule
at the end: a shard starts only after all its parents ended.

Lists come from outside, so nothing here recurses (a chain of 10,000 generations is fine) and a ring of
parents is an error that names it. `parents_first` is the order that makes every other question a single pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from leasehold.core.model import Lease, LeaseKey, Shard, ShardId, lease_key
from leasehold.errors import ShardListError

_NAMES_SHOWN_MAX: Final = 8


@dataclass(frozen=True, slots=True)
class ShardGraph:
    """The listed shards and their ties. Parents that are not listed (trimmed, or filtered out) tie nothing.

    Made by `shard_graph`. Sets of ids given to its methods may name shards that are not listed; they are
    ignored.
    """

    shards: Mapping[ShardId, Shard]
    parents_first: tuple[ShardId, ...]
    _children: Mapping[ShardId, tuple[ShardId, ...]] = field(repr=False)

    @property
    def roots(self) -> tuple[Shard, ...]:
        """Shards without a listed parent: they never had one, or it was trimmed."""
        return tuple(shard for shard in self.shards.values() if not self.parents_of(shard.id))

    @property
    def open_shards(self) -> tuple[Shard, ...]:
        """Shards that still take records."""
        return tuple(shard for shard in self.shards.values() if shard.is_open)

    @property
    def unexpected_children(self) -> frozenset[ShardId]:
        """Children of a listed parent that is still open: the list was read while the stream was being
        resharded.
        """
        return frozenset(child for shard in self.open_shards for child in self.children_of(shard.id))

    def parents_of(self, shard_id: ShardId) -> tuple[ShardId, ...]:
        """The listed parents of a listed shard."""
        named = dict.fromkeys(self.shards[shard_id].parents)
        return tuple(parent for parent in named if parent in self.shards)

    def missing_parents_of(self, shard_id: ShardId) -> tuple[ShardId, ...]:
        """The parents that a listed shard names and the list does not."""
        return tuple(parent for parent in self.shards[shard_id].parents if parent not in self.shards)

    def children_of(self, shard_id: ShardId) -> tuple[ShardId, ...]:
        """The listed children of a shard, which itself need not be listed any more."""
        return self._children.get(shard_id, ())

    def ancestors_of(self, shard_id: ShardId) -> frozenset[ShardId]:
        """Every listed shard that records may have come through before they could reach this one."""
        return self.upward_from(self.parents_of(shard_id))

    def upward_from(
        self, starts: Iterable[ShardId], *, avoiding: Collection[ShardId] = frozenset()
    ) -> frozenset[ShardId]:
        """`starts`, and every shard met on the way up from them without stepping on one of `avoiding`."""
        reached = {start for start in starts if start in self.shards}
        for shard_id in reversed(self.parents_first):
            if shard_id in reached:
                reached.update(parent for parent in self.parents_of(shard_id) if parent not in avoiding)
        return frozenset(reached)

    def downward_from(self, starts: Iterable[ShardId]) -> frozenset[ShardId]:
        """`starts`, and every listed descendant of them."""
        reached = {start for start in starts if start in self.shards}
        for shard_id in self.parents_first:
            if shard_id in reached:
                reached.update(self.children_of(shard_id))
        return frozenset(reached)


def shard_graph(shards: Iterable[Shard]) -> ShardGraph:
    """The graph of a list of shards. A shard listed twice counts once; two versions of a shard, or a ring of
    parents, are a `ShardListError`.

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
    ties = {parent: tuple(ids) for parent, ids in children.items()}
    return ShardGraph(by_id, _parents_first(by_id, ties), ties)


def unfinished_parents(lease: Lease, leases: Mapping[LeaseKey, Lease]) -> tuple[ShardId, ...]:
    """The parents that a shard still has to wait for: it may start when there are none.

    A parent without a lease holds nobody up: it was trimmed, or finished and cleaned away.
    """
    found = ((parent, leases.get(lease_key(parent, lease.stream))) for parent in sorted(lease.parents))
    return tuple(parent for parent, held in found if held and not held.checkpoint.is_shard_end)


def names(shard_ids: Iterable[ShardId]) -> str:
    """Shard ids for a message, and never more of them than a reader would read.

    >>> names(ShardId(f"s-{i}") for i in range(10))
    's-0, s-1, s-2, s-3, s-4, s-5, s-6, s-7 and 2 more'
    """
    # Ids come from outside: control characters must not reach a terminal.
    shown = [ascii(shard_id)[1:-1] for shard_id in shard_ids]
    rest = len(shown) - _NAMES_SHOWN_MAX
    return ", ".join(shown[:_NAMES_SHOWN_MAX]) + (f" and {rest} more" if rest > 0 else "")


def _by_id(shards: Iterable[Shard]) -> dict[ShardId, Shard]:
    by_id: dict[ShardId, Shard] = {}
    for shard in shards:
        known = by_id.setdefault(shard.id, shard)
        if known != shard:
            raise ShardListError(
                f"shard {names([shard.id])} is listed twice, and differently ({_brief(known)}; "
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
    # The list grows while it is read: a shard joins when the last of its parents has been passed.
    for shard_id in order:
        for child in children.get(shard_id, ()):
            waiting_for[child] -= 1
            if waiting_for[child] == 0:
                order.append(child)
    if len(order) < len(shards):
        ring = tuple(_ring(shards, {shard_id for shard_id, parents in waiting_for.items() if parents > 0}))
        raise ShardListError(
            f"{len(ring)} shards are their own ancestors ({names(ring)}): no stream can look like this, so "
            "the list was damaged on its way; list again, and check what stands between us and Kinesis"
        )
    return tuple(order)


def _ring(shards: Mapping[ShardId, Shard], stuck: Collection[ShardId]) -> Iterator[ShardId]:
    """One ring of parents among shards that each wait for another of them."""

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
