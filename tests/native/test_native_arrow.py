"""Batches of the native package: Arrow's interface, records, memory and threads."""

import gc
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from leasehold.core.record import PutEntry, Record, UserRecord
from leasehold.core.records.aggregation import aggregate
from tests.native.hostile_bodies import page_text
from tests.native.outcomes import RAW, USER, raw_batch, rows_of

RECORDS = [Record(b"one", "a", "1", 5, "KMS"), Record(b"", "größe", "2")]


def native() -> Any:
    import leasehold_native

    return leasehold_native


def page_of(count: int, data: str = "aGVsbG8=") -> bytes:
    record = f'{{"Data":"{data}","PartitionKey":"key","SequenceNumber":"4711"}}'
    return page_text(Records=f"[{','.join([record] * count)}]").encode()


def test_a_batch_outlives_its_page_and_may_be_read_twice() -> None:
    batch = native().decode_page(page_of(3)).records
    first, second = pa.record_batch(batch), pa.record_batch(batch)
    column = first.column("data")
    del batch, first
    gc.collect()
    assert column.to_pylist() == [b"hello"] * 3
    assert second.schema.equals(RAW)


def test_an_unused_capsule_is_released() -> None:
    """Nobody takes the array out of it."""
    batch = native().decode_page(page_of(3)).records
    for _ in range(100):
        batch.__arrow_c_array__()
        batch.__arrow_c_schema__()
    assert len(rows_of(batch, RAW)) == 3


def test_an_array_that_was_taken_out_is_refused() -> None:
    capsules = native().decode_page(page_of(3)).records.__arrow_c_array__()

    class Consumed:
        def __arrow_c_array__(self, _schema: object = None) -> Any:
            return capsules

    assert native().deaggregate(Consumed())[1] == []
    with pytest.raises(TypeError, match="already used up"):
        native().deaggregate(Consumed())


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([*RAW][:4]),
        USER,
        pa.schema([*RAW][::-1]),
        RAW.set(0, pa.field("data", pa.large_binary())),
        RAW.set(1, pa.field("partition_key", pa.dictionary(pa.int32(), pa.string()))),
        RAW.set(3, pa.field("arrival_ms", pa.timestamp("ms"))),
        RAW.set(3, pa.field("other", pa.int64())),
    ],
)
def test_a_batch_with_other_columns_is_a_type_error(schema: pa.Schema) -> None:
    batch = pa.RecordBatch.from_pylist([], schema=schema)
    with pytest.raises(TypeError, match="does not have the columns data, partition_key"):
        native().deaggregate(batch)


@pytest.mark.parametrize("batch", [None, 7, b"", pa.array([1])])
def test_what_is_no_batch_is_refused(batch: Any) -> None:
    with pytest.raises(TypeError):
        native().deaggregate(batch)


def test_records_are_made_of_any_named_tuple() -> None:
    users, _ = native().deaggregate(raw_batch(RECORDS))
    made = native().to_records(users, UserRecord)
    assert made == [each.as_user_record() for each in RECORDS]
    assert [type(each) for each in made] == [UserRecord, UserRecord]
    assert made[0].position.sequence_number == "1"
    assert all(gc.is_tracked(each) for each in made)
    assert native().to_records(users, tuple) == [tuple(each.as_user_record()) for each in RECORDS]
    with pytest.raises(TypeError, match="must be a named tuple"):
        native().to_records(users, dict)
    with pytest.raises(TypeError, match="sub_sequence_number"):
        native().to_records(raw_batch(RECORDS), UserRecord)


def test_a_text_that_is_not_utf8_is_an_error() -> None:
    """Such a column is no valid Arrow column, but another library may pass it."""
    users, _ = native().deaggregate(raw_batch(RECORDS))
    table = pa.record_batch(users)
    wrong = table.set_column(1, USER.field(1), pa.array([b"\xff", b"a"]).view(pa.string()))
    with pytest.raises(UnicodeDecodeError):
        native().to_records(wrong, UserRecord)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow() -> None:
    """Not with results, not with errors, not with batches that are shared or taken twice."""
    aggregated = raw_batch([Record(aggregate([PutEntry(bytes(100), "a")] * 100).data, "outer", "1")] * 50)
    body = page_of(1_000, "AAAA" * 100)
    broken = body[:-9] + b"?}"

    def use_everything() -> None:
        page = native().decode_page(body)
        users, _ = native().deaggregate(page.records)
        native().to_records(users, UserRecord)
        pa.record_batch(users)
        users, _ = native().deaggregate(aggregated, 0, 2**127)
        native().to_records(pa.record_batch(users), UserRecord)
        with pytest.raises(ValueError, match="it is not JSON"):
            native().decode_page(broken)

    for _ in range(20):
        use_everything()
    before = resident_bytes()
    for _ in range(100):  # about 2 MB each
        use_everything()
    assert resident_bytes() - before < 20_000_000


def test_python_runs_while_a_page_is_decoded() -> None:
    """The call releases the interpreter: another thread makes progress in the middle of it."""
    body = page_of(20_000, "AAAA" * 400)
    calls: list[tuple[float, float]] = []
    ticks: deque[float] = deque(maxlen=1_000)
    stop = threading.Event()

    def decode() -> None:
        while not stop.is_set():
            start = time.monotonic()
            native().decode_page(body)
            calls.append((start, time.monotonic()))

    def has_tick_inside() -> bool:
        return any(
            start + (end - start) * 0.3 < tick < start + (end - start) * 0.7
            for start, end in calls[-3:]
            for tick in ticks
        )

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    thread = threading.Thread(target=decode)
    thread.start()
    try:
        deadline = time.monotonic() + 120
        while not has_tick_inside():
            ticks.append(time.monotonic())
            assert time.monotonic() < deadline, "no other thread ran in the middle of a call"
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)


def test_threads_may_share_a_batch() -> None:
    """Several threads read the same columns at once."""
    batch = native().decode_page(page_of(1_000)).records
    expected = [Record(b"hello", "key", "4711").as_user_record()] * 1_000
    found: list[bool] = []

    def read() -> None:
        for _ in range(5):
            users, _ = native().deaggregate(batch)
            found.append(native().to_records(users, UserRecord) == expected)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 20
