"""How much processor time does it take to get records out of GetRecords? Plain boto3 beside our `before-parse` hook.

    python benchmarks/decode.py [--json] [--seconds N]

A server in a process of its own gives the same answer to every request. Both sides send it through boto3 with
signing, on one keep-alive connection, and end with one object a record in hand: boto3's dictionary, or our `Record`.
Counted is the processor time of this process, in turns, so that a busy machine slows both alike; ratios come from one
run. "decoding alone" is `page_from_body` on the bytes, without a request around it.
"""

from __future__ import annotations

import argparse
import base64
import json
import multiprocessing
import os
import platform
import socketserver
import statistics
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from multiprocessing.connection import Connection
from typing import Any

import boto3
import botocore
import orjson
import pybase64
from botocore.config import Config

from leasehold.adapters.aws.kinesis_decoding import page_from_body
from leasehold.adapters.aws.kinesis_stream import KinesisStream

# Records of a page, and their size; the second page is as large as Kinesis gives.
PAGES = {
    "empty": (0, 0),
    "10,000 of 100 B": (10_000, 100),
    "10,000 of 1 kB": (10_000, 1_000),
    "200 of 50 kB": (200, 50_000),
}
FIRST_NUMBER = 49590338271490256608559692538361571095921575989136588898

Work = Callable[[], int]


def answer(count: int, size: int) -> bytes:
    """A GetRecords answer with so many records."""
    records = [
        {
            "SequenceNumber": str(FIRST_NUMBER + number * 65_536),
            "ApproximateArrivalTimestamp": 1_700_000_000.123 + number / 1000,
            "Data": base64.b64encode(os.urandom(size)).decode(),
            "PartitionKey": f"customer-{number:08d}",
        }
        for number in range(count)
    ]
    return orjson.dumps({"Records": records, "NextShardIterator": "AAAA", "MillisBehindLatest": 0})


def serve(body: bytes, told: Connection) -> None:
    """Answers every POST with the body, until the process is ended."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-amz-json-1.1")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Quiet."""

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        told.send(server.server_address[1])
        server.serve_forever()


def client(port: int) -> Any:
    return boto3.session.Session().client(
        "kinesis",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}),
    )


def plain(port: int) -> Work:
    kinesis = client(port)
    return lambda: len(kinesis.get_records(ShardIterator="AAAA")["Records"])


def hooked(port: int) -> Work:
    kinesis = client(port)
    KinesisStream(
        kinesis, "orders", threads=1
    )  # for its hook; the call is made here, without a thread in between
    return lambda: len(kinesis.get_records(ShardIterator="AAAA")["LeaseholdPage"].records)


def decoding(body: bytes) -> Work:
    return lambda: len(page_from_body(body).records)


def measured(name: str, count: int, size: int, seconds: float) -> dict[str, Any]:
    """Milliseconds of processor time an answer, for each way."""
    body = answer(count, size)
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(body, there), daemon=True)
    server.start()
    try:
        port = here.recv()
        ways = {"boto3": plain(port), "hook": hooked(port), "decoding alone": decoding(body)}
        times = in_turns(ways, count, seconds)
    finally:
        server.terminate()
        server.join()
    ratio = statistics.median(times["boto3"]) / statistics.median(times["hook"])
    rows = {way: spread(each) for way, each in times.items()}
    return {"page": name, "records": count, "payload_bytes": count * size, "ms": rows, "ratio": ratio}


def in_turns(ways: dict[str, Work], count: int, seconds: float) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {way: [] for way in ways}
    for work in ways.values():  # connections, caches
        assert work() == count
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(times["hook"]) < 3:
        for way, work in ways.items():
            start = time.process_time_ns()
            work()
            times[way].append((time.process_time_ns() - start) / 1e6)
    return times


def spread(times: list[float]) -> dict[str, float]:
    return {"min": min(times), "median": statistics.median(times), "max": max(times)}


def shown(row: dict[str, Any]) -> str:
    def numbers(way: str) -> str:
        return f"{row['ms'][way]['median']:9.2f} ({row['ms'][way]['min']:.2f}-{row['ms'][way]['max']:.2f})"

    each = f"{1000 * row['ms']['hook']['median'] / row['records']:6.2f}" if row["records"] else "     -"
    ways = "".join(f"{numbers(way):>27s}" for way in row["ms"])
    return f"{row['page']:18s}{ways} {row['ratio']:6.1f} x {each}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--seconds", type=float, default=4.0, help="for each page")
    arguments = parser.parse_args()
    environment = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "boto3": boto3.__version__,
        "botocore": botocore.__version__,
        "orjson": orjson.__version__,
        "pybase64": pybase64.get_version(),
    }
    rows = [measured(name, count, size, arguments.seconds) for name, (count, size) in PAGES.items()]
    if arguments.json:
        print(json.dumps({"environment": environment, "rows": rows}, indent=2))
        return
    print(", ".join(f"{key} {value}" for key, value in environment.items()))
    print(
        f"{'ms of processor':18s}{'boto3: median (min-max)':>27s}{'with our hook':>27s}{'decoding alone':>27s}"
        "  ratio   us a record"
    )
    print("\n".join(map(shown, rows)))


if __name__ == "__main__":
    main()
