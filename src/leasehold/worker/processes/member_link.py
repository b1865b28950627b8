"""The end of a worker process in its link to the supervisor: reports that it runs, and answers for its status."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from leasehold.adapters.status_server import Response, Route
from leasehold.worker.processes.messages import (
    Answer,
    Connected,
    Explained,
    Question,
    message_from_line,
    message_to_line,
)
from leasehold.worker.settings import ConsumerSettings

_NO_STATUS: Final = Response(404, "text/plain", b"")


class MemberLink:
    """The link of the worker process with this number. `descriptor` is its end of the socket."""

    def __init__(self, process: int, descriptor: int) -> None:
        self.process = process
        self._socket = socket.socket(fileno=descriptor)
        self._socket.set_inheritable(False)  # a process that user code starts must not keep the link open
        self._routes: Mapping[str, Route] = {}
        self._writing = threading.Lock()

    def own_settings(self, settings: ConsumerSettings) -> ConsumerSettings:
        """The settings of this process: a worker id that its siblings do not have."""
        if not settings.identity.worker_id:
            return settings
        own_id = f"{settings.identity.worker_id}-{self.process}"
        return replace(settings, identity=replace(settings.identity, worker_id=own_id))

    def stop_with_supervisor(self, stop: Callable[[], None]) -> None:
        """From now on, answer questions. Call `stop` when the supervisor has ended, however that happens."""
        thread = threading.Thread(target=self._answer, args=(stop,), name="leasehold-link", daemon=True)
        thread.start()

    def offer_status(self, routes: Mapping[str, Route]) -> None:
        """Answer with these routes instead of a server."""
        self._routes = routes

    def report_connected(self, settings: ConsumerSettings) -> None:
        """Tell the supervisor that the connections are open."""
        self._send(message_to_line(Connected(settings.observe.status_host, settings.observe.status_port)))

    def explain(self, sentence: str) -> None:
        """Tell the supervisor why this process ends. It prints the sentence once for all processes."""
        self._send(message_to_line(Explained(sentence)))

    def close(self) -> None:
        """Close the link, at the end of the process."""
        with suppress(OSError):  # the supervisor has closed it
            self._socket.shutdown(socket.SHUT_RDWR)  # ends the reader
        self._socket.close()

    def _answer(self, stop: Callable[[], None]) -> None:
        with suppress(OSError), self._socket.makefile("rb") as lines:
            for line in lines:
                question = message_from_line(line)
                assert isinstance(question, Question), "a supervisor only asks"
                response = self._respond(question.path)
                self._send(
                    message_to_line(
                        Answer(
                            question.number, response.status, response.content_type, response.body.decode()
                        )
                    )
                )
        stop()

    def _respond(self, path: str) -> Response:
        try:
            return self._routes.get(path, lambda: _NO_STATUS)()
        except Exception as error:  # noqa: BLE001 - a bug in the status must not end the link
            return Response(500, "text/plain", type(error).__name__.encode())

    def _send(self, line: bytes) -> None:
        with self._writing, suppress(OSError):  # the supervisor has ended, which the reader sees, too
            self._socket.sendall(line)
