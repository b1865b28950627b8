"""What `explain --status` takes from `/health` of a worker."""

import json
import socket
import threading

import pytest

from leasehold.adapters.status_server import Response, StatusServer
from leasehold.core.finding import Severity
from leasehold.errors import ConfigError
from leasehold.inspection.worker_status import health_url, read_workers

FAILS = {
    "shard": "shardId-000000000000",
    "code": "handler_fails",
    "severity": "problem",
    "text": "its handler has failed 12 times on the record at 7: KeyError",
    "remedy": "mend the handler",
}
OTHERS = {"shard": None, "code": "no_leader", "severity": "problem", "text": "the fleet has no leader"}


def serve(body: object) -> StatusServer:
    return StatusServer(
        "127.0.0.1",
        0,
        {"/health": lambda: Response(503, "application/json", json.dumps(body).encode())},
    )


def test_a_record_that_fails_each_time_is_reported_by_its_worker() -> None:
    """What a worker knows about the rest of the fleet is left out: the command knows it better."""
    server = serve({"findings": [FAILS, OTHERS, {"code": 7}, "text", {**FAILS, "severity": "purple"}]})
    try:
        found = read_workers([server.url]).findings
    finally:
        server.close()
    ((shard, (finding,)),) = found.items()
    assert (shard, finding.code, finding.severity) == (FAILS["shard"], "handler_fails", Severity.PROBLEM)
    assert (finding.text, finding.remedy) == (FAILS["text"], FAILS["remedy"])


def test_the_calls_of_all_workers_are_added() -> None:
    """Anything else in their place is ignored."""
    rates = {"per_s": 1.5, "throttled_per_s": 0.25}
    strange = {"GetRecords": 7, "PutRecord": {"per_s": float("nan"), "throttled_per_s": 0}, "x" * 99: rates}
    bodies = [
        {"findings": [], "kinesis_calls": {"GetRecords": rates, "ListShards": rates}},
        {"findings": [], "kinesis_calls": {"GetRecords": rates}},
        {"findings": [], "kinesis_calls": strange},
        {"findings": [], "kinesis_calls": ["GetRecords"]},
    ]
    servers = [serve(body) for body in bodies]
    try:
        calls = read_workers([server.url for server in servers]).calls
    finally:
        for server in servers:
            server.close()
    assert calls == {"GetRecords": (3.0, 0.5), "ListShards": (1.5, 0.25)}


def test_healthy_shards_say_when_they_last_made_progress() -> None:
    """Anything else in their place is ignored."""
    healthy = {"ok": True, "idle_ms": 10_000, "waits_for": []}
    shards = {
        "a": healthy,
        "b": {**healthy, "ok": False},
        "c": {**healthy, "waits_for": ["shardId-000000000000"]},
        "d": {**healthy, "idle_ms": "soon"},
        "e": 7,
    }
    servers = [serve({"findings": [], "shards": shards}), serve({"findings": [], "shards": ["a"]})]
    try:
        found = read_workers([server.url for server in servers]).idle_ms
    finally:
        for server in servers:
            server.close()
    assert found == {"a": 10_000}
    assert read_workers([]).idle_ms is None


def test_a_worker_that_does_not_answer_is_a_problem_itself() -> None:
    server = serve(["not a report"])
    try:
        strange = read_workers([server.url]).findings[server.url]
    finally:
        server.close()
    silent = read_workers([server.url]).findings[server.url]
    assert [each.code for each in (*strange, *silent)] == ["worker_unhealthy"] * 2


@pytest.mark.parametrize(
    "response", [b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\n\r\n" + b"[" * 200_000]
)
def test_a_strange_response_is_a_finding_and_no_crash(response: bytes) -> None:
    """The address may be that of another program."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        answering = threading.Thread(target=answer_once, args=(server, response))
        answering.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        (finding,) = read_workers([address]).findings[address]
        answering.join()
    assert finding.code == "worker_unhealthy"


def answer_once(server: socket.socket, response: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(65_536)
        connection.sendall(response)


@pytest.mark.parametrize("address", ["notaurl", "localhost:80x", "localhost:0", "ftp://host:1", "http://"])
def test_a_wrong_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected http://host:port"):
        health_url(address)
