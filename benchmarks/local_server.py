"""Measures the throughput of the local Kinesis server, and whether it stays the same as a shard grows.

    python benchmarks/local_server.py [--json] [--records 10000 100000 1000000]

Puts and gets records of 1 KB in one shard with 10,000, 100,000 and 1,000,000 records. The client sends raw HTTP with
prepared bodies, so no SDK is measured. MB/s are 10^6 bytes of payload per second of the *server's* CPU time, that is,
per core. Wall-clock rates are shown too; client and server share the machine. The last figure is the time from a put to
the event that a subscriber gets, on an idle server.
"""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import os
import platform
import re
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from urllib.parse import urlsplit

RECORD_BYTES = 1_000
RECORDS_PER_PUT = 500
PUTS_MEASURED = 40
PAGES_MEASURED = 5
POLLS_MEASURED = 300
PUSHES_MEASURED = 300
STREAM = "bench"
SHARD = "shardId-000000000000"
HEADERS = {"Content-Type": "application/x-amz-json-1.1"}


@dataclass(frozen=True)
class Measurement:
    """One row of the table. CPU is the server's."""

    records: int
    put_mb_per_cpu_s: float
    put_mb_per_s: float
    get_mb_per_cpu_s: float
    get_mb_per_s: float
    poll_cpu_us: float
    poll_median_us: float
    memory_mb: float


class Server:
    """`leasehold local` in another process, called with raw HTTP."""

    def __init__(self) -> None:
        command = [
            sys.executable,
            "-m",
            "leasehold.cli",
            "local",
            "--port",
            "0",
            "--json",
            "--stream",
            f"{STREAM}:1",
        ]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        url = urlsplit(json.loads(self._process.stdout.readline())["endpoint_url"])
        self._address = (str(url.hostname), url.port)
        self._http = http.client.HTTPConnection(*self._address)

    def subscribe(self) -> http.client.HTTPResponse:
        """Subscribe from LATEST on, over a new connection."""
        summary = json.loads(self.call("DescribeStreamSummary", json.dumps({"StreamName": STREAM}).encode()))
        arn = summary["StreamDescriptionSummary"]["StreamARN"]
        register = json.dumps({"StreamARN": arn, "ConsumerName": "bench"}).encode()
        consumer = json.loads(self.call("RegisterStreamConsumer", register))["Consumer"]["ConsumerARN"]
        request = {"ConsumerARN": consumer, "ShardId": SHARD, "StartingPosition": {"Type": "LATEST"}}
        connection = http.client.HTTPConnection(*self._address)
        headers = {**HEADERS, "X-Amz-Target": "Kinesis_20131202.SubscribeToShard"}
        connection.request("POST", "/", json.dumps(request), headers)
        return connection.getresponse()

    def call(self, operation: str, body: bytes) -> bytes:
        headers = {**HEADERS, "X-Amz-Target": f"Kinesis_20131202.{operation}"}
        self._http.request("POST", "/", body, headers)
        response = self._http.getresponse()
        content = response.read()
        if response.status != http.client.OK:
            sys.exit(f"{operation} failed: {content[:300]!r}")
        return content

    def cpu_s(self) -> float:
        """Return the CPU time of the server so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def stop(self) -> None:
        self._http.close()
        self._process.terminate()
        self._process.wait(30)


@contextmanager
def running_server() -> Iterator[Server]:
    server = Server()
    try:
        yield server
    finally:
        server.stop()


def put_body() -> bytes:
    record = {"Data": base64.b64encode(os.urandom(RECORD_BYTES)).decode(), "PartitionKey": "key-0001"}
    return json.dumps({"StreamName": STREAM, "Records": [record] * RECORDS_PER_PUT}).encode()


def iterator(server: Server, kind: str) -> str:
    body = {"StreamName": STREAM, "ShardId": SHARD, "ShardIteratorType": kind}
    token: str = json.loads(server.call("GetShardIterator", json.dumps(body).encode()))["ShardIterator"]
    return token


def get(server: Server, token: str) -> tuple[int, str]:
    """Read one page. Returns the number of records and the next iterator; the body is searched, not parsed."""
    body = server.call("GetRecords", json.dumps({"ShardIterator": token}).encode())
    found = re.search(rb'"NextShardIterator":"([^"]+)"', body[-1000:])
    assert found, "an open shard has a next iterator"
    return body.count(b'"SequenceNumber"'), found[1].decode()


def measure_seconds(server: Server, work: Callable[[], None]) -> tuple[float, float]:
    """Return the seconds of the server's CPU, and of the wall clock."""
    cpu_s, wall_s = server.cpu_s(), time.perf_counter()
    work()
    return server.cpu_s() - cpu_s, time.perf_counter() - wall_s


