"""The HTTP side of the dashboard: hosts, methods, headers, hostile text, and events."""

import http.client
import json
import logging
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from leasehold.core import connection_limits
from leasehold.core.model import WorkerId
from leasehold.core.observing.dashboard.fleet_history import FleetHistory
from leasehold.core.observing.dashboard.fleet_view import judge_fleet, view_fleet, with_problem
from leasehold.core.observing.dashboard.view_changes import View
from leasehold.dashboard import limited_protocol
from leasehold.dashboard.app import BROWSERS_MAX
from leasehold.dashboard.recording import Playback
from leasehold.dashboard.server import FirstOfEachMessage
from tests.dashboard.running_dashboard import RunningDashboard, run_dashboard, run_playback
from tests.dashboard.sample_fleets import COSTS, SETTINGS, large_fleet, small_fleet, view_after, view_at

HOSTILE = "</script><script>document.title='x'</script>\n\ndata: forged\r\n\u2028"


def hostile_view() -> View:
    """A view of leases whose owner wrote markup into its name."""
    facts = small_fleet().facts(4)
    leases = tuple(replace(lease, owner=WorkerId(HOSTILE)) for lease in facts.after.leases)
    facts = replace(facts, after=replace(facts.after, leases=leases))
    judged = judge_fleet(facts, SETTINGS)
    return view_fleet(facts, judged, FleetHistory(), SETTINGS, costs=COSTS, wall_ms=1)


@pytest.fixture(scope="module")
def dashboard() -> Iterator[RunningDashboard]:
    view, history = view_after(small_fleet(), 5)
    with run_dashboard(view, history) as running:
        yield running


def ask(
    dashboard: RunningDashboard, path: str, method: str = "GET", **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    address = urlsplit(dashboard.url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=30)
    connection.request(method, path, headers=headers)
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def next_event(response: http.client.HTTPResponse) -> tuple[str, Any]:
    """The next message of an event stream."""
    event, data = "", ""
    while True:
        line = response.readline().decode().rstrip("\n")
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data":
            data += value
        elif not line and event:
            return event, json.loads(data)


@pytest.mark.parametrize("path", ["/", "/api/view", "/api/events", "/static/main.js"])
@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8321", "127.0.0.1.evil.example", "10.1.2.3", ""]
)
def test_a_foreign_host_name_is_refused(dashboard: RunningDashboard, path: str, host: str) -> None:
    response, body = ask(dashboard, path, Host=host)
    assert response.status in {400, 421}
    assert b"orders" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_only_reads_are_allowed(dashboard: RunningDashboard, method: str) -> None:
    assert ask(dashboard, "/api/view", method)[0].status == 405


def test_every_response_has_a_strict_policy(dashboard: RunningDashboard) -> None:
    for path in ("/", "/api/view", "/missing", "/static/style.css"):
        response, _ = ask(dashboard, path)
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
        assert response.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize(
    "path",
    [
        "/static/../app.py",
        "/static/%2e%2e%2fapp.py",
        "/static//etc/passwd",
        "/api/view?frame=-1",
        "/api/view?frame=x",
        "/api/series?ids=1,x",
        "/api/series?ids=%F0%9D%9F%99",
        "/api/series?ids=" + "1," * 5000,
        "/api/nothing",
    ],
)
def test_other_files_and_wrong_arguments_are_refused(dashboard: RunningDashboard, path: str) -> None:
    assert ask(dashboard, path)[0].status in {400, 404, 414}


def test_the_page_loads_nothing_from_elsewhere_and_parses_no_markup() -> None:
    """All text of rows is set as text. No file names another host."""
    for file in (files("leasehold.dashboard") / "static").iterdir():
        content = file.read_text()
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", content
        )
        hosts = set(re.findall(r"https?://[^\s'\"]+", content))
        assert hosts <= {"http://www.w3.org/2000/svg"}, file.name
        assert not re.search(r"\sstyle=|\son\w+=\"", content), file.name


def test_hostile_names_stay_inside_their_json(dashboard: RunningDashboard) -> None:
    with run_dashboard(hostile_view()) as hostile:
        response, body = ask(hostile, "/api/view")
        assert response.headers["Content-Type"] == "application/json"
        (owner,) = {row["owner"] for row in json.loads(body)["shards"].values()}
        assert owner.startswith("</script><script>")
        assert b"\\u2028" in body or b"\\\\u2028" in body
        with_events = http.client.HTTPConnection(urlsplit(hostile.url).netloc, timeout=30)
        with_events.request("GET", "/api/events")
        event, view = next_event(with_events.getresponse())
        assert (event, {row["owner"] for row in view["shards"].values()}) == ("view", {owner})
        with_events.close()


