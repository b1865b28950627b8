"""Measures the cost of KPL aggregation and deaggregation, and compares it with aws-kinesis-agg if that is installed.

    python -m benchmarks aggregation

aws-kinesis-agg is in the environment `.venv-bench`, whose Python runs this file; `make bench` installs leasehold-native
there, too, where it can be built. aws-kinesis-agg returns what its users get: dictionaries with the data in base64. It
does not check hash ranges. If leasehold-native and pyarrow are installed, the native deaggregation is measured, too:
from Arrow columns to Arrow columns ("native"), and with a `UserRecord` for each user record ("native records"). All
sides are measured in turns in one run, so a busy machine slows them equally. Each side has the settings of the garbage
collector of its own process: a worker of leasehold tunes the collector when it starts, aws-kinesis-agg leaves it alone.
The allocator keeps freed memory, as in a worker, for all sides.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import google.protobuf
from google.protobuf.internal import api_implementation

from benchmarks.harness import Plan, Result
from leasehold.core.model import WHOLE_HASH_RANGE, HashRange
from leasehold.core.record import PutEntry, Record, UserRecord
from leasehold.core.records.aggregation import Aggregator
from leasehold.core.records.deaggregation import deaggregate_all
from leasehold.garbage_collection import tune_garbage_collection
from leasehold.memory_allocation import keep_freed_memory

try:
    from aws_kinesis_agg.aggregator import RecordAggregator
    from aws_kinesis_agg.deaggregator import iter_deaggregate_records
except ImportError:
    RecordAggregator = iter_deaggregate_records = None

try:
    import leasehold_native
    import pyarrow as pa
except ImportError:
    leasehold_native = None  # type: ignore[assignment]

KPL_DEFAULT_BYTES = 51_200
USER_RECORDS = 20_000
REPEATS = (11, 3)  # of a standard run and of a quick one; a repeat takes half a second
ARRIVAL = datetime(2024, 6, 7, tzinfo=UTC)
# Nearly the whole hash range: every key is hashed and checked, and none is outside.
NEARLY_ALL_KEYS = HashRange(0, WHOLE_HASH_RANGE.end - 1)

PEER = "aws-kinesis-agg"
COMPARISONS = ("deaggregation",)
COLUMNS = ("leasehold", "native", "native records", PEER)
NOT_MEASURED = (
    "leasehold-native is not installed in .venv-bench, so native deaggregation is not measured: "
    "`make .venv-bench/.native` builds it, with a Rust toolchain"
)

Work = Callable[[], int]


def make_entries(size: int, keys: int, *, explicit: bool = False) -> list[PutEntry]:
    """Return the user records of one run, of `size` bytes, with `keys` different keys."""
    return [
        PutEntry(
            number.to_bytes(size, "big"), f"customer-{number % keys:08d}", number % keys if explicit else None
        )
        for number in range(USER_RECORDS)
    ]


def aggregate_records(entries: list[PutEntry], size_max: int = KPL_DEFAULT_BYTES) -> list[Record]:
    aggregator = Aggregator(size_max=size_max)
    aggregates = []
    for entry in entries:
        if not aggregator.add(entry):
            aggregates.append(aggregator.flush())
            aggregator.add(entry)
    aggregates.append(aggregator.flush())
    return [
        Record(each.data, each.partition_key, str(10**55 + number)) for number, each in enumerate(aggregates)
    ]


def plain_records(entries: list[PutEntry]) -> list[Record]:
    return [
        Record(each.data, each.partition_key, str(10**55 + number)) for number, each in enumerate(entries)
    ]


def our_deaggregation(records: list[Record], shard: HashRange | None = None) -> Work:
    return lambda: len(tuple(deaggregate_all(records, shard).records))


def our_columns(records: list[Record], shard: HashRange | None = None) -> Work:
    """As Spark and the archive do: without an object for a user record."""
    return lambda: len(deaggregate_all(records, shard).records)


def native_deaggregation(records: list[Record], shard: HashRange | None = None, *, made: bool) -> Work | None:
    """The user records as columns or, if `made`, as objects."""
    if leasehold_native is None:
        return None
    types = (pa.binary(), pa.string(), pa.string(), pa.int64(), pa.string())
    columns = [
        pa.array(column, type_) for column, type_ in zip(zip(*records, strict=True), types, strict=True)
    ]
    batch = pa.record_batch(columns, names=list(Record._fields))
    start, end = (None, None) if shard is None else (shard.start, shard.end)

    def run() -> int:
        users, _ = leasehold_native.deaggregate(batch, start, end)
        return len(leasehold_native.to_records(users, UserRecord) if made else users)

    return run


def their_deaggregation(records: list[Record]) -> Work | None:
    if iter_deaggregate_records is None:
        return None
    answers = [
        {
            "Data": each.data,
            "PartitionKey": each.partition_key,
            "SequenceNumber": each.sequence_number,
            "ApproximateArrivalTimestamp": ARRIVAL,
        }
        for each in records
    ]
    return lambda: len(list(iter_deaggregate_records(answers, data_format="Boto3")))


def their_aggregation(entries: list[PutEntry]) -> Work | None:
    if RecordAggregator is None:
        return None

    def run() -> int:
        aggregator = RecordAggregator(KPL_DEFAULT_BYTES)
        for entry in entries:
            full = aggregator.add_user_record(entry.partition_key, entry.data)
            if full:
                full.get_contents()
        aggregator.clear_and_get().get_contents()
        return len(entries)

    return run


def our_aggregation(entries: list[PutEntry]) -> Work:
    def run() -> int:
        aggregate_records(entries)
        return len(entries)

    return run


Contestants = dict[str, Work | None]


def deaggregation_of(records: list[Record], shard: HashRange | None = None) -> Contestants:
    return {
        "leasehold": our_deaggregation(records, shard),
        "native": native_deaggregation(records, shard, made=False),
        "native records": native_deaggregation(records, shard, made=True),
        "aws-kinesis-agg": their_deaggregation(records),
    }


def cases() -> dict[str, Contestants]:
    small, medium = make_entries(100, 1_000_000), make_entries(1_000, 1_000_000)
    large, few_keys = make_entries(10_000, 1_000_000)[:2_000], make_entries(100, 10)
    explicit = make_entries(100, 1_000_000, explicit=True)
    tiny = aggregate_records(make_entries(4, 1), 1_000_000)
    return {
        "plain records, 100 B": deaggregation_of(plain_records(small)),
        "aggregates of 100 B, a key each": deaggregation_of(aggregate_records(small)),
        "aggregates of 100 B, ten keys": deaggregation_of(aggregate_records(few_keys)),
        "aggregates of 100 B, explicit hash keys": deaggregation_of(aggregate_records(explicit)),
        "aggregates of 100 B, a key each, range checked": deaggregation_of(
            aggregate_records(small), NEARLY_ALL_KEYS
        ),
        "the same as columns": {
            "leasehold": our_columns(aggregate_records(small), NEARLY_ALL_KEYS),
            PEER: their_deaggregation(aggregate_records(small)),
        },
        "aggregates of 1 kB": deaggregation_of(aggregate_records(medium)),
        "aggregates of 1 kB, range checked": deaggregation_of(aggregate_records(medium), NEARLY_ALL_KEYS),
        "aggregates of 10 kB": deaggregation_of(aggregate_records(large)),
        "one aggregate of 20,000 tiny records": deaggregation_of(tiny),
        "aggregation of 100 B, a key each": {
            "leasehold": our_aggregation(small),
            "aws-kinesis-agg": their_aggregation(small),
        },
    }


def measure_ns(work: Work, *, is_tuned: bool) -> float:
    """Return nanoseconds of CPU time per user record, with the collector tuned as by a worker or by default."""
    thresholds = gc.get_threshold()
    if is_tuned:
        tune_garbage_collection()
    start = time.process_time_ns()
    count = work()
    taken = time.process_time_ns() - start
    gc.set_threshold(*thresholds)
    gc.unfreeze()
    return taken / count


def measure(name: str, contestants: Contestants, repeats: int) -> dict[str, Any]:
    times: dict[str, list[float]] = {who: [] for who, work in contestants.items() if work}
    for _ in range(repeats):
        for who, work in contestants.items():
            if work:
                times[who].append(measure_ns(work, is_tuned=who != PEER))
    row: dict[str, Any] = {"case": name, "ns": {who: min_median_max(each) for who, each in times.items()}}
    if PEER in times:
        peer = statistics.median(times[PEER])
        row["ratios"] = {who: peer / statistics.median(each) for who, each in times.items() if who != PEER}
    return row


def min_median_max(times: list[float]) -> dict[str, float]:
    return {"min": min(times), "median": statistics.median(times), "max": max(times)}


def format_row(row: dict[str, Any]) -> str:
    def cell(who: str) -> str:
        if who not in row["ns"]:
            return "-"
        each, ratio = row["ns"][who], row.get("ratios", {}).get(who)
        text = f"{each['median']:.0f} ({each['min']:.0f}-{each['max']:.0f})"
        return text if ratio is None else f"{text} {ratio:5.1f} x"

    return f"{row['case']:48s}" + "".join(f"{cell(who):>28s}" for who in COLUMNS)


PEERS_PYTHON = Path(__file__).parent.parent / ".venv-bench" / "bin" / "python"


def run(plan: Plan) -> Iterator[Result]:
    """Run this file in the environment of the peers, because both sides have to be in one process."""
    folder = Path(__file__).parent.parent
    command = [
        str(PEERS_PYTHON),
        "-m",
        "benchmarks.aggregation",
        "--json",
        "--repeats",
        str(REPEATS[plan.is_quick]),
    ]
    paths = os.pathsep.join([str(folder), str(folder / "src")])
    done = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": paths}, stdout=subprocess.PIPE, check=True, cwd=folder
    )
    rows = json.loads(done.stdout)["rows"]
    if not any("native" in row["ns"] for row in rows):
        print(NOT_MEASURED, file=sys.stderr, flush=True)
    for row in rows:
        sides = {PEER: row["ns"].get(PEER)} | row["ns"]  # the others are compared with the first one
        yield Result(
            f"deaggregation: {row['case']}",
            f"How fast are {row['case']}?",
            "CPU ns a user record",
            "make bench ARGS=aggregation",
            "one object a record",
            {side: [each["min"], each["median"], each["max"]] for side, each in sides.items() if each},
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    environment = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "protobuf": f"{google.protobuf.__version__} ({api_implementation.Type()})",
        "user_records_a_run": USER_RECORDS,
        "repeats": arguments.repeats,
    }
    keep_freed_memory()
    rows = [measure(name, contestants, arguments.repeats) for name, contestants in cases().items()]
    if arguments.json:
        print(json.dumps({"environment": environment, "rows": rows}, indent=2))
        return
    print(", ".join(f"{key} {value}" for key, value in environment.items()))
    title = "ns of CPU time a user record: median (min-max)"
    print(f"{title:48s}" + "".join(f"{who:>28s}" for who in COLUMNS))
    print("\n".join(map(format_row, rows)))
    print("-: not installed. x: how many times as fast as aws-kinesis-agg")


if __name__ == "__main__":
    main()
