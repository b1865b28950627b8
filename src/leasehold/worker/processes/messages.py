"""The messages between a supervisor and its worker processes: lines of JSON over a socket that only the two have.

A process sends one `Connected` after it has opened its connections, or an `Explained` before it ends by itself. The
supervisor may ask for a path of the status, and gets an `Answer`. The end of the socket is a message, too: a process
whose supervisor has ended stops.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

LINE_BYTES_MAX: Final = 64 * 1024 * 1024  # the metrics of ten thousand shards


@dataclass(frozen=True, slots=True)
class Connected:
    """The process has opened its connections. Says where the settings want the status to be served, if anywhere."""

    status_host: str
    status_port: int | None


@dataclass(frozen=True, slots=True)
class Explained:
    """The process ends because of an error that would come back after a restart."""

    sentence: str


@dataclass(frozen=True, slots=True)
class Question:
    """The supervisor asks for a path of the status."""

    number: int
    path: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The response of the process to the question with this number."""

    number: int
    status: int
    content_type: str
    body: str


Message = Connected | Explained | Question | Answer
_KINDS: Final[Mapping[str, type[Message]]] = {
    kind.__name__: kind for kind in (Connected, Explained, Question, Answer)
}


def message_to_line(message: Message) -> bytes:
    """Encode a message as one line."""
    return json.dumps({"kind": type(message).__name__, **asdict(message)}).encode("ascii") + b"\n"


def message_from_line(line: bytes) -> Message:
    """Decode a line. Both ends are this program, so any other line is a bug.

    >>> message_from_line(message_to_line(Question(1, "/health")))
    Question(number=1, path='/health')
    """
    fields: dict[str, Any] = json.loads(line)
    return _KINDS[fields.pop("kind")](**fields)