def test_a_browser_gets_the_view_then_only_changes_and_after_a_new_connection_the_view() -> None:
    history = FleetHistory()
    with run_dashboard(view_at(small_fleet(), 3, history), history) as dashboard:
        for _ in range(2):
            connection = http.client.HTTPConnection(urlsplit(dashboard.url).netloc, timeout=30)
            connection.request("GET", "/api/events")
            response = connection.getresponse()
            assert response.headers["Content-Type"].startswith("text/event-stream")
            event, view = next_event(response)
            assert event == "view"
            dashboard.publish(with_problem(view, f"the table is gone {_}"))
            assert next_event(response) == ("change", {"unread": [f"the table is gone {_}"]})
            connection.close()


def test_browsers_that_leave_are_forgotten() -> None:
    """A page that is closed while nothing changes, and one that is closed while it gets a view."""
    view, history = view_after(small_fleet(), 4)
    with run_dashboard(view, history) as dashboard:
        assert dashboard.hub is not None
        connections = []
        for _ in range(5):
            connection = http.client.HTTPConnection(urlsplit(dashboard.url).netloc, timeout=30)
            connection.request("GET", "/api/events")
            next_event(connection.getresponse())
            connections.append(connection)
        assert dashboard.hub.browsers == 5
        for number, connection in enumerate(connections):
            dashboard.publish(with_problem(view, f"problem {number}"))
            connection.close()
        deadline = time.monotonic() + 60
        while dashboard.hub.browsers and time.monotonic() < deadline:
            time.sleep(0.05)
        assert dashboard.hub.browsers == 0
        assert ask(dashboard, "/api/events", "HEAD")[0].status == 200


