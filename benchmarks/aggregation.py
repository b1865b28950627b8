"""How much does it cost to take KPL aggregates apart, and to make them? Beside aws-kinesis-agg, if it is installed.

    python benchmarks/aggregation.py [--json] [--repeats N]

aws-kinesis-agg is no dependency of this project. To compare, install `aws-kinesis-agg six protobuf` into a temporary
virtual environment and run this file with its Python and `PYTHONPATH=src`. It is asked for what its users get:
dictionaries with the data in base64. It checks no hash range. Ratios come from one run, the measurements of both sides
interleaved, so that a busy machine slows both alike.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import google.protobuf
from google.protobuf.internal import api_implementation

from leasehold.core.model import WHOLE_HASH_RANGE, HashRange
from leasehold.core.record import PutEntry, Record
from leasehold.core.records.aggregation import Aggregator
from leasehold.core.records.deaggregation import deaggregate_all

try:
    from aws_kinesis_agg.aggregator import RecordAggregator
    from aws_kinesis_agg.deaggregator import iter_deaggregate_records
except ImportError:
    RecordAggregator = iter_deaggregate_records = None

KPL_DEFAULT_BYTES = 51_200
USER_RECORDS = 20_000
ARRIVAL = datetime(2024, 6, 7, tzinfo=UTC)
# The range of a shard that happens to hold every key, so that each is hashed and none is dropped.
ALL_BUT_ONE = HashRange(0, WHOLE_HASH_RANGE.end - 1)

Work = Callable[[], int]


def entries(size: int, keys: int, *, explicit: bool = False) -> list[PutEntry]:
    """As many user records as a run handles, of `size` bytes, with `keys` different keys."""
    return [
        PutEntry(
            number.to_bytes(size, "big"), f"customer-{number % keys:08d}", number % keys if explicit else None
        )
        for number in range(USER_RECORDS)
    ]


def packed(given: list[PutEntry], size_max: int = KPL_DEFAULT_BYTES) -> list[Record]:
    aggregator = Aggregator(size_max=size_max)
    found = []
    for entry in given:
        if not aggregator.add(entry):
            found.append(aggregator.flush())
            aggregator.add(entry)
    found.append(aggregator.flush())
    return [Record(each.data, each.partition_key, str(10**55 + number)) for number, each in enumerate(found)]


def plain(given: list[PutEntry]) -> list[Record]:
    return [Record(each.data, each.partition_key, str(10**55 + number)) for number, each in enumerate(given)]


def ours(records: list[Record], shard: HashRange | None = None) -> Work:
    return lambda: len(deaggregate_all(records, shard).records)


def theirs(records: list[Record]) -> Work | None:
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


def their_packing(given: list[PutEntry]) -> Work | None:
    if RecordAggregator is None:
        return None

    def run() -> int:
        aggregator = RecordAggregator(KPL_DEFAULT_BYTES)
        for entry in given:
            full = aggregator.add_user_record(entry.partition_key, entry.data)
            if full:
                full.get_contents()
        aggregator.clear_and_get().get_contents()
        return len(given)

    return run


def our_packing(given: list[PutEntry]) -> Work:
    def run() -> int:
        packed(given)
        return len(given)

    return run


def cases() -> list[tuple[str, Work, Work | None]]:
    small, medium, large = (
        entries(100, 1_000_000),
        entries(1_000, 1_000_000),
        entries(10_000, 1_000_000)[:2_000],
    )
    few_keys, explicit = entries(100, 10), entries(100, 1_000_000, explicit=True)
    tiny = packed(entries(4, 1), 1_000_000)
    return [
        ("plain records, 100 B", ours(plain(small)), theirs(plain(small))),
        ("aggregates of 100 B, a key each", ours(packed(small)), theirs(packed(small))),
        ("aggregates of 100 B, ten keys", ours(packed(few_keys)), theirs(packed(few_keys))),
        ("aggregates of 100 B, explicit hash keys", ours(packed(explicit)), theirs(packed(explicit))),
        (
            "aggregates of 100 B, a key each, range checked",
            ours(packed(small), ALL_BUT_ONE),
            theirs(packed(small)),
        ),
        ("aggregates of 1 kB", ours(packed(medium)), theirs(packed(medium))),
        ("aggregates of 10 kB", ours(packed(large)), theirs(packed(large))),
        ("one aggregate of 20,000 tiny records", ours(tiny), theirs(tiny)),
        ("packing 100 B, a key each", our_packing(small), their_packing(small)),
    ]


def timed(work: Work) -> float:
    """Nanoseconds a user record."""
    start = time.perf_counter_ns()
    count = work()
    return (time.perf_counter_ns() - start) / count


def measured(name: str, our: Work, their: Work | None, repeats: int) -> dict[str, Any]:
    our_times, their_times = [], []
    for _ in range(repeats):
        our_times.append(timed(our))
        if their:
            their_times.append(timed(their))
    row: dict[str, Any] = {"case": name, "ns": spread(our_times)}
    if their:
        row |= {
            "peer_ns": spread(their_times),
            "ratio": statistics.median(their_times) / statistics.median(our_times),
        }
    return row


def spread(times: list[float]) -> dict[str, float]:
    return {"min": min(times), "median": statistics.median(times), "max": max(times)}


def shown(row: dict[str, Any]) -> str:
    def numbers(each: dict[str, float] | None) -> str:
        return f"{each['median']:8.0f} ({each['min']:.0f}-{each['max']:.0f})" if each else "not installed"

    ratio = f"{row['ratio']:6.1f} x" if "ratio" in row else ""
    return f"{row['case']:48s} {numbers(row['ns']):>26s} {numbers(row.get('peer_ns')):>30s} {ratio}"


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
    rows = [measured(*case, arguments.repeats) for case in cases()]
    if arguments.json:
        print(json.dumps({"environment": environment, "rows": rows}, indent=2))
        return
    print(", ".join(f"{key} {value}" for key, value in environment.items()))
    print(f"{'ns a user record: median (min-max)':48s} {'leasehold':>26s} {'aws-kinesis-agg':>30s}  ratio")
    print("\n".join(map(shown, rows)))


if __name__ == "__main__":
    main()
