"""Fills streams of a local Kinesis server with records to read: plain, or as KPL aggregates."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import sys
from dataclasses import dataclass
from urllib.parse import urlsplit

from leasehold.core.record import PutEntry
from leasehold.core.records.aggregation import Aggregator
from leasehold.local import LocalKinesis

SHARDS = 4
PUT_RECORDS = 500
PUT_BYTES = 3_000_000
AGGREGATE_BYTES = 51_200  # the KPL's default
PUT_HEADERS = {"Content-Type": "application/x-amz-json-1.1", "X-Amz-Target": "Kinesis_20131202.PutRecords"}


@dataclass(frozen=True)
class Backlog:
    """What a stream contains. An aggregate is one record with many user records."""

    user_records: int
    records: int


def fill(kinesis: LocalKinesis, stream: str, record_bytes: int, megabytes: int) -> None:
    """Fill a stream by sending one prepared request many times; its records go to all shards."""
    records = min(PUT_RECORDS, PUT_BYTES // record_bytes)
    _put(
        kinesis,
        stream,
        _plain_entries(record_bytes, records),
        megabytes * 1_000_000 // record_bytes // records,
    )


def fill_backlog(
    kinesis: LocalKinesis, stream: str, record_bytes: int, records: int, *, aggregated: bool
) -> Backlog:
    """Fill a stream with at least so many user records."""
    if aggregated:
        each, entries = _aggregate_entries(record_bytes)
    else:
        each = min(PUT_RECORDS, PUT_BYTES // record_bytes)
        entries = _plain_entries(record_bytes, each)
    requests = -(-records // each)
    _put(kinesis, stream, entries, requests)
    return Backlog(requests * each, requests * len(entries))


def _plain_entries(record_bytes: int, count: int) -> list[dict[str, str]]:
    return [
        {"Data": base64.b64encode(os.urandom(record_bytes)).decode(), "PartitionKey": f"key-{index}"}
        for index in range(count)
    ]


def _aggregate_entries(record_bytes: int) -> tuple[int, list[dict[str, str]]]:
    """The entries of one request, and the number of their user records.

    Each aggregate has only keys of its shard, of four even ones: a consumer drops the others, as the KCL does.
    """
    open_aggregates = [Aggregator(size_max=AGGREGATE_BYTES) for _ in range(SHARDS)]
    made: list[PutEntry] = []
    number = 0
    while True:
        entry = PutEntry(os.urandom(record_bytes), f"key-{number}")
        shard = int(hashlib.md5(entry.partition_key.encode()).hexdigest(), 16) * SHARDS >> 128
        if not open_aggregates[shard].add(entry):
            whole = open_aggregates[shard].flush()
            made.append(whole._replace(explicit_hash_key=(shard << 128) // SHARDS))
            if sum(len(each.data) for each in made) > PUT_BYTES * 2 // 3:
                break
            open_aggregates[shard].add(entry)
        number += 1
    left = sum(len(each) for each in open_aggregates)
    return number - left, [
        {
            "Data": base64.b64encode(each.data).decode(),
            "PartitionKey": each.partition_key,
            "ExplicitHashKey": str(each.explicit_hash_key),
        }
        for each in made
    ]


def _put(kinesis: LocalKinesis, stream: str, entries: list[dict[str, str]], requests: int) -> None:
    body = json.dumps({"StreamName": stream, "Records": entries}).encode()
    url = urlsplit(kinesis.endpoint_url)
    connection = http.client.HTTPConnection(str(url.hostname), url.port)
    for _ in range(requests):
        connection.request("POST", "/", body, PUT_HEADERS)
        response = connection.getresponse()
        if b'"FailedRecordCount":0' not in response.read():
            sys.exit(f"{stream} could not be filled: {response.status}")
    connection.close()
