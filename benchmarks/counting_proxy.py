"""A TCP proxy on loopback that counts the DynamoDB requests that pass through it, by operation."""

from __future__ import annotations

import re
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit

TARGET = re.compile(rb"(?i)x-amz-target: *DynamoDB_\d+\.(\w+)\r\n")
CHUNK = 64 * 1024
LINE_MAX = 200  # a header that is cut in two by a chunk is looked at again as a whole


class CountingProxy:
    """Forwards everything unchanged. `counts` grows while requests pass."""

    def __init__(self, target_url: str) -> None:
        target = urlsplit(target_url)
        self._target = (target.hostname, target.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def serve(self) -> None:
        """Accept until closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                for source, target, count in ((client, server, True), (server, client, False)):
                    forward = threading.Thread(
                        target=self._forward, args=(source, target, count), daemon=True
                    )
                    forward.start()

    def close(self) -> None:
        """Stop accepting."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _forward(self, source: socket.socket, target: socket.socket, count: bool) -> None:
        rest = b""
        # A member that was killed hangs up in the middle of anything; the other side should know.
        with suppress(OSError):
            while data := source.recv(CHUNK):
                if count:
                    rest = self._counted(rest + data)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_RDWR)

    def _counted(self, data: bytes) -> bytes:
        """Count whole headers; returns what may be the beginning of one."""
        end = 0
        for match in TARGET.finditer(data):
            with self._lock:
                self.counts[match[1].decode()] += 1
            end = match.end()
        return data[max(end, len(data) - LINE_MAX) :]


@contextmanager
def counting_proxy(target_url: str) -> Iterator[CountingProxy]:
    """A proxy in a thread of its own."""
    proxy = CountingProxy(target_url)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.close()
        thread.join()
