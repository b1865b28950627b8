"""A TCP proxy on loopback that forwards requests and, when told to, cuts the line before the answer comes back."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import urlparse


@dataclass
class CuttingProxy:
    """Forwards to `target`. While `cuts_left` is positive, each answer is swallowed and its connection cut."""

    target: tuple[str, int]
    url: str = ""
    cuts_left: int = 0
    cuts_made: int = 0
    _listener: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def serve(self) -> None:
        """Accept until closed."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._join, args=(client,), daemon=True).start()

    def close(self) -> None:
        """Stop accepting."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _join(self, client: socket.socket) -> None:
        with client, socket.create_connection(self.target) as server:
            requests = threading.Thread(target=_forward, args=(client, server), daemon=True)
            requests.start()
            while answer := _read(server):
                if self.cuts_left > 0:
                    self.cuts_left -= 1
                    self.cuts_made += 1
                    client.shutdown(socket.SHUT_RDWR)
                    return
                client.sendall(answer)


def _forward(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := _read(source):
            target.sendall(data)
    except OSError:
        pass  # the other side hung up, which is what this proxy is for


def _read(source: socket.socket) -> bytes:
    try:
        return source.recv(65536)
    except OSError:
        return b""


@contextmanager
def cutting_proxy(url: str) -> Iterator[CuttingProxy]:
    """A running proxy in front of the server at `url`."""
    address = urlparse(url)
    assert address.hostname is not None
    assert address.port is not None
    proxy = CuttingProxy((address.hostname, address.port))
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