def measure(server: Server, body: bytes, records: int, already: int) -> Measurement:
    """Fill the shard to `records` and measure the last puts. Then read from its start and poll its tip."""
    puts = (records - already) // RECORDS_PER_PUT
    measured = min(PUTS_MEASURED, puts)
    for _ in range(puts - measured):
        server.call("PutRecords", body)
    put_cpu_s, put_s = measure_seconds(
        server, lambda: [server.call("PutRecords", body) for _ in range(measured)] and None
    )

    got = 0

    def read_pages() -> None:
        nonlocal got
        token = iterator(server, "TRIM_HORIZON")
        for _ in range(PAGES_MEASURED):
            count, token = get(server, token)
            got += count
            if not count:
                token = iterator(server, "TRIM_HORIZON")

    get_cpu_s, get_s = measure_seconds(server, read_pages)

    polls: list[float] = []

    def poll_tip() -> None:
        token = iterator(server, "LATEST")
        for _ in range(POLLS_MEASURED):
            began_s = time.perf_counter()
            _, token = get(server, token)
            polls.append(time.perf_counter() - began_s)

    poll_cpu_s, _ = measure_seconds(server, poll_tip)
    put_mb, got_mb = measured * RECORDS_PER_PUT * RECORD_BYTES / 1e6, got * RECORD_BYTES / 1e6
    return Measurement(
        records,
        put_mb / put_cpu_s,
        put_mb / put_s,
        got_mb / get_cpu_s,
        got_mb / get_s,
        poll_cpu_s / POLLS_MEASURED * 1e6,
        statistics.median(polls) * 1e6,
        server.memory_mb(),
    )


def push_median_us(server: Server) -> float:
    """Return the median time from the start of a put to the arrival of its event."""
    body = json.dumps({"StreamName": STREAM, "Data": "", "PartitionKey": "k"}).encode()
    events = server.subscribe()
    read_frame(events)
    delays: list[float] = []
    for _ in range(PUSHES_MEASURED):
        began_s = time.perf_counter()
        server.call("PutRecord", body)
        while b'"SequenceNumber"' not in read_frame(events):
            pass
        delays.append(time.perf_counter() - began_s)
    events.close()
    return statistics.median(delays) * 1e6


def read_frame(events: http.client.HTTPResponse) -> bytes:
    prelude = events.read(12)
    return events.read(struct.unpack("!I", prelude[:4])[0] - len(prelude))


def environment() -> dict[str, str]:
    return {
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def print_table(rows: list[Measurement]) -> None:
    print(", ".join(f"{name} {value}" for name, value in environment().items()))
    print(
        f"records of {RECORD_BYTES} bytes, puts of {RECORDS_PER_PUT}, one shard, JSON; CPU is the server's\n"
    )
    print(f"{'in shard':>10} {'put MB/s':>18} {'get MB/s':>18} {'poll at the tip':>22} {'memory':>8}")
    print(f"{'':>10} {'cpu':>9}{'wall':>9} {'cpu':>9}{'wall':>9} {'cpu':>10}{'median':>12} {'':>8}")
    for row in rows:
        print(
            f"{row.records:>10,} {row.put_mb_per_cpu_s:>9.0f}{row.put_mb_per_s:>9.0f} "
            f"{row.get_mb_per_cpu_s:>9.0f}{row.get_mb_per_s:>9.0f} "
            f"{row.poll_cpu_us:>8.0f}us{row.poll_median_us:>10.0f}us {row.memory_mb:>6.0f}MB"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--records", type=int, nargs="+", default=[10_000, 100_000, 1_000_000])
    arguments = parser.parse_args()
    rows: list[Measurement] = []
    body = put_body()
    with running_server() as server:
        for records in sorted(arguments.records):
            rows.append(measure(server, body, records, rows[-1].records if rows else 0))
        push_us = push_median_us(server)
    if arguments.json:
        found = {
            "environment": environment(),
            "rows": [asdict(row) for row in rows],
            "push_median_us": push_us,
        }
        print(json.dumps(found))
    else:
        print_table(rows)
        print(f"\nfrom a put to its event: {push_us:.0f}us, median of {PUSHES_MEASURED}")


if __name__ == "__main__":
    main()
