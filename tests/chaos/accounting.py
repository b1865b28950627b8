"""Accounts for every record: the rows in the archive, and the cause of each repeated delivery to a handler."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from leasehold.ports import ObjectStore
from tests.fleet.run_check import Handled

UNEXPLAINED = "without a known cause"
FOREVER_NS = 1 << 63


@dataclass
class ArchiveAccount:
    """The numbers of all records in an archive. Objects never change, so each is read once."""

    store: ObjectStore
    found: Counter[int] = field(default_factory=Counter)
    _keys_read: set[str] = field(default_factory=set)

    @property
    def objects(self) -> int:
        """The number of objects."""
        return len(self._keys_read)

    @property
    def duplicated(self) -> int:
        """The number of superfluous rows."""
        return self.found.total() - len(self.found)

    def lost(self, produced: int) -> set[int]:
        """Return the numbers that are not in the archive."""
        return set(range(produced)) - self.found.keys()

    async def read_new_objects(self) -> None:
        """Read the objects that were added since the last call."""
        async for page in self.store.list_after(""):
            for each in page:
                if each.key.endswith(".parquet") and each.key not in self._keys_read:
                    body = await self.store.get(each.key)
                    assert body is not None, f"{each.key} was listed, but does not exist"
                    self._keys_read.add(each.key)
                    self.found.update(_numbers(body))


def _numbers(body: bytes) -> Iterator[int]:
    return map(int, pq.read_table(pa.BufferReader(body), columns=["data"])["data"].to_pylist())


class Disruption(NamedTuple):
    """A fault of a worker that can explain repeated records. A lost lease has a shard, but no time."""

    worker: str
    cause: str
    from_ns: int = 0
    until_ns: int = FOREVER_NS
    shard: str | None = None


def explain_repeats(records: Iterable[Handled], disruptions: Iterable[Disruption]) -> Counter[str]:
    """Count the causes of repeated records.

    A disruption explains a repeated record if it hit one of its two workers between the two times.
    """
    by_worker: defaultdict[str, list[Disruption]] = defaultdict(list)
    for disruption in disruptions:
        by_worker[disruption.worker].append(disruption)
    by_number: defaultdict[int, list[Handled]] = defaultdict(list)
    for record in records:
        by_number[record.number].append(record)
    return Counter(
        _find_cause(first, second, [*by_worker[first.worker], *by_worker[second.worker]])
        for handled in by_number.values()
        for first, second in pairwise(sorted(handled))
    )


def _find_cause(first: Handled, second: Handled, disruptions: Sequence[Disruption]) -> str:
    """Prefer a disruption with a time to one without."""
    matching = [each for each in disruptions if _matches(each, first, second)]
    return min(matching, key=lambda each: each.shard is not None).cause if matching else UNEXPLAINED


def _matches(disruption: Disruption, first: Handled, second: Handled) -> bool:
    is_between = disruption.from_ns <= second.at_ns and disruption.until_ns >= first.at_ns
    return is_between and disruption.shard in {None, first.shard}
