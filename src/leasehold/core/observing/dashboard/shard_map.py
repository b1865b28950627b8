"""Where each shard is drawn in the family tree of a stream.

The vertical axis is the range of hash keys, the horizontal one the generation. A shard begins right of its parents and
ends where its children begin, so a split and a merge are visible without lines: each column is one division of the
hash keys. Rows come from outside, so a cycle of parents and unknown ranges are drawn as well as possible.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from leasehold.core.model import HASH_KEY_MAX, HashRange


@dataclass(frozen=True, slots=True)
class FamilyMember:
    """One shard. `parents` are ids of other members; unknown ids are ignored."""

    id: int
    parents: tuple[int, ...]
    hash_range: HashRange | None


@dataclass(frozen=True, slots=True)
class Place:
    """The columns from `generation` to `until` (not included), and the part of the hash keys, from 0 to 1."""

    generation: int
    until: int
    low: float
    high: float


def place_shards(members: Sequence[FamilyMember]) -> Mapping[int, Place]:
    """The place of each shard of one stream."""
    by_id = {member.id: member for member in members}
    children: defaultdict[int, list[int]] = defaultdict(list)
    for member in by_id.values():
        for parent in dict.fromkeys(member.parents):
            if parent in by_id and parent != member.id:
                children[parent].append(member.id)
    generations = _generations(by_id, children)
    columns = 1 + max(generations.values(), default=0)
    ranges = _ranges(by_id, children, generations)
    return {
        shard: Place(
            generation,
            max(generation + 1, min((generations[child] for child in children[shard]), default=columns)),
            *ranges[shard],
        )
        for shard, generation in generations.items()
    }


def _generations(
    by_id: Mapping[int, FamilyMember], children: Mapping[int, Sequence[int]]
) -> Mapping[int, int]:
    """The longest way from a root, parents first. A shard in a cycle of parents has no root: it counts as one."""
    missing = dict.fromkeys(by_id, 0)
    for ids in children.values():
        for child in ids:
            missing[child] += 1
    found = {shard: 0 for shard, parents in missing.items() if parents == 0}
    ready = deque(found)
    ordered: dict[int, int] = {}
    while ready:
        shard = ready.popleft()
        ordered[shard] = found[shard]
        for child in children.get(shard, ()):
            found[child] = max(found.get(child, 0), found[shard] + 1)
            missing[child] -= 1
            if missing[child] == 0:
                ready.append(child)
    return ordered | {shard: 0 for shard in by_id if shard not in ordered}


def _ranges(
    by_id: Mapping[int, FamilyMember],
    children: Mapping[int, Sequence[int]],
    parents_first: Mapping[int, int],
) -> Mapping[int, tuple[float, float]]:
    """The part of the hash keys of each shard. Without one, roots share all, and children what their parents have."""
    roots = [shard for shard, generation in parents_first.items() if generation == 0]
    place_of_root = {shard: number for number, shard in enumerate(sorted(roots))}
    place_of_child = {
        (parent, child): number
        for parent, ids in children.items()
        for number, child in enumerate(sorted(ids))
    }
    found: dict[int, tuple[float, float]] = {}
    for shard in parents_first:
        member = by_id[shard]
        known = [found[parent] for parent in member.parents if parent in found]
        if member.hash_range is not None:
            size = HASH_KEY_MAX + 1
            found[shard] = (member.hash_range.start / size, (member.hash_range.end + 1) / size)
        elif known:
            parent = next(parent for parent in member.parents if parent in found)
            low, high = min(part[0] for part in known), max(part[1] for part in known)
            width = (high - low) / len(children[parent])
            start = low + width * place_of_child[parent, shard]
            found[shard] = (start, start + width)
        else:
            number = place_of_root.get(shard, 0)
            found[shard] = (number / len(roots), (number + 1) / len(roots))
    return found
