"""The proxies do to connections what a run of chaos says that it did."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlparse

import pytest

from tests.chaos.fault_plan import NetworkFaultKind
from tests.chaos.proxy import Proxies, Proxy, proxies
from tests.fleet.worker_processes import wait_until

DEADLINE_S = 30.0


class Echo:
    """A server that answers with what it was sent, and remembers it."""

    def __init__(self) -> None:
        self.heard = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def serve(self) -> None:
        """Accept until closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(client,), daemon=True).start()

    def close(self) -> None:
        """Stop accepting."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _answer(self, client: socket.socket) -> None:
        with client:
            while piece := _read(client):
                self.heard += piece
                client.sendall(piece)


@contextmanager
def _echo() -> Iterator[Echo]:
    echo = Echo()
    thread = threading.Thread(target=echo.serve)
    thread.start()
    with closing(echo):
        yield echo
    thread.join()


@pytest.fixture
def echo() -> Iterator[Echo]:
    """A server."""
    with _echo() as server:
        yield server


@pytest.fixture
def running() -> Iterator[Proxies]:
    """Proxies."""
    with proxies() as some:
        yield some


@pytest.fixture
def proxy(running: Proxies, echo: Echo) -> Proxy:
    """A proxy in front of the server."""
    return running.in_front_of(echo.url)


@contextmanager
def _connected(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", urlparse(proxy.url).port or 0), DEADLINE_S) as client:
        yield client


def _read(source: socket.socket) -> bytes:
    """What comes next; nothing at the end of a connection, however it ends."""
    try:
        return source.recv(100)
    except ConnectionError:
        return b""


def _hurt(running: Proxies, proxy: Proxy, how: NetworkFaultKind) -> None:
    running.trouble(proxy, how)
    wait_until(lambda: proxy.how is how, "the proxy knows", DEADLINE_S)


def test_in_calm_times_everything_passes(proxy: Proxy) -> None:
    """What is sent arrives, and the answer comes back."""
    with _connected(proxy) as client:
        client.sendall(b"hello")
        assert _read(client) == b"hello"


def test_a_cut_breaks_what_is_open_and_refuses_what_is_new(running: Proxies, proxy: Proxy) -> None:
    """Both see the end of their connection; afterwards everything passes again."""
    with _connected(proxy) as client:
        client.sendall(b"hello")
        assert _read(client) == b"hello"
        _hurt(running, proxy, NetworkFaultKind.CUT)
        assert _read(client) == b""
    with _connected(proxy) as client:
        assert _read(client) == b""
    running.calm(proxy)
    test_in_calm_times_everything_passes(proxy)


def test_a_lost_answer_was_a_request_that_arrived(running: Proxies, proxy: Proxy, echo: Echo) -> None:
    """The server has heard the request; the client sees the end of the connection instead of an answer."""
    with _connected(proxy) as client:
        _hurt(running, proxy, NetworkFaultKind.LOSE_ANSWERS)
        client.sendall(b"write this")
        assert _read(client) == b""
    assert echo.heard == b"write this"


def test_what_is_held_back_arrives_when_nobody_waits_any_more(
    running: Proxies, proxy: Proxy, echo: Echo
) -> None:
    """A request of a client that has gone away reaches the server late."""
    with _connected(proxy) as client:
        _hurt(running, proxy, NetworkFaultKind.HOLD)
        client.sendall(b"late")
        wait_until(lambda: proxy.hurt > 0, "the request is at the proxy", DEADLINE_S)
    assert echo.heard == b""
    running.calm(proxy)
    wait_until(lambda: echo.heard == b"late", "the request has arrived", DEADLINE_S)


def test_a_delay_changes_nothing_but_the_time(running: Proxies, proxy: Proxy) -> None:
    """The answer comes, and both directions were slow."""
    with _connected(proxy) as client:
        _hurt(running, proxy, NetworkFaultKind.DELAY)
        client.sendall(b"hello")
        assert _read(client) == b"hello"
    assert proxy.hurt == 2
