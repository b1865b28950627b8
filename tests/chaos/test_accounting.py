"""The accounts of a run find what is lost, what is doubled, and what nobody can explain."""

import asyncio
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq

from leasehold.adapters.memory.objects import MemoryObjects
from tests.chaos.accounting import UNEXPLAINED, ArchiveAccount, Disruption, explain_repeats
from tests.fleet.run_check import Handled

KILLED, PAUSED, CUT_OFF = "its owner was killed", "its owner was paused", "its owner was cut off"


def _object(*numbers: int) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"data": [str(number).encode() for number in numbers]}), sink)
    return bytes(sink.getvalue())


def _handled(at_ns: int, worker: str, shard: str = "s-0", number: int = 7) -> Handled:
    return Handled(at_ns, worker, f"token-{worker}", shard, 1, 0, number)


def test_lost_and_doubled_rows_are_found() -> None:
    """Rows are counted over all objects, those that come later included, and each object once."""
    store = MemoryObjects()
    account = ArchiveAccount(store)

    async def story() -> None:
        await store.put_if_absent("2026/a.parquet", _object(0, 1, 2))
        await store.put_if_absent("_leasehold.json", b"{}")
        await account.read_new_objects()
        await store.put_if_absent("2026/b.parquet", _object(2, 4))
        await account.read_new_objects()

    asyncio.run(story())
    assert account.lost(5) == {3}
    assert account.duplicated == 1
    assert account.objects == 2


def test_a_repetition_is_explained_by_what_befell_its_owner_meanwhile() -> None:
    """A kill or a pause between the two times explains; one before or after both, or of somebody else, does not."""
    records = [_handled(100, "w-1"), _handled(200, "w-2")]
    assert explain_repeats(records, [Disruption("w-1", KILLED, 150)]) == {KILLED: 1}
    assert explain_repeats(records, [Disruption("w-1", PAUSED, 50, 120)]) == {PAUSED: 1}
    assert explain_repeats(records, [Disruption("w-1", PAUSED, 50, 90)]) == {UNEXPLAINED: 1}
    assert explain_repeats(records, [Disruption("w-1", KILLED, 250)]) == {UNEXPLAINED: 1}
    assert explain_repeats(records, [Disruption("w-3", KILLED, 150)]) == {UNEXPLAINED: 1}


def test_one_who_wakes_up_late_explains_a_repetition_too() -> None:
    """Who slept handled the record second, after its heir."""
    records = [_handled(100, "heir"), _handled(200, "sleeper")]
    assert explain_repeats(records, [Disruption("sleeper", PAUSED, 50, 190)]) == {PAUSED: 1}


def test_a_lost_lease_explains_repetitions_of_its_shard_only() -> None:
    """When it was lost is not known, of which shard is."""
    records = [_handled(100, "w-1"), _handled(200, "w-1")]
    assert explain_repeats(records, [Disruption("w-1", CUT_OFF, shard="s-0")]) == {CUT_OFF: 1}
    assert explain_repeats(records, [Disruption("w-1", CUT_OFF, shard="s-1")]) == {UNEXPLAINED: 1}


def test_what_was_handled_once_is_no_repetition() -> None:
    """Different records of one shard need no explanation."""
    assert explain_repeats([_handled(1, "w-1", number=1), _handled(2, "w-2", number=2)], []) == Counter()
