"""The accounting finds lost, duplicated and unexplained records."""

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


def test_lost_and_duplicated_rows_are_found() -> None:
    """Rows of all objects are counted, also of later ones, and each object is read once."""
    store = MemoryObjects()
    account = ArchiveAccount(store)

    async def add_and_read() -> None:
        await store.put_if_absent("2026/a.parquet", _object(0, 1, 2))
        await store.put_if_absent("_leasehold.json", b"{}")
        await account.read_new_objects()
        await store.put_if_absent("2026/b.parquet", _object(2, 4))
        await account.read_new_objects()

    asyncio.run(add_and_read())
    assert account.lost(5) == {3}
    assert account.duplicated == 1
    assert account.objects == 2


def test_a_disruption_between_the_two_times_explains_a_repeat() -> None:
    """A disruption before or after both times, or of another worker, does not explain it."""
    records = [_handled(100, "w-1"), _handled(200, "w-2")]
    assert explain_repeats(records, [Disruption("w-1", KILLED, 150)]) == {KILLED: 1}
    assert explain_repeats(records, [Disruption("w-1", PAUSED, 50, 120)]) == {PAUSED: 1}
    assert explain_repeats(records, [Disruption("w-1", PAUSED, 50, 90)]) == {UNEXPLAINED: 1}
    assert explain_repeats(records, [Disruption("w-1", KILLED, 250)]) == {UNEXPLAINED: 1}
    assert explain_repeats(records, [Disruption("w-3", KILLED, 150)]) == {UNEXPLAINED: 1}


def test_a_pause_of_the_second_worker_explains_a_repeat() -> None:
    """The paused worker handles the record after the next owner."""
    records = [_handled(100, "next-owner"), _handled(200, "paused")]
    assert explain_repeats(records, [Disruption("paused", PAUSED, 50, 190)]) == {PAUSED: 1}


def test_a_lost_lease_explains_only_repeats_of_its_shard() -> None:
    """Its shard is known, its time is not."""
    records = [_handled(100, "w-1"), _handled(200, "w-1")]
    assert explain_repeats(records, [Disruption("w-1", CUT_OFF, shard="s-0")]) == {CUT_OFF: 1}
    assert explain_repeats(records, [Disruption("w-1", CUT_OFF, shard="s-1")]) == {UNEXPLAINED: 1}


def test_a_record_that_was_handled_once_is_no_repeat() -> None:
    """Two different records are no repeat."""
    assert explain_repeats([_handled(1, "w-1", number=1), _handled(2, "w-2", number=2)], []) == Counter()
