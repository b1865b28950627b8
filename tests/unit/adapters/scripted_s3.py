"""An S3 server on loopback with one bucket. A test replaces its responses by errors, by silence, or by half a body."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum, auto
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PAGE_SIZE = 2


class Trouble(Enum):
    """What happens to one request. A number is a status that is sent instead of executing the request."""

    CUT = auto()  # not executed, and the connection is closed
    RESPONSE_LOST = auto()  # executed, and the connection is closed
    HALF_BODY = auto()  # executed, and the connection is closed in the middle of the response's body


@dataclass
class ScriptedS3:
    """`troubles` are used up, one for each request; after them, requests succeed. None: the request succeeds."""

    objects: dict[str, bytes] = field(default_factory=dict)
    troubles: list[Trouble | int | None] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    url: str = ""

    def execute(
        self, method: str, key: str, query: dict[str, list[str]], body: bytes, *, is_create: bool
    ) -> tuple[int, bytes]:
        """The status and the body of the response."""
        if method == "PUT":
            if is_create and key in self.objects:
                return 412, b"<Error><Code>PreconditionFailed</Code></Error>"
            self.objects[key] = body
            return 200, b""
        if not key:
            return 200, self._page(query)
        found = self.objects.get(key)
        return (404, b"<Error><Code>NoSuchKey</Code></Error>") if found is None else (200, found)

    def _page(self, query: dict[str, list[str]]) -> bytes:
        after = query.get("continuation-token", query.get("start-after", [""]))[0]
        prefix = query.get("prefix", [""])[0]
        found = sorted(key for key in self.objects if key > after and key.startswith(prefix))
        page = found[:PAGE_SIZE]
        entries = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2026-11-17T00:00:00.000Z</LastModified><ETag>x</ETag>"
            f"<Size>{len(self.objects[key])}</Size></Contents>"
            for key in page
        )
        more = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if len(found) > PAGE_SIZE else ""
        truncated = "true" if more else "false"
        return f"<ListBucketResult><IsTruncated>{truncated}</IsTruncated>{entries}{more}</ListBucketResult>".encode()


@contextmanager
def scripted_s3() -> Iterator[ScriptedS3]:
    """Run a server."""
    s3 = ScriptedS3()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_request(self) -> None:
            parts = urlsplit(self.path)
            key = parts.path.removeprefix("/bucket").removeprefix("/")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            s3.requests.append(f"{self.command} {key}")
            trouble = s3.troubles.pop(0) if s3.troubles else None
            if trouble is Trouble.CUT:
                self.close_connection = True
                return
            if isinstance(trouble, int):
                self.respond(trouble, b"<Error><Code>Scripted</Code><Message>scripted</Message></Error>")
                return
            is_create = self.headers.get("If-None-Match") == "*"
            status, content = s3.execute(self.command, key, parse_qs(parts.query), body, is_create=is_create)
            if trouble is Trouble.RESPONSE_LOST:
                self.close_connection = True
                return
            self.respond(status, content, is_half=trouble is Trouble.HALF_BODY)

        def respond(self, status: int, content: bytes, *, is_half: bool = False) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", '"x"')
            self.send_header("Last-Modified", "Tue, 17 Nov 2026 00:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content[: len(content) // 2] if is_half else content)
            self.close_connection = is_half

        do_PUT = do_GET = do_HEAD = handle_request  # noqa: N815 - the names that http.server expects

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    s3.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield s3
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
