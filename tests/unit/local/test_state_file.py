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
    """Return a state of two streams with more records than fit into one chunk."""
    state = ServerState(KinesisModel())
    for name in ("a", "b"):
        state.service.create_stream(NOW_MS, name, shard_count=2)
    for number in range(records):
        data = number.to_bytes(2, "big") + bytes(range(256))
        state.service.put_record(NOW_MS + number, "a", PutRequest(KEYS[number % 3], data, number % 2))
    state.clock.advance(12_345)
    return state


def restore(path: Path) -> ServerState:
    state = ServerState(KinesisModel())
    read_state(path, state.service, state.clock)
    return state


def test_the_whole_state_is_restored(tmp_path: Path) -> None:
    """Streams, records byte for byte, and the offset of the clock."""
    state, path = filled_state(), tmp_path / "state"
    save_state(state, path)
    assert take_snapshot(restore(path)) == take_snapshot(state)


def test_without_a_file_there_are_no_streams(tmp_path: Path) -> None:
    """The first start finds no file."""
    assert restore(tmp_path / "state").service.streams == {}


def test_the_file_is_replaced_at_once_and_is_private(tmp_path: Path) -> None:
    """No other file is left behind, and only the owner can read the payloads."""
    path = tmp_path / "state"
    for records in (10, 1):
        save_state(filled_state(records), path)
    assert list(tmp_path.iterdir()) == [path]
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(take_snapshot(restore(path)).records) == 4


def test_a_link_to_the_file_stays_a_link(tmp_path: Path) -> None:
    """The file on another disk, to which the link points, gets the state."""
    (tmp_path / "disk").mkdir()
    link, file = tmp_path / "state", tmp_path / "disk" / "file"
    link.symlink_to(file)
    for records in (10, 1):
        save_state(filled_state(records), link)
    assert link.is_symlink()
    assert [each.name for each in file.parent.iterdir()] == ["file"]
    assert take_snapshot(restore(link)) == take_snapshot(restore(file))


def test_a_link_at_the_temporary_name_is_not_followed(tmp_path: Path) -> None:
    """In a folder that others may write to, such a link would let them overwrite any file of this user."""
    precious = tmp_path / "precious"
    precious.write_text("important")
    (tmp_path / "state.new").symlink_to(precious)
    save_state(filled_state(1), tmp_path / "state")
    assert precious.read_text() == "important"
    assert not (tmp_path / "state").is_symlink()


@pytest.mark.parametrize("damage", ["cut", "chunk lost", "other format", "text", "empty"])
def test_a_damaged_file_is_refused(tmp_path: Path, damage: str) -> None:
    """The error names the file and the remedy."""
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
    with pytest.raises(ConfigError, match=f"{path} is not a complete state file"):
        restore(path)


def test_a_path_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    """The error names the file and the reason."""
    path = tmp_path / "no such folder" / "state"
    with pytest.raises(ConfigError, match=f"{path}: No such file"):
        save_state(ServerState(KinesisModel(), AdjustableClock()), path)
