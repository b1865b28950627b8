"""Saves streams in a file, so that they survive a restart.

A new file is written completely and then replaces the old one. It is a sequence of CBOR items: a header with all
streams, chunks of records, and a last item with the number of records, so that an incomplete file is detected. Unlike
with pickle, reading the file executes no code.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import cbor2

from leasehold.errors import ConfigError
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.snapshot import (
    SavedRecords,
    records_to_columns,
    restore_records,
    stream_from_values,
    stream_to_values,
)
from leasehold.local.clock import AdjustableClock
from leasehold.local.state import ServerState

_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_FORMAT: Final = "leasehold-local-streams"
_VERSION: Final = 1
# Other threads can run between two chunks.
_CHUNK_RECORDS: Final = 1_000
_PAUSE_SECONDS: Final = 3.0
# Saving takes at most a tenth of the time.
_PAUSE_SHARE: Final = 10

log = logging.getLogger("leasehold.local")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state at one moment. Later requests do not change it."""

    header: dict[str, Any]
    records: Sequence[tuple[str, str, SavedRecords]]


def take_snapshot(state: ServerState) -> Snapshot:
    """Copy the state to save. Records are shared, not copied."""
    streams = list(state.service.streams.values())
    for stream in streams:
        stream.trim()
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "clock_offset_ms": state.clock.offset_ms,
        "epoch_ms": state.service.epochs.last_ms,
        "streams": [stream_to_values(stream) for stream in streams],
    }
    records = [
        (stream.name, shard.id, records_to_columns(shard))
        for stream in streams
        for shard in stream.shards.values()
    ]
    return Snapshot(header, records)


async def save_periodically(state: ServerState, path: Path, stopped: asyncio.Event) -> None:
    """Save changes every few seconds, less often if saving takes long, and once more at the end."""
    saved, pause_s = state.changes, _PAUSE_SECONDS
    while not stopped.is_set():
        with suppress(TimeoutError):
            await asyncio.wait_for(stopped.wait(), pause_s)
        if saved == state.changes:
            continue
        changes, began_s = state.changes, time.monotonic()
        try:
            await asyncio.to_thread(write_snapshot, take_snapshot(state), path)
        except ConfigError as error:
            if stopped.is_set():
                raise
            log.error("%s; retrying", error)  # noqa: TRY400 - the message is sufficient
        else:
            saved = changes
        pause_s = max(_PAUSE_SECONDS, _PAUSE_SHARE * (time.monotonic() - began_s))


def save_state(state: ServerState, path: Path) -> None:
    """Save the state now."""
    write_snapshot(take_snapshot(state), path)


def write_snapshot(snapshot: Snapshot, path: Path) -> None:
    """Replace the file with a snapshot. After a crash the file is either the old one or the new one.

    If the path is a symbolic link, the file that it points to is replaced, and the link stays.
    """
    target = path.resolve()
    new_file = target.with_name(f"{target.name}.new")
    try:
        new_file.unlink(missing_ok=True)  # of a killed server, or a link that another user has put there
        # The file contains payloads, so only its owner may read it.
        with os.fdopen(os.open(new_file, _CREATE, 0o600), "wb") as file:
            _write(snapshot, file)
            file.flush()
            os.fsync(file.fileno())
        new_file.replace(target)
    except OSError as error:
        raise ConfigError(
            f"the state cannot be saved in {path}: {error.strerror}: check that its folder exists, that it has space, "
            "and that this user may write to it, or choose another file"
        ) from error


def read_state(path: Path, service: KinesisModel, clock: AdjustableClock) -> None:
    """Fill a model from a file, if the file exists."""
    if not path.exists():
        return
    try:
        with path.open("rb") as file:
            _read(file, service, clock)
    except (cbor2.CBORDecodeError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"{path} is not a complete state file of `leasehold local` ({type(error).__name__}): move it away to "
            "start without streams"
        ) from error
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}: check that it is a file that this user may read, or choose "
            "another one"
        ) from error


def _write(snapshot: Snapshot, file: IO[bytes]) -> None:
    cbor2.dump(snapshot.header, file)
    total = 0
    for chunk in _chunks(snapshot):
        cbor2.dump(chunk, file)
        total += len(chunk[-1])
    cbor2.dump({"records": total}, file)


def _read(file: IO[bytes], service: KinesisModel, clock: AdjustableClock) -> None:
    decoder = cbor2.CBORDecoder(file)
    header = decoder.decode()
    if header["format"] != _FORMAT or header["version"] != _VERSION:
        raise ValueError("unknown format")
    clock.advance(header["clock_offset_ms"])
    service.epochs.last_ms = header["epoch_ms"]
    for values in header["streams"]:
        stream = stream_from_values(values, service.epochs, service.account)
        service.streams[stream.name] = stream
    total = 0
    while isinstance(item := decoder.decode(), list):
        stream_name, shard_id, first, count, arrivals_ms, keys, data = item
        shard = service.streams[stream_name].shards[shard_id]
        restore_records(shard, SavedRecords(arrivals_ms, keys, data), first, count)
        total += len(data)
    if item != {"records": total}:
        raise ValueError("records are missing")


def _chunks(snapshot: Snapshot) -> Iterator[list[Any]]:
    for stream_name, shard_id, columns in snapshot.records:
        count = len(columns.data)
        for first in range(0, count, _CHUNK_RECORDS):
            part = slice(first, first + _CHUNK_RECORDS)
            yield [stream_name, shard_id, first, count, *(list(column[part]) for column in columns)]
