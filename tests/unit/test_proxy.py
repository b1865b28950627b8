"""The proxy counts requests and injects the faults that a test asks for."""

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from urllib.parse import urlparse

import pytest

from tests.fleet.worker_processes import wait_until
from tests.proxy import HEADER_BYTES_MAX, NetworkFaultKind, Proxies, Proxy, run_proxies

DEADLINE_S = 30.0


class EchoServer:
    """A server that sends back everything it receives, and keeps it in `received`."""

    def __init__(self) -> None:
        self.received = b""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def serve(self) -> None:
        """Accept until closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._echo, args=(client,), daemon=True).start()

    def close(self) -> None:
        """Stop accepting."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _echo(self, client: socket.socket) -> None:
        with client:
            while chunk := _read(client):
                self.received += chunk
                client.sendall(chunk)


@pytest.fixture
def server() -> Iterator[EchoServer]:
    server = EchoServer()
    thread = threading.Thread(target=server.serve)
    thread.start()
    with closing(server):
        yield server
    thread.join()


@pytest.fixture
def proxies() -> Iterator[Proxies]:
    with run_proxies() as running:
        yield running


@pytest.fixture
def proxy(proxies: Proxies, server: EchoServer) -> Proxy:
    """A proxy in front of the server."""
    return proxies.start(server.url)


@contextmanager
def _connect(proxy: Proxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", urlparse(proxy.url).port or 0), DEADLINE_S) as client:
        yield client


def _read(source: socket.socket) -> bytes:
    """The next bytes; empty when the connection has ended or was reset."""
    try:
        return source.recv(100)
    except ConnectionError:
        return b""


def _set_fault(proxies: Proxies, proxy: Proxy, fault: NetworkFaultKind) -> None:
    proxies.set_fault(proxy, fault)
    wait_until(lambda: proxy.fault is fault, "the proxy has the fault", DEADLINE_S)


def test_without_a_fault_everything_passes(proxy: Proxy) -> None:
    """The request arrives, and the response comes back."""
    with _connect(proxy) as client:
        client.sendall(b"hello")
        assert _read(client) == b"hello"


def test_cut_breaks_open_connections_and_refuses_new_ones(proxies: Proxies, proxy: Proxy) -> None:
    """Both connections end. After the fault everything passes again."""
    with _connect(proxy) as client:
        client.sendall(b"hello")
        assert _read(client) == b"hello"
        _set_fault(proxies, proxy, NetworkFaultKind.CUT)
        assert _read(client) == b""
    with _connect(proxy) as client:
        assert _read(client) == b""
    proxies.clear_fault(proxy)
    test_without_a_fault_everything_passes(proxy)


def test_the_request_of_a_lost_response_arrives(proxies: Proxies, proxy: Proxy, server: EchoServer) -> None:
    """The server receives the request. The client sees the end of the connection instead of a response."""
    with _connect(proxy) as client:
        _set_fault(proxies, proxy, NetworkFaultKind.LOSE_RESPONSES)
        client.sendall(b"write this")
        assert _read(client) == b""
    assert server.received == b"write this"


def test_a_chosen_number_of_responses_is_cut(proxy: Proxy, server: EchoServer) -> None:
    """The request arrives and its connection is cut. The next connection works."""
    proxy.responses_to_cut = 1
    with _connect(proxy) as client:
        client.sendall(b"write this")
        assert _read(client) == b""
    assert server.received == b"write this"
    assert proxy.injected == 1
    test_without_a_fault_everything_passes(proxy)


def test_a_held_request_arrives_after_its_client_is_gone(
    proxies: Proxies, proxy: Proxy, server: EchoServer
) -> None:
    """The request reaches the server when the fault ends, although the client has disconnected."""
    with _connect(proxy) as client:
        _set_fault(proxies, proxy, NetworkFaultKind.HOLD)
        client.sendall(b"late")
        wait_until(lambda: proxy.injected > 0, "the request is at the proxy", DEADLINE_S)
    assert server.received == b""
    proxies.clear_fault(proxy)
    wait_until(lambda: server.received == b"late", "the request has arrived", DEADLINE_S)


def test_a_delay_changes_only_the_time(proxies: Proxies, proxy: Proxy) -> None:
    """The response comes, and both directions were slow."""
    with _connect(proxy) as client:
        _set_fault(proxies, proxy, NetworkFaultKind.DELAY)
        client.sendall(b"hello")
        assert _read(client) == b"hello"
    assert proxy.injected == 2


def test_requests_are_counted_by_operation(proxy: Proxy) -> None:
    """Each AWS request counts once, also when its header arrives in two chunks."""
    header = b"POST / HTTP/1.1\r\nX-Amz-Target: DynamoDB_20120810.UpdateItem\r\n"
    with _connect(proxy) as client:
        for part in (header, header[:40], header[40:], b"x" * (2 * HEADER_BYTES_MAX)):
            client.sendall(part)
            while part:
                part = part[len(_read(client)) :]  # noqa: PLW2901 - until the whole part came back
    assert proxy.request_counts == {"UpdateItem": 2}
