"""Measures the cost of KPL aggregation and deaggregation, and compares it with aws-kinesis-agg if that is installed.

    python benchmarks/aggregation.py [--json] [--repeats N]

aws-kinesis-agg is not a dependency of this project. To compare, install `aws-kinesis-agg six protobuf` into a temporary
virtual environment, and run this file with its Python and `PYTHONPATH=src`. aws-kinesis-agg returns what its users get:
dictionaries with the data in base64. It does not check hash ranges. Both sides are measured in turns in one run, so a
busy machine slows both equally.
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
# Nearly the whole hash range: every key is hashed and checked, and none is outside.
NEARLY_ALL_KEYS = HashRange(0, WHOLE_HASH_RANGE.end - 1)

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
    return lambda: len(deaggregate_all(records, shard).records)


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


def cases() -> list[tuple[str, Work, Work | None]]:
    small, medium, large = (
        make_entries(100, 1_000_000),
        make_entries(1_000, 1_000_000),
        make_entries(10_000, 1_000_000)[:2_000],
    )
    few_keys, explicit = make_entries(100, 10), make_entries(100, 1_000_000, explicit=True)
    tiny = aggregate_records(make_entries(4, 1), 1_000_000)
    return [
        (
            "plain records, 100 B",
            our_deaggregation(plain_records(small)),
            their_deaggregation(plain_records(small)),
        ),
        (
            "aggregates of 100 B, a key each",
            our_deaggregation(aggregate_records(small)),
            their_deaggregation(aggregate_records(small)),
        ),
        (
            "aggregates of 100 B, ten keys",
            our_deaggregation(aggregate_records(few_keys)),
            their_deaggregation(aggregate_records(few_keys)),
        ),
        (
            "aggregates of 100 B, explicit hash keys",
            our_deaggregation(aggregate_records(explicit)),
            their_deaggregation(aggregate_records(explicit)),
        ),
        (
            "aggregates of 100 B, a key each, range checked",
            our_deaggregation(aggregate_records(small), NEARLY_ALL_KEYS),
            their_deaggregation(aggregate_records(small)),
        ),
        (
            "aggregates of 1 kB",
            our_deaggregation(aggregate_records(medium)),
            their_deaggregation(aggregate_records(medium)),
        ),
        (
            "aggregates of 10 kB",
            our_deaggregation(aggregate_records(large)),
            their_deaggregation(aggregate_records(large)),
        ),
        ("one aggregate of 20,000 tiny records", our_deaggregation(tiny), their_deaggregation(tiny)),
        ("aggregation of 100 B, a key each", our_aggregation(small), their_aggregation(small)),
    ]


def measure_ns(work: Work) -> float:
    """Return nanoseconds per user record."""
    start = time.perf_counter_ns()
    count = work()
    return (time.perf_counter_ns() - start) / count


def measure(name: str, our: Work, their: Work | None, repeats: int) -> dict[str, Any]:
    our_times, their_times = [], []
    for _ in range(repeats):
        our_times.append(measure_ns(our))
        if their:
            their_times.append(measure_ns(their))
    row: dict[str, Any] = {"case": name, "ns": min_median_max(our_times)}
    if their:
        row |= {
            "peer_ns": min_median_max(their_times),
            "ratio": statistics.median(their_times) / statistics.median(our_times),
        }
    return row


def min_median_max(times: list[float]) -> dict[str, float]:
    return {"min": min(times), "median": statistics.median(times), "max": max(times)}


def format_row(row: dict[str, Any]) -> str:
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
    rows = [measure(*case, arguments.repeats) for case in cases()]
    if arguments.json:
        print(json.dumps({"environment": environment, "rows": rows}, indent=2))
        return
    print(", ".join(f"{key} {value}" for key, value in environment.items()))
    print(f"{'ns per user record: median (min-max)':48s} {'leasehold':>26s} {'aws-kinesis-agg':>30s}  ratio")
    print("\n".join(map(format_row, rows)))


if __name__ == "__main__":
    main()