@pytest.mark.parametrize("connections_max", [1_024, 100])
def test_hundreds_of_event_streams_at_once_are_limited_and_fill_no_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, connections_max: int
) -> None:
    """64 get a stream, the others a sentence. With fewer connections allowed, those that wait longest are closed."""
    monkeypatch.setattr(connection_limits, "CONNECTIONS_MAX", connections_max)
    view, history = view_after(small_fleet(), 4)
    with run_dashboard(view, history) as dashboard, ExitStack() as stack:
        assert dashboard.hub is not None
        address = urlsplit(dashboard.url)
        sockets = []
        for _ in range(400):
            each = stack.enter_context(socket.create_connection((address.hostname or "", address.port), 30))
            sockets.append(each)
        for each in sockets:
            with suppress(OSError):
                each.sendall(f"GET /api/events HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
        answers = Counter(_first_bytes(each) for each in sockets)
        is_limited = connections_max < len(sockets)
        assert answers.keys() <= {b"HTTP/1.1 200", b"HTTP/1.1 503", *([b""] if is_limited else [])}
        assert answers[b"HTTP/1.1 200"] <= BROWSERS_MAX
        assert dashboard.hub.browsers == answers[b"HTTP/1.1 200"]
        assert answers[b"HTTP/1.1 200"] > 0
        if not is_limited:
            assert answers[b"HTTP/1.1 200"] == BROWSERS_MAX
            assert b"close some of them" in ask(dashboard, "/api/events")[1]
    told = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(told) <= 1, told


def _first_bytes(connection: socket.socket) -> bytes:
    found = b""
    with suppress(ConnectionError):
        while len(found) < 12 and (more := connection.recv(12 - len(found))):
            found += more
    return found


def test_half_sent_requests_are_closed_and_do_not_block_a_browser() -> None:
    """1,500 connections send half a request; some of them go on, byte by byte. An event stream stays open."""
    view, history = view_after(small_fleet(), 4)
    with run_dashboard(view, history) as dashboard, ExitStack() as stack:
        address = urlsplit(dashboard.url)
        stream = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        stack.callback(stream.close)
        stream.request("GET", "/api/events")
        events = stream.getresponse()
        assert next_event(events)[0] == "view"
        half = [stack.enter_context(open_half(dashboard)) for _ in range(1_500)]
        assert ask(dashboard, "/api/source")[0].status == 200
        begin_s = time.monotonic()
        slow, silent = half[-20:], half[:-20]
        while slow and time.monotonic() < begin_s + 60:
            slow = [each for each in slow if is_open_after(each, b"x")]
            time.sleep(0.2)
        assert not slow
        assert not any(is_open_after(each, b"x") for each in silent)
        dashboard.publish(with_problem(view, "still here"))
        assert next_event(events)[0] == "change"


def test_a_connection_is_kept_alive_and_its_second_request_has_the_deadline_too() -> None:
    """The first byte of the second request ends uvicorn's limit for idle connections."""
    view, history = view_after(small_fleet(), 4)
    with run_dashboard(view, history) as dashboard:
        address = urlsplit(dashboard.url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
        for _ in range(3):
            connection.request("GET", "/api/source")
            assert connection.getresponse().read()
        assert connection.sock is not None
        connection.sock.sendall(b"GET /api/source HTTP/1.1\r\nHost: ")
        assert connection.sock.recv(1) == b""
        connection.close()


def test_unread_responses_take_neither_all_descriptors_nor_the_log(tmp_path: Path) -> None:
    """230 clients of a process with 200 descriptors request a long view and read nothing. The page is served."""
    log = tmp_path / "log"
    with log.open("w") as errors, ExitStack() as stack:
        program = subprocess.Popen(
            [sys.executable, "-m", "tests.dashboard.few_descriptors", "200"],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        stack.callback(program.wait)
        stack.callback(program.kill)
        assert program.stdout is not None
        stack.callback(program.stdout.close)
        url = program.stdout.readline().strip()
        for _ in range(230):
            stack.enter_context(request_unread(url, "/api/view"))
        for _ in range(3):
            with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=60)) as browser:
                browser.request("GET", "/")
                assert browser.getresponse().status == 200
    assert len(log.read_text().splitlines()) < 20


def test_an_unread_response_is_closed_and_an_event_stream_only_if_it_is_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of two event streams one is read."""
    monkeypatch.setattr(limited_protocol, "READ_DEADLINE_S", 1.0)
    view, history = view_after(large_fleet(3_000, 40), 1)
    with run_dashboard(view, history) as dashboard, ExitStack() as stack:
        assert dashboard.hub is not None
        for path in ("/api/view", "/api/events"):
            stack.enter_context(request_unread(dashboard.url, path))
        stream = http.client.HTTPConnection(urlsplit(dashboard.url).netloc, timeout=60)
        stack.callback(stream.close)
        stream.request("GET", "/api/events")
        events = stream.getresponse()
        assert next_event(events)[0] == "view"
        deadline_s = time.monotonic() + 60
        while dashboard.connections > 1 and time.monotonic() < deadline_s:
            time.sleep(0.05)
        assert (dashboard.connections, dashboard.hub.browsers) == (1, 1)
        time.sleep(2.0)
        dashboard.publish(with_problem(view, "still here"))
        assert next_event(events)[0] == "change"


def request_unread(url: str, path: str) -> socket.socket:
    """A connection with a small buffer that has requested something, and reads nothing."""
    address = urlsplit(url)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.settimeout(60)
    connection.connect((address.hostname or "", address.port))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n".encode())
    return connection


def test_each_message_is_logged_once_whatever_address_it_names() -> None:
    once = FirstOfEachMessage()

    def is_logged(message: str, error: Exception | None = None) -> bool:
        about = None if error is None else (type(error), error, None)
        return once.filter(logging.LogRecord("asyncio", logging.ERROR, "", 0, message, (), about))

    assert is_logged("socket.accept() out of system resource\nsocket: <fd=6>", OSError(24, "x"))
    assert not is_logged("socket.accept() out of system resource\nsocket: <fd=7>", OSError(24, "x"))
    assert is_logged("socket.accept() out of system resource\nsocket: <fd=7>", ValueError())
    assert is_logged("another")


def open_half(dashboard: RunningDashboard) -> socket.socket:
    """A connection that has sent half of the head of a request."""
    address = urlsplit(dashboard.url)
    connection = socket.create_connection((address.hostname or "", address.port), 60)
    connection.sendall(f"GET /api/source HTTP/1.1\r\nHost: {address.netloc}\r\nX-Slow: ".encode())
    return connection


def is_open_after(connection: socket.socket, data: bytes) -> bool:
    """Send something, and return whether the server has kept the connection open."""
    try:
        connection.sendall(data)
        connection.settimeout(0.001)
        return connection.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


def test_the_series_of_shards_is_known(dashboard: RunningDashboard) -> None:
    _, body = ask(dashboard, "/api/series?ids=1,2,77")
    found = json.loads(body)
    assert {key: len(points) for key, points in found.items()} == {"1": 5, "2": 5}


def test_a_recording_has_frames_and_no_events() -> None:
    history = FleetHistory()
    frames = [{"view": view_at(small_fleet(), step, history)} for step in range(3)]
    with run_playback(Playback(frames)) as dashboard:
        described = json.loads(ask(dashboard, "/api/source")[1])
        assert (described["live"], len(described["times"])) == (False, 3)
        assert json.loads(ask(dashboard, "/api/view?frame=1")[1])["at"] == frames[1]["view"]["at"]
        assert ask(dashboard, "/api/events")[0].status == 404
