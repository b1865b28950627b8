"""The server of /health and /metrics, over a real socket."""

import asyncio
import http.client
import json
import select
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from leasehold.adapters.observability import ObserverPorts, run_observers
from leasehold.adapters.status_server import CONNECTIONS_MAX, Response, StatusServer, is_allowed_host
from leasehold.adapters.system_clock import SystemClock
from leasehold.config.settings import MetricsLevel, ObserveSettings
from leasehold.core.events import Event, FleetRefreshed, MemberStarted, MemberStopped
from leasehold.core.model import WorkerId
from leasehold.errors import ConfigError

STARTED = MemberStarted(WorkerId("w-1"), "billing", "orders")


def send_request(
    url: str, path: str, *, host: str | None = "localhost", method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    """Send one request with any Host header; returns status, headers, body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        connection.endheaders()
        response = connection.getresponse()
        return response.status, dict(response.getheaders()), response.read()
    finally:
        connection.close()


@pytest.fixture
def url() -> Iterator[str]:
    server = StatusServer("127.0.0.1", 0, {"/hello": lambda: Response(200, "text/plain", b"hi\n")})
    yield server.url
    server.close()


def test_a_route_is_served(url: str) -> None:
    """The response is that of the route, and must not be cached."""
    status, headers, body = send_request(url, "/hello?now")
    assert (status, body) == (200, b"hi\n")
    assert headers["Cache-Control"] == "no-store"
    assert headers["Server"].strip() == "leasehold"


def test_an_unknown_path_lists_the_known_ones(url: str) -> None:
    """The 404 response names all paths."""
    assert send_request(url, "/")[::2] == (404, b"Not found. Available: /hello\n")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", None, "[", "10.0.0.1"])
def test_a_request_for_another_host_is_refused(url: str, host: str | None) -> None:
    """A web page cannot read the responses by pointing its own host name to our address."""
    assert send_request(url, "/hello", host=host)[0] == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(url: str, method: str) -> None:
    """The server is read-only."""
    assert send_request(url, "/hello", method=method)[0] == 501


def test_head_has_no_body(url: str) -> None:
    """A probe may request the status alone."""
    assert send_request(url, "/hello", method="HEAD")[::2] == (200, b"")


@pytest.mark.parametrize(
    ("host", "listens_on", "allowed"),
    [
        ("127.0.0.1:8080", "127.0.0.1", True),
        ("[::1]:8080", "127.0.0.1", True),
        ("LOCALHOST", "127.0.0.1", True),
        ("10.1.2.3:9090", "0.0.0.0", True),
        ("[fd00::1]:9090", "::", True),
        ("worker", "0.0.0.0", False),
        ("Worker:9090", "worker", True),
        ("10.1.2.3", "localhost", False),
    ],
)
def test_allowed_hosts_are_addresses_and_the_configured_name(
    host: str, listens_on: str, allowed: bool
) -> None:
    """Beyond loopback, all IP addresses are allowed, but only the configured name."""
    assert is_allowed_host(host, listens_on) is allowed


def test_a_port_in_use_is_a_config_error(url: str) -> None:
    """Two workers on one machine cannot share a port, and the error says what to change."""
    port = urlsplit(url).port
    assert port is not None
    with pytest.raises(ConfigError, match=rf"status_port={port}: cannot listen there"):
        StatusServer("127.0.0.1", port, {})


def test_clients_that_send_slowly_cannot_take_all_descriptors() -> None:
    """The number of connections is limited, and a probe is answered while another client keeps them all open."""
    server = StatusServer("127.0.0.1", 0, {"/hello": lambda: Response(200, "text/plain", b"hi\n")})
    address = ("127.0.0.1", urlsplit(server.url).port)
    before = count_descriptors()
    slow = [socket.create_connection(address) for _ in range(CONNECTIONS_MAX * 3)]
    try:
        for each in slow:
            with suppress(OSError):
                each.send(b"GET /hello HTTP/1.0\r\nX: ")
        assert send_request(server.url, "/hello")[0] == 200
        # Our own sockets and those of the server, one of which may be about to be closed.
        wait_until(lambda: count_descriptors() - before <= len(slow) + CONNECTIONS_MAX)
    finally:
        for each in slow:
            each.close()
        server.close()


@pytest.mark.parametrize("half", [b"", b"GET /hello HTTP/1.1\r\nX: "])
def test_a_request_has_a_deadline(half: bytes) -> None:
    """However slowly bytes arrive: each byte that arrives in time does not extend it."""
    server = StatusServer("127.0.0.1", 0, {"/hello": lambda: pytest.fail("incomplete")}, deadline_s=0.5)
    slow = socket.create_connection(("127.0.0.1", urlsplit(server.url).port))
    try:
        slow.send(half)

        def is_closed() -> bool:
            with suppress(OSError):
                slow.send(b"x")
            return bool(select.select([slow], [], [], 0.05)[0])

        wait_until(is_closed)
    finally:
        slow.close()
        server.close()


def test_a_closed_server_ends_its_connections() -> None:
    """A client that waits gets the end of the connection, not silence."""
    server = StatusServer("127.0.0.1", 0, {})
    waiting = socket.create_connection(("127.0.0.1", urlsplit(server.url).port))
    try:
        assert send_request(server.url, "/")[0] == 404  # so the server has accepted the first one
        server.close()
        waiting.settimeout(30)
        assert waiting.recv(1) == b""
    finally:
        waiting.close()


def count_descriptors() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def wait_until(condition: Callable[[], bool]) -> None:
    """Fail if a condition does not become true within half a minute."""
    end_s = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.02)


def run_observed(
    settings: ObserveSettings,
    scenario: Callable[[Callable[[Event], None]], Any],
    *,
    client: Callable[[], Any] = lambda: pytest.fail("no client is needed"),
    also: Callable[[Event], None] | None = None,
) -> Any:
    """Run `scenario` on a thread beside the event loop, inside `run_observers`."""

    async def run() -> Any:
        async with run_observers(
            settings,
            application="billing",
            worker=WorkerId("w-1"),
            failover_after=timedelta(seconds=10),
            ports=ObserverPorts(SystemClock(), client, also),
        ) as observe:
            return await asyncio.to_thread(scenario, observe)

    return asyncio.run(run())


def served_at(caplog: pytest.LogCaptureFixture) -> str:
    (line,) = [record.getMessage() for record in caplog.records if "status served" in record.getMessage()]
    return line.partition("url=")[2]


def test_health_and_metrics_are_served_at_the_logged_address(caplog: pytest.LogCaptureFixture) -> None:
    """Both are served on one port, from the events of the member."""
    caplog.set_level("INFO", logger="leasehold")

    def scenario(observe: Callable[[Event], None]) -> None:
        url = served_at(caplog)
        observe(STARTED)
        status, headers, body = send_request(url, "/health")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert json.loads(body) == {
            "ok": True,
            "state": "running",
            "problems": [],
            "warnings": [],
            "severity": "ok",
            "findings": [],
            "shards": {},
            "kinesis_calls": {},
        }
        status, headers, body = send_request(url, "/metrics")
        assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert b'leasehold_member_info{application="billing",stream="orders",worker="w-1"} 1.0' in body
        observe(MemberStopped(WorkerId("w-1"), 0))
        status, _, body = send_request(url, "/health")
        assert (status, json.loads(body)["problems"]) == (503, ["the member has stopped"])

    run_observed(ObserveSettings(status_port=0), scenario)


def test_without_the_extra_metrics_say_how_to_install_it(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Health needs no extra. Without prometheus-client, the response says how to install it."""
    caplog.set_level("INFO", logger="leasehold")
    monkeypatch.setitem(sys.modules, "leasehold.adapters.prometheus", None)

    def scenario(observe: Callable[[Event], None]) -> None:
        url = served_at(caplog)
        assert send_request(url, "/health")[0] == 200
        status, _, body = send_request(url, "/metrics")
        assert (status, body) == (
            404,
            b"prometheus-client is not installed: pip install 'leasehold[prometheus]'\n",
        )

    run_observed(ObserveSettings(status_port=0), scenario)


def test_by_default_there_are_only_logs(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No port and no call to AWS, unless configured."""
    caplog.set_level("INFO", logger="leasehold")
    run_observed(ObserveSettings(), lambda observe: observe(STARTED))
    assert [record.getMessage() for record in caplog.records] == [
        "member started worker=w-1 application=billing stream=orders"
    ]


def test_metrics_are_published_if_a_level_is_set() -> None:
    """The client is created only then, and leaving the block publishes the rest."""
    sent: list[Any] = []

    class Client:
        def put_metric_data(self, **request: Any) -> None:
            sent.append(request["Namespace"])

    settings = ObserveSettings(cloudwatch_metrics=MetricsLevel.SUMMARY)
    run_observed(settings, lambda observe: observe(FleetRefreshed(1, 0, 1, 1)), client=Client)
    assert sent == ["billing"]


def test_an_observer_of_the_user_gets_all_events() -> None:
    """In addition to the configured observers."""
    seen: list[Event] = []
    run_observed(ObserveSettings(), lambda observe: observe(STARTED), also=seen.append)
    assert seen == [STARTED]


@pytest.mark.parametrize(
    "wrong", [{"status_port": 70_000}, {"status_host": ""}, {"stuck_after": timedelta(0)}]
)
def test_invalid_settings_are_refused(wrong: dict[str, Any]) -> None:
    """The error names the setting, before anything starts."""
    (name,) = wrong
    with pytest.raises(ConfigError, match=name):
        ObserveSettings(**wrong)
