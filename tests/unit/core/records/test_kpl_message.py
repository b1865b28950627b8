"""The parts of the wire format that are read without protobuf."""

import pytest

from leasehold.core.records.kpl_message import add_frame, count_entries, remove_frame
from tests import kpl_encoder
from tests.kpl_encoder import delimited, hash_key, partition_key, user_record


def test_frames_agree_with_a_second_encoder() -> None:
    """Magic before, MD5 after; removing the frame returns the message."""
    assert add_frame(b"payload") == kpl_encoder.add_frame(b"payload")
    assert remove_frame(add_frame(b"payload")) == b"payload"
    assert remove_frame(kpl_encoder.add_frame(b"payload", bytes(16))) is None


@pytest.mark.parametrize(
    ("payload", "count"),
    [
        (b"", 0),
        (partition_key(b"k") + hash_key(b"5") + user_record(0, 0, b"x"), 3),
        (user_record(0, None, bytes(200)) * 3, 3),
        (user_record(0, None, bytes(70_000)) * 2, 2),
        (delimited(2**28, b"x"), 1),
        (bytes.fromhex("9a8000 00") * 4, 4),
        (bytes.fromhex("1a 808000") * 4, 4),
        (bytes.fromhex("7807 78ffffffffffffffffff01 790000000000000000 7a03616263 7d00000000"), 5),
        (bytes.fromhex("7b 7807 7c"), 3),
    ],
)
def test_entries_are_counted_without_parsing(payload: bytes, count: int) -> None:
    """Every wire type, lengths and tags of several bytes, and non-minimal encodings."""
    assert count_entries(payload, stop_after=10) == count


def test_counting_stops_at_the_limit() -> None:
    """A million entries cost no more than the limit."""
    assert count_entries(b"\x1a\x00" * 1_000_000, stop_after=3) == 4


@pytest.mark.parametrize("fault", ["1f", "1a", "1a80", "9a", "ff" * 11, "1a" + "ff" * 10 + "01"])
def test_an_invalid_field_ends_the_count(fault: str) -> None:
    """An unknown wire type, truncated data, an endless varint: the parser will raise."""
    assert count_entries(b"\x1a\x00" * 2 + bytes.fromhex(fault), stop_after=10) == 2
