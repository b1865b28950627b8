"""Dead letters: records that a handler cannot handle, stored with their error for examination and replay.

Dead letters contain payloads. They are data, not logs: files are created readable by their owner only.
"""

from __future__ import annotations

import asyncio
import base64
import fcntl
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from leasehold.core.model import ShardId
from leasehold.core.record import UserRecord
from leasehold.errors import ConfigError, UnavailableError

_OWNER_ONLY: Final = 0o600


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A record on which the handler failed in every attempt, and its last error."""

    application: str
    stream: str
    shard: ShardId
    record: UserRecord
    error_type: str
    error_message: str
    attempts: int
    dead_lettered_ms: int


# A plain or async function. If it raises, the letter is not stored, and the function is called again.
DeadLetterFunction = Callable[[DeadLetter], object]


class DeadLetters(Protocol):
    """Stores dead letters. A letter may come twice, because after a crash a shard is read from its checkpoint."""

    async def put(self, letter: DeadLetter) -> None:
        """Return when the letter is stored. Raises UnavailableError if the caller should retry."""
        ...


def dead_letter_to_json(letter: DeadLetter) -> Mapping[str, Any]:
    """Convert a letter to JSON values. The data is base64."""
    record = letter.record
    return {
        "application": letter.application,
        "stream": letter.stream,
        "shard": letter.shard,
        "sequence_number": record.sequence_number,
        "sub_sequence_number": record.sub_sequence_number,
        "partition_key": record.partition_key,
        "arrival": None if record.arrival_ms is None else _iso(record.arrival_ms),
        "error_type": letter.error_type,
        "error_message": letter.error_message,
        "attempts": letter.attempts,
        "dead_lettered_at": _iso(letter.dead_lettered_ms),
        "data": base64.b64encode(record.data).decode("ascii"),
    }


def error_text(error: Exception) -> str:
    """Return the message of an error, or the name of its type if `str` raises."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - user code; its error must not keep the letter from being stored
        return type(error).__name__


class FileDeadLetters(DeadLetters):
    """Appends one line of JSON per letter to a file. Processes on one machine may share the file."""

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise ConfigError(
                f"dead_letters={str(path)!r}: the folder {path.parent} does not exist; create it first"
            )
        self._path = path

    async def put(self, letter: DeadLetter) -> None:
        """Append one line and wait until it is on disk."""
        line = _encoded(letter) + b"\n"
        try:
            await asyncio.to_thread(_append, self._path, line)
        except OSError as error:
            raise UnavailableError(f"dead letters to {self._path}: {error.strerror}") from error


class ObjectDeadLetters(DeadLetters):
    """Writes one object per letter. Its name is the position of the record, so a repeated letter replaces itself."""

    def __init__(self, put: Callable[[str, bytes], Awaitable[object]], url: str) -> None:
        self._put = put
        self._url = url

    async def put(self, letter: DeadLetter) -> None:
        """Write one object."""
        body = _encoded(letter)
        try:
            await self._put(object_name(letter), body)
        except Exception as error:  # the errors of obstore have no common base class
            raise UnavailableError(f"dead letters to {self._url}: {type(error).__name__}") from error


def object_name(letter: DeadLetter) -> str:
    """Return the name of a letter's object below the prefix. Names sort in shard order."""
    record = letter.record
    number = f"{record.sequence_number:0>56}-{record.sub_sequence_number:06}"
    return f"{letter.application}/{letter.stream}/{letter.shard}/{number}.json"


def _encoded(letter: DeadLetter) -> bytes:
    # ASCII, because an error message may contain lone surrogates, which UTF-8 cannot encode.
    return json.dumps(dead_letter_to_json(letter), ensure_ascii=True).encode("ascii")


def _append(path: Path, line: bytes) -> None:
    """Append the whole line, or leave the file unchanged."""
    with _locked(path) as file:
        size = os.fstat(file).st_size
        try:
            written = 0
            while written < len(line):
                written += os.write(file, line[written:])
            os.fsync(file)
        except OSError:
            os.ftruncate(file, size)
            raise


@contextmanager
def _locked(path: Path) -> Iterator[int]:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _OWNER_ONLY)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield file
    finally:
        os.close(file)


def _iso(epoch_ms: int) -> str:
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).isoformat(timespec="milliseconds")
