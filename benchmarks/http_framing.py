"""Measures the CPU time of an HTTP request on the event loop: our client, and HTTP libraries that could replace it.

    python benchmarks/http_framing.py [--json] [--seconds N]

A server in another process gives the same response to every request, with the headers of Kinesis. Every client sends
the same request on one kept-alive connection. "h11" is our connection with h11 instead of httptools. httpx and aiohttp
are no dependencies of this project: install them to compare. "whole call" is GetRecords with our client, signed and
decoded, to show how large the share of HTTP is. The figures are the CPU time of this process. All clients are measured
in turns in one run, so a busy machine slows all equally; a ratio compares two clients in the same turn.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import platform
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from typing import Any

import h11

from benchmarks.decode import kinesis_client, make_response
from leasehold.adapters.aws.async_http import HttpEndpoint, HttpLimits
from leasehold.adapters.aws.kinesis_stream import KinesisStream

try:
    import httpx
except ImportError:
    httpx = None  # type: ignore[assignment]
try:
    import aiohttp
except ImportError:
    aiohttp = None

# Number and size of the records of each page, and requests in one turn. The first is the page of an idle shard.
PAGES = {
    "empty": (0, 0, 200),
    "100 of 1 kB": (100, 1_000, 100),
    "10,000 of 1 kB": (10_000, 1_000, 3),
}
REQUEST_HEADERS = {
    "Content-Type": "application/x-amz-json-1.1",
    "User-Agent": "Boto3/1.40 md/Botocore#1.40 ua/2.1 os/linux lang/python#3.11",
    "X-Amz-Target": "Kinesis_20131202.GetRecords",
    "X-Amz-Date": "20260101T000000Z",
    "Authorization": "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/us-east-1/kinesis/aws4_request, "
    "SignedHeaders=content-type;host;x-amz-date;x-amz-target, Signature=" + "0" * 64,
}
REQUEST = b'{"ShardIterator":"' + b"A" * 224 + b'","Limit":10000}'

Send = Callable[[], Awaitable[int]]


def serve(body: bytes, port: Connection) -> None:
    """Respond to every POST with the body, until the process is terminated."""
    head = (
        "HTTP/1.1 200 OK\r\nx-amzn-RequestId: f0f9c0e4-1d2e-4f0a-9d3c-0b1f0e1d2c3b\r\n"
        "x-amz-id-2: 3Zl5F1l5YbZVZQxwqkWb0Zs8vC0h2Xb3kM7cO9xYp1wq0K2n4u6i8o1a3s5d7f9g\r\n"
        "Date: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Type: application/x-amz-json-1.1\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                request = (await reader.readuntil(b"\r\n\r\n")).lower()
                await reader.readexactly(int(request.split(b"content-length:")[1].split(b"\r\n")[0]))
                writer.write(head + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def main() -> None:
        server = await asyncio.start_server(respond, "127.0.0.1", 0)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(main())


class H11Connection(asyncio.Protocol):
    """A connection that h11 frames, with nothing else around it."""

    def __init__(self) -> None:
        self._http = h11.Connection(h11.CLIENT)
        self._response: asyncio.Future[int]
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    async def send(self, host: str) -> int:
        self._response = asyncio.get_running_loop().create_future()
        headers = [("Host", host), ("Content-Length", str(len(REQUEST))), *REQUEST_HEADERS.items()]
        request = h11.Request(method="POST", target="/", headers=headers)
        sent = [self._http.send(event) for event in (request, h11.Data(REQUEST), h11.EndOfMessage())]
        self._transport.write(b"".join(part for part in sent if part))
        return await self._response

    def data_received(self, data: bytes) -> None:
        self._http.receive_data(data)
        while (event := self._http.next_event()) is not h11.NEED_DATA:
            if isinstance(event, h11.Data):
                self._parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                body = b"".join(self._parts)
                self._parts.clear()
                self._http.start_next_cycle()
                self._response.set_result(len(body))
                return


async def open_clients(port: int, stack: AsyncExitStack) -> dict[str, Send]:
    url, host = f"http://127.0.0.1:{port}/", f"127.0.0.1:{port}"
    endpoint = HttpEndpoint(url, HttpLimits(connections_max=10, connect_s=60, response_s=60), None)
    stack.callback(endpoint.close)
    _, h11_connection = await asyncio.get_running_loop().create_connection(H11Connection, "127.0.0.1", port)
    stack.callback(h11_connection._transport.close)  # noqa: SLF001
    kinesis = KinesisStream(kinesis_client(port), "orders", threads=1)
    stack.push_async_callback(kinesis.close)

    async def send_with_ours() -> int:
        return len((await endpoint.post(REQUEST_HEADERS, REQUEST)).body)

    async def send_whole_call() -> int:
        await kinesis.get_records("A" * 224, limit=10_000)
        return -1

    clients: dict[str, Send] = {"ours": send_with_ours, "h11": lambda: h11_connection.send(host)}
    if httpx is not None:
        clients["httpx"] = with_httpx(await stack.enter_async_context(httpx.AsyncClient()), url)
    if aiohttp is not None:
        clients["aiohttp"] = with_aiohttp(await stack.enter_async_context(aiohttp.ClientSession()), url)
    clients["whole call"] = send_whole_call
    return clients


def with_httpx(client: Any, url: str) -> Send:
    async def send() -> int:
        return len((await client.post(url, headers=REQUEST_HEADERS, content=REQUEST)).content)

    return send


def with_aiohttp(session: Any, url: str) -> Send:
    async def send() -> int:
        async with session.post(url, headers=REQUEST_HEADERS, data=REQUEST) as response:
            return len(await response.read())

    return send


def measure(name: str, seconds: float) -> dict[str, Any]:
    """Return microseconds of CPU time per request, and the ratio to our client, for each client."""
    count, size, requests = PAGES[name]
    body = make_response(count, size)
    here, there = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(body, there), daemon=True)
    server.start()
    try:
        times = asyncio.run(measure_in_turns(here.recv(), len(body), requests, seconds))
    finally:
        server.terminate()
        server.join()
    ratios = {
        client: min_median_max([each / ours for each, ours in zip(turns, times["ours"], strict=True)])
        for client, turns in times.items()
    }
    us = {client: min_median_max(turns) for client, turns in times.items()}
    return {"page": name, "body_bytes": len(body), "us": us, "ratio": ratios}


async def measure_in_turns(port: int, size: int, requests: int, seconds: float) -> dict[str, list[float]]:
    async with AsyncExitStack() as stack:
        clients = await open_clients(port, stack)
        times: dict[str, list[float]] = {client: [] for client in clients}
        for send in clients.values():  # open connections, fill caches
            assert await send() in {size, -1}
        until = time.monotonic() + seconds
        while time.monotonic() < until or len(times["ours"]) < 5:
            for client, send in clients.items():
                start = time.process_time_ns()
                for _ in range(requests):
                    await send()
                times[client].append((time.process_time_ns() - start) / 1e3 / requests)
        return times


def min_median_max(values: list[float]) -> dict[str, float]:
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def format_row(row: dict[str, Any], client: str) -> str:
    us, ratio = row["us"][client], row["ratio"][client]
    spread = f"({us['min']:.0f}-{us['max']:.0f})"
    return (
        f"{row['page']:16s} {client:12s} {us['median']:10.0f} {spread:16s}"
        f" {ratio['median']:6.2f} x ({ratio['min']:.2f}-{ratio['max']:.2f})"
    )


def installed_version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each page")
    arguments = parser.parse_args()
    packages = ("httptools", "h11", "httpx", "aiohttp")
    environment = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        **{package: installed_version(package) for package in packages},
    }
    rows = [measure(name, arguments.seconds) for name in PAGES]
    if arguments.json:
        print(json.dumps({"environment": environment, "rows": rows}, indent=2))
        return
    print(", ".join(f"{key} {value}" for key, value in environment.items()))
    print(
        f"{'page':16s} {'client':12s} {'us of CPU: median (min-max)':27s}   ratio to ours: median (min-max)"
    )
    print("\n".join(format_row(row, client) for row in rows for client in row["us"]))


if __name__ == "__main__":
    main()
