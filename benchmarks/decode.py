"""Measures the CPU time of decoding GetRecords responses: boto3's own parser, our hook in boto3, our decoder alone, and
the native decoder.

    python benchmarks/decode.py [--json] [--seconds N]

A server in another process gives the same response to every request. Both sides send the request through boto3 with
signing, on one keep-alive connection, and return one object per record: boto3's dictionary, or our `Record`. The
figures are the CPU time of this process. Both sides are measured in turns in one run, so a busy machine slows both
equally. "Decoding alone" is `page_from_body` on the bytes, without a request.

If leasehold-native is built, a second table has its figures in microseconds a record, for JSON and CBOR. "Decoded" is
from the bytes to an Arrow batch of user records, "as records" makes a `UserRecord` of each instead, and "whole path"
also sends the request and reads the response with our own HTTP client.
"""

from __future__ import annotations

import argparse
import asyncio
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
import cbor2
import orjson
import pyarrow as pa
import pybase64
from botocore.config import Config

from leasehold.adapters.aws.direct_calls import GET_RECORDS, open_direct_calls
from leasehold.adapters.aws.kinesis_decoding import page_from_body
from leasehold.adapters.aws.kinesis_stream import KinesisStream
from leasehold.adapters.aws.request_signing import Operation
from leasehold.core.record import UserRecord

try:
    import leasehold_native
except ImportError:
    leasehold_native = None  # type: ignore[assignment]

# Number and size of the records of each page. The last ones are as large as a response of Kinesis can be.
PAGES = {
    "empty": (0, 0),
    "1,000 of 100 B": (1_000, 100),
    "1,000 of 1 kB": (1_000, 1_000),
    "10,000 of 100 B": (10_000, 100),
    "10,000 of 1 kB": (10_000, 1_000),
    "200 of 50 kB": (200, 50_000),
}
FIRST_NUMBER = 49590338271490256608559692538361571095921575989136588898

Work = Callable[[], int]


def make_response(count: int, size: int) -> bytes:
    """Return the body of a GetRecords response."""
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


def as_cbor(body: bytes) -> bytes:
    """The same response in CBOR, with times in milliseconds."""
    fields = orjson.loads(body)
    for each in fields["Records"]:
        each["Data"] = base64.b64decode(each["Data"])
        time_ms = round(1e3 * each["ApproximateArrivalTimestamp"])
        each["ApproximateArrivalTimestamp"] = cbor2.CBORTag(1, time_ms)
    return cbor2.dumps(fields)


def serve(bodies: dict[str, bytes], port: Connection) -> None:
    """Respond to every POST with the body of the request's content type, until the process is terminated."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            body = bodies[self.headers["Content-Type"]]
            self.send_response(200)
            self.send_header("Content-Type", self.headers["Content-Type"])
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Do not log."""

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        port.send(server.server_address[1])
        server.serve_forever()


def kinesis_client(port: int) -> Any:
    return boto3.session.Session().client(
        "kinesis",
        endpoint_url=f"http://127.0.0.1:{port}",
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}),
    )


def read_with_boto3(port: int) -> Work:
    kinesis = kinesis_client(port)
    return lambda: len(kinesis.get_records(ShardIterator="AAAA")["Records"])


def read_with_hook(port: int) -> Work:
    kinesis = kinesis_client(port)
    KinesisStream(kinesis, "orders", threads=1)  # installs the hook; the call below uses no extra thread
    return lambda: len(kinesis.get_records(ShardIterator="AAAA")["LeaseholdPage"].records)


def decode_only(body: bytes) -> Work:
    return lambda: len(page_from_body(body).records)


def decode_natively(body: bytes, *, cbor: bool) -> Any:
    """The user records in a response, as columns."""
    users, _ = leasehold_native.deaggregate(leasehold_native.decode_page(body, cbor).records)
    return users


