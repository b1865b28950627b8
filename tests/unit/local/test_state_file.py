"""The state file."""

from pathlib import Path

import pytest

from leasehold.errors import ConfigError
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.writing import PutRequest
from leasehold.local.clock import AdjustableClock
from leasehold.local.state import ServerState
from leasehold.local.state_file import read_state, save_state, take_snapshot

NOW_MS = 1_700_000_000_000
KEYS = ["k", "ключ", "\U0001f511"]


def filled_state(records: int = 2_500) -> ServerState:
    """Two streams; more records than fit into one chunk."""
    state = ServerState(KinesisModel())
    for name in ("a", "b"):
        state.service.create_stream(NOW_MS, name, shard_count=2)
    for number in range(records):
        data = number.to_bytes(2, "big") + bytes(range(256))
        state.service.put_record(NOW_MS + number, "a", PutRequest(KEYS[number % 3], data, number % 2))
    state.clock.advance(12_345)
    return state


def read_back(path: Path) -> ServerState:
    state = ServerState(KinesisModel())
    read_state(path, state.service, state.clock)
    return state


def test_everything_comes_back(tmp_path: Path) -> None:
    """Streams, records byte for byte, and the offset of the clock."""
    state, path = filled_state(), tmp_path / "state"
    save_state(state, path)
    assert take_snapshot(read_back(path)) == take_snapshot(state)


def test_a_file_that_is_not_there_is_no_state(tmp_path: Path) -> None:
    """The first start finds nothing and begins with no streams."""
    assert read_back(tmp_path / "state").service.streams == {}


def test_a_file_is_replaced_as_a_whole_and_is_private(tmp_path: Path) -> None:
    """Nothing is left beside it, and only its owner can read the payloads."""
    path = tmp_path / "state"
    for records in (10, 1):
        save_state(filled_state(records), path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(take_snapshot(read_back(path)).records) == 4


@pytest.mark.parametrize("damage", ["cut", "chunk lost", "other format", "text", "empty"])
def test_a_damaged_file_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    """The message names the file and what to do; nothing is guessed."""
    path = tmp_path / "state"
    save_state(filled_state(), path)
    whole = path.read_bytes()
    save_state(filled_state(1_000), path)
    one_chunk = path.read_bytes()
    end_of_first = one_chunk.index(b"\xa1grecords")
    path.write_bytes(
        {
            "cut": whole[: len(whole) // 2],
            "chunk lost": one_chunk[:end_of_first] + whole[whole.index(b"\xa1grecords") :],
            "other format": b"\xa1fformatfpickle",
            "text": b"hello",
            "empty": b"",
        }[damage]
    )
    with pytest.raises(ConfigError, match=f"{path} is not a whole state file"):
        read_back(path)


def test_a_place_that_cannot_be_written_is_told_by_name(tmp_path: Path) -> None:
    """The message names the file and the reason."""
    path = tmp_path / "no such folder" / "state"
    with pytest.raises(ConfigError, match=f"{path}: No such file"):
        save_state(ServerState(KinesisModel(), AdjustableClock()), path)
