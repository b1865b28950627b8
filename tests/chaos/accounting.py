"""Accounts for every record: what the archive holds, and why a handler was given a record again."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from leasehold.ports import ObjectStore
from tests.fleet.run_check import Handled

UNEXPLAINED = "nobody knows why"
FOREVER_NS = 1 << 63


@dataclass
class ArchiveAccount:
    """The numbers of all records in an archive. Objects never change, so each is read once."""

    store: ObjectStore
    found: Counter[int] = field(default_factory=Counter)
    _read: set[str] = field(default_factory=set)

    @property
    def objects(self) -> int:
        """How many objects there are."""
        return len(self._read)

    @property
    def duplicated(self) -> int:
        """How many rows there are too many."""
        return self.found.total() - len(self.found)

    def lost(self, produced: int) -> set[int]:
        """The numbers that are not there."""
        return set(range(produced)) - self.found.keys()

    async def read_new_objects(self) -> None:
        """Read what is new."""
        async for portion in self.store.list_after(""):
            for each in portion:
                if each.key.endswith(".parquet") and each.key not in self._read:
                    body = await self.store.get(each.key)
                    assert body is not None, f"{each.key} was listed, and is gone"
                    self._read.add(each.key)
                    self.found.update(_numbers(body))


def _numbers(body: bytes) -> Iterator[int]:
    return map(int, pq.read_table(pa.BufferReader(body), columns=["data"])["data"].to_pylist())


class Disruption(NamedTuple):
    """Something that befell a worker. Of a lost lease it is known whose shard, and not when."""

    worker: str
    what: str
    from_ns: int = 0
    until_ns: int = FOREVER_NS
    shard: str | None = None


def explain_repeats(records: Iterable[Handled], mishaps: Iterable[Disruption]) -> Counter[str]:
    """For every time that a record was handled again: what befell one of the two who did, between the two times."""
    known: defaultdict[str, list[Disruption]] = defaultdict(list)
    for mishap in mishaps:
        known[mishap.worker].append(mishap)
    times: defaultdict[int, list[Handled]] = defaultdict(list)
    for record in records:
        times[record.number].append(record)
    return Counter(
        _reason(before, again, [*known[before.worker], *known[again.worker]])
        for handled in times.values()
        for before, again in pairwise(sorted(handled))
    )


def _reason(before: Handled, again: Handled, mishaps: Sequence[Disruption]) -> str:
    """What has a time explains more than what has none."""
    fitting = [each for each in mishaps if _fits(each, before, again)]
    return min(fitting, key=lambda each: each.shard is not None).what if fitting else UNEXPLAINED


def _fits(mishap: Disruption, before: Handled, again: Handled) -> bool:
    is_in_time = mishap.from_ns <= again.at_ns and mishap.until_ns >= before.at_ns
    return is_in_time and mishap.shard in {None, before.shard}
