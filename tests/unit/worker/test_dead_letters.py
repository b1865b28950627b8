"""Dead letters contain all that is needed to examine and replay a record, and are stored before the shard continues."""

import asyncio
import base64
import json
import multiprocessing
import os
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from leasehold.config.connection import ConnectionSettings
from leasehold.core.model import ShardId
from leasehold.core.record import UserRecord
from leasehold.errors import ConfigError, UnavailableError
from leasehold.worker.connect import open_dead_letters
from leasehold.worker.dead_letters import DeadLetter, FileDeadLetters, dead_letter_to_json, object_name

LETTER = DeadLetter(
    application="billing",
    stream="orders",
    shard=ShardId("shardId-000000000003"),
    record=UserRecord(
        b"\x00\xff not json", "customer-7", "4957", arrival_ms=1_790_000_000_123, sub_sequence_number=2
    ),
    error_type="ValueError",
    error_message="no such customer",
    attempts=6,
    dead_lettered_ms=1_790_000_001_000,
)


def test_a_letter_is_converted_to_json() -> None:
    """Position, time, error and data are included."""
    assert dead_letter_to_json(LETTER) == {
        "application": "billing",
        "stream": "orders",
        "shard": "shardId-000000000003",
        "sequence_number": "4957",
        "sub_sequence_number": 2,
        "partition_key": "customer-7",
        "arrival": "2026-09-21T14:13:20.123+00:00",
        "error_type": "ValueError",
        "error_message": "no such customer",
        "attempts": 6,
        "dead_lettered_at": "2026-09-21T14:13:21.000+00:00",
        "data": base64.b64encode(b"\x00\xff not json").decode(),
    }


def test_a_file_gets_one_line_per_letter_and_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    """Lines are appended to an existing file, and other users cannot read the payloads."""
    file = tmp_path / "letters.jsonl"
    letters = FileDeadLetters(file)
    asyncio.run(letters.put(LETTER))
    asyncio.run(letters.put(replace(LETTER, attempts=7)))
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert lines == [dead_letter_to_json(LETTER), {**dead_letter_to_json(LETTER), "attempts": 7}]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def _put_many(path: str, name: str) -> None:
    letters = FileDeadLetters(Path(path))
    large = LETTER.record._replace(data=name.encode() * 200_000)
    for _ in range(10):
        asyncio.run(letters.put(replace(LETTER, record=large)))


def test_processes_share_a_file_without_mixing_lines(tmp_path: Path) -> None:
    """Large letters of several processes stay whole."""
    file = tmp_path / "letters.jsonl"
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=_put_many, args=(str(file), name)) for name in "abc"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
        assert writer.exitcode == 0
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert (
        sorted(base64.b64decode(line["data"])[:1] for line in lines)
        == [b"a"] * 10 + [b"b"] * 10 + [b"c"] * 10
    )


def test_a_letter_that_does_not_fit_leaves_the_file_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a full disk half a line would corrupt the next one, so it is removed, and the call raises."""
    file = tmp_path / "letters.jsonl"
    letters = FileDeadLetters(file)
    asyncio.run(letters.put(LETTER))
    before = file.read_bytes()
    write = os.write

    def write_some(target: int, data: bytes) -> int:
        if len(data) < 100:
            raise OSError(28, "No space left on device")
        return write(target, data[:100])

    monkeypatch.setattr(os, "write", write_some)
    with pytest.raises(UnavailableError, match="No space left"):
        asyncio.run(letters.put(LETTER))
    assert file.read_bytes() == before


def test_a_missing_folder_is_refused_at_the_start(tmp_path: Path) -> None:
    """Not only when the first letter is stored."""
    with pytest.raises(ConfigError, match="create it first"):
        open_dead_letters(str(tmp_path / "nowhere" / "letters.jsonl"), ConnectionSettings())


def test_an_error_message_with_lone_surrogates_is_stored(tmp_path: Path) -> None:
    """UTF-8 cannot encode them, but the message is read back unchanged, from a file and from a store."""
    quoting = replace(LETTER, error_message="cannot read " + b"\xff".decode("utf-8", "surrogateescape"))
    file = tmp_path / "letters.jsonl"
    asyncio.run(FileDeadLetters(file).put(quoting))
    store = open_dead_letters(f"file://{tmp_path}/letters", ConnectionSettings())
    assert store is not None
    asyncio.run(store.put(quoting))
    for written in (file, tmp_path / "letters" / object_name(quoting)):
        assert json.loads(written.read_bytes()) == dead_letter_to_json(quoting)


def test_a_repeated_letter_replaces_its_object(tmp_path: Path) -> None:
    """Objects are named by position, and names sort in shard order."""
    letters = open_dead_letters(f"file://{tmp_path}/letters", ConnectionSettings())
    assert letters is not None
    for _ in range(2):
        asyncio.run(letters.put(LETTER))
    (written,) = [path for path in (tmp_path / "letters").rglob("*") if path.is_file()]
    assert written.relative_to(tmp_path / "letters") == Path(object_name(LETTER))
    assert json.loads(written.read_text()) == dead_letter_to_json(LETTER)
    later = replace(LETTER, record=LETTER.record._replace(sequence_number="10000"))
    assert object_name(LETTER) < object_name(later)


def test_an_error_of_the_store_can_be_retried(tmp_path: Path) -> None:
    """Every error of the store becomes UnavailableError, without a payload in its message."""
    blocked = tmp_path / "letters"
    blocked.write_text("a file where a folder should be")
    letters = open_dead_letters(f"file://{tmp_path}", ConnectionSettings())
    assert letters is not None
    letters_below = replace(LETTER, application="letters")
    with pytest.raises(UnavailableError, match="dead letters to file://") as caught:
        asyncio.run(letters.put(letters_below))
    assert "not json" not in str(caught.value)


def test_without_obstore_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of an ImportError."""
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigError, match=r"leasehold\[objects\]"):
        open_dead_letters("s3://bucket/letters", ConnectionSettings())


def test_a_function_needs_no_store() -> None:
    """The worker calls it as user code."""
    assert open_dead_letters(print, ConnectionSettings()) is None
    assert open_dead_letters(None, ConnectionSettings()) is None
