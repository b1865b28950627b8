"""The server of /health and /metrics, asked over a real socket."""

import asyncio
import http.client
import json
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest

from leasehold.adapters.observability import run_observers
from leasehold.adapters.status_server import Response, StatusServer, is_allowed_host
from leasehold.adapters.system_clock import SystemClock
from leasehold.config.settings import MetricsLevel, ObserveSettings
from leasehold.core.events import Event, FleetRefreshed, MemberStarted, MemberStopped
from leasehold.core.model import WorkerId
from leasehold.errors import ConfigError

STARTED = MemberStarted(WorkerId("w-1"), "billing", "orders")


def ask(
    url: str, path: str, *, host: str | None = "localhost", method: str = "GET"
) -> tuple[int, dict[str, str], bytes]:
    """One request, with any Host header; status, headers, body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True)
        if host is not None:
            connection.putheader("Host", host)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()
    finally:
        connection.close()


@pytest.fixture
def url() -> Iterator[str]:
    server = StatusServer("127.0.0.1", 0, {"/hello": lambda: Response(200, "text/plain", b"hi\n")})
    yield server.url
    server.close()


def test_a_route_answers(url: str) -> None:
    """What a route says is what is sent, and nobody may keep it."""
    status, headers, body = ask(url, "/hello?now")
    assert (status, body) == (200, b"hi\n")
    assert headers["Cache-Control"] == "no-store"
    assert headers["Server"].strip() == "leasehold"


def test_an_unknown_path_is_told_what_there_is(url: str) -> None:
    """A wrong path costs no search in the documentation."""
    assert ask(url, "/")[::2] == (404, b"Not found. Available: /hello\n")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "", None, "[", "10.0.0.1"])
def test_a_request_for_another_host_is_refused(url: str, host: str | None) -> None:
    """A page in a browser cannot read the answers by giving its own name our address."""
    assert ask(url, "/hello", host=host)[0] == 421


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_nothing_can_be_changed(url: str, method: str) -> None:
    """There are no other methods, so there is nothing to abuse."""
    assert ask(url, "/hello", method=method)[0] == 501


def test_head_is_answered_without_a_body(url: str) -> None:
    """Probes may ask for the status alone."""
    assert ask(url, "/hello", method="HEAD")[::2] == (200, b"")


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
def test_a_server_goes_by_its_addresses_and_its_own_name(host: str, listens_on: str, allowed: bool) -> None:
    """Beyond loopback, addresses are fine, and of names only the one that was configured."""
    assert is_allowed_host(host, listens_on) is allowed


def test_a_port_in_use_is_told_with_the_remedy(url: str) -> None:
    """Two workers on one machine cannot share a port, and the error says what to change."""
    port = urlsplit(url).port
    assert port is not None
    with pytest.raises(ConfigError, match=rf"status_port={port}: cannot listen there"):
        StatusServer("127.0.0.1", port, {})


def observed(
    settings: ObserveSettings,
    scenario: Callable[[Callable[[Event], None]], Any],
    *,
    client: Callable[[], Any] = lambda: pytest.fail("no client was asked for"),
    also: Callable[[Event], None] | None = None,
) -> Any:
    """Run `scenario` in a thread beside the loop, inside `run_observers`."""

    async def run() -> Any:
        async with run_observers(
            settings,
            application="billing",
            worker=WorkerId("w-1"),
            failover_after=timedelta(seconds=10),
            clock=SystemClock(),
            cloudwatch_client=client,
            also=also,
        ) as observe:
            return await asyncio.to_thread(scenario, observe)

    return asyncio.run(run())


def served_at(caplog: pytest.LogCaptureFixture) -> str:
    (line,) = [record.getMessage() for record in caplog.records if "status served" in record.getMessage()]
    return line.partition("url=")[2]


def test_health_and_metrics_are_served_where_the_log_says(caplog: pytest.LogCaptureFixture) -> None:
    """One port tells both, from the events of the member."""
    caplog.set_level("INFO", logger="leasehold")

    def scenario(observe: Callable[[Event], None]) -> None:
        url = served_at(caplog)
        observe(STARTED)
        status, headers, body = ask(url, "/health")
        assert (status, headers["Content-Type"]) == (200, "application/json")
        assert json.loads(body) == {"ok": True, "state": "running", "problems": [], "shards": {}}
        status, headers, body = ask(url, "/metrics")
        assert (status, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert b'leasehold_member_info{application="billing",stream="orders",worker="w-1"} 1.0' in body
        observe(MemberStopped(WorkerId("w-1"), 0))
        status, _, body = ask(url, "/health")
        assert (status, json.loads(body)["problems"]) == (503, ["the member has stopped"])

    observed(ObserveSettings(status_port=0), scenario)


def test_without_the_extra_metrics_say_how_to_get_them(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Health needs no library; Prometheus is an extra, and its absence is a sentence."""
    caplog.set_level("INFO", logger="leasehold")
    monkeypatch.setitem(sys.modules, "leasehold.adapters.prometheus", None)

    def scenario(observe: Callable[[Event], None]) -> None:
        url = served_at(caplog)
        assert ask(url, "/health")[0] == 200
        status, _, body = ask(url, "/metrics")
        assert (status, body) == (
            404,
            b"prometheus-client is not installed: pip install 'leasehold[prometheus]'\n",
        )

    observed(ObserveSettings(status_port=0), scenario)


def test_by_default_there_are_logs_and_nothing_is_served_or_published(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No port, no call to AWS, unless asked for."""
    caplog.set_level("INFO", logger="leasehold")
    observed(ObserveSettings(), lambda observe: observe(STARTED))
    assert [record.getMessage() for record in caplog.records] == [
        "member started worker=w-1 application=billing stream=orders"
    ]


def test_metrics_go_to_cloudwatch_when_a_level_is_asked_for() -> None:
    """The client is made only then, and leaving publishes what is left."""
    sent: list[Any] = []

    class Client:
        def put_metric_data(self, **request: Any) -> None:
            sent.append(request["Namespace"])

    settings = ObserveSettings(cloudwatch_metrics=MetricsLevel.SUMMARY)
    observed(settings, lambda observe: observe(FleetRefreshed(1, 0, 1, 1)), client=Client)
    assert sent == ["billing"]


def test_an_observer_of_the_users_own_is_told_too() -> None:
    """Whatever else someone wants to know."""
    seen: list[Event] = []
    observed(ObserveSettings(), lambda observe: observe(STARTED), also=seen.append)
    assert seen == [STARTED]


@pytest.mark.parametrize(
    "wrong", [{"status_port": 70_000}, {"status_host": ""}, {"stuck_after": timedelta(0)}]
)
def test_settings_that_cannot_work_say_so(wrong: dict[str, Any]) -> None:
    """A mistake is found before anything starts, by the setting's name."""
    (name,) = wrong
    with pytest.raises(ConfigError, match=name):
        ObserveSettings(**wrong)