def native_ways(bodies: dict[str, bytes], port: int) -> dict[str, Work]:
    """For each encoding: to an Arrow batch, to records, and with our own HTTP client."""
    ways: dict[str, Work] = {}
    if leasehold_native is None:
        return ways
    loop, calls = asyncio.new_event_loop(), open_direct_calls(kinesis_client(port))
    assert calls is not None
    for operation in OPERATIONS:
        body, cbor = bodies[operation.content_type], "cbor" in operation.content_type

        def to_batch(body: bytes = body, cbor: bool = cbor) -> int:
            return pa.record_batch(decode_natively(body, cbor=cbor)).num_rows

        def to_records(body: bytes = body, cbor: bool = cbor) -> int:
            return len(leasehold_native.to_records(decode_natively(body, cbor=cbor), UserRecord))

        def whole_path(operation: Operation = operation, to_batch: Callable[..., int] = to_batch) -> int:
            return to_batch(loop.run_until_complete(calls.send(operation, b"{}")))

        name = "CBOR" if cbor else "JSON"
        ways |= {
            f"{name} decoded": to_batch,
            f"{name} as records": to_records,
            f"{name} whole path": whole_path,
        }
    return ways


OPERATIONS = (GET_RECORDS, Operation(GET_RECORDS.target, "application/x-amz-cbor-1.1"))


def measure(name: str, count: int, size: int, seconds: float) -> dict[str, Any]:
    """Return milliseconds of CPU time per response, for each way of decoding."""
    body = make_response(count, size)
    bodies = {OPERATIONS[0].content_type: body, OPERATIONS[1].content_type: as_cbor(body)}
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(bodies, there), daemon=True)
    server.start()
    try:
        port = here.recv()
        ways = {
            "boto3": read_with_boto3(port),
            "hook": read_with_hook(port),
            "decoding alone": decode_only(body),
            **native_ways(bodies, port),
        }
        times = measure_in_turns(ways, count, seconds)
    finally:
        server.terminate()
        server.join()
    ratio = statistics.median(times["boto3"]) / statistics.median(times["hook"])
    rows = {way: min_median_max(each) for way, each in times.items()}
    return {"page": name, "records": count, "payload_bytes": count * size, "ms": rows, "ratio": ratio}


def measure_in_turns(ways: dict[str, Work], count: int, seconds: float) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {way: [] for way in ways}
    for work in ways.values():  # open connections, fill caches
        assert work() == count
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(times["hook"]) < 3:
        for way, work in ways.items():
            start = time.process_time_ns()
            work()
            times[way].append((time.process_time_ns() - start) / 1e6)
    return times


def min_median_max(times: list[float]) -> dict[str, float]:
    return {"min": min(times), "median": statistics.median(times), "max": max(times)}


def format_row(row: dict[str, Any]) -> str:
    def numbers(way: str) -> str:
        return f"{row['ms'][way]['median']:9.2f} ({row['ms'][way]['min']:.2f}-{row['ms'][way]['max']:.2f})"

    each = f"{1000 * row['ms']['hook']['median'] / row['records']:6.2f}" if row["records"] else "     -"
    ways = "".join(f"{numbers(way):>27s}" for way in ("boto3", "hook", "decoding alone"))
    return f"{row['page']:18s}{ways} {row['ratio']:6.1f} x {each}"


def format_native_row(row: dict[str, Any]) -> str:
    times = [ms for way, ms in row["ms"].items() if way.startswith(("JSON", "CBOR"))]
    figures = (f"{1000 * each['median'] / max(1, row['records']):.2f}" for each in times)
    return f"{row['page']:18s}" + "".join(f"{each:>18s}" for each in figures)


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
    rows = [measure(name, count, size, arguments.seconds) for name, (count, size) in PAGES.items()]
    if arguments.json:
        print(json.dumps({"environment": environment, "rows": rows}, indent=2))
        return
    print(", ".join(f"{key} {value}" for key, value in environment.items()))
    print(
        f"{'ms of CPU time':18s}{'boto3: median (min-max)':>27s}{'with our hook':>27s}{'decoding alone':>27s}"
        "  ratio   us per record"
    )
    print("\n".join(map(format_row, rows)))
    if leasehold_native is None:
        print("\nleasehold-native is not built: run `make setup` on a machine with a Rust toolchain")
        return
    names = [way for way in rows[0]["ms"] if way.startswith(("JSON", "CBOR"))]
    print(f"\n{'us of CPU time a record':18s}"[:19] + "".join(f"{each:>18s}" for each in names))
    print("\n".join(map(format_native_row, rows)))


if __name__ == "__main__":
    main()
