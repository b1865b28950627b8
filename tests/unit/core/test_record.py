"""Records as values."""

import pickle

import pytest

from leasehold.core.position import Position
from leasehold.core.record import PutEntry, Record, UserRecord, hash_key_of

RECORD = Record(b"secret", "key-of-secret", "495", 1_700_000_000_000, "KMS")


def test_a_user_record_keeps_every_field() -> None:
    """All fields of a Kinesis record reach the user."""
    assert RECORD.as_user_record() == UserRecord(
        data=b"secret",
        partition_key="key-of-secret",
        sequence_number="495",
        arrival_ms=1_700_000_000_000,
        encryption_type="KMS",
        sub_sequence_number=0,
        explicit_hash_key=None,
        aggregated=False,
    )
    assert type(RECORD.as_user_record()) is UserRecord


def test_the_position_includes_the_sub_sequence_number() -> None:
    """A checkpoint can lie within an aggregate."""
    user = RECORD.as_user_record()._replace(sub_sequence_number=3)
    assert user.position == Position("495", 3)


@pytest.mark.parametrize("value", [RECORD, RECORD.as_user_record(), PutEntry(b"secret", "key-of-secret", 7)])
def test_repr_shows_neither_payload_nor_key(value: object) -> None:
    """A record in a log line or a traceback shows only its position and length."""
    assert "secret" not in repr(value)
    assert "secret" not in str(value)
    assert "6 bytes" in repr(value)


def test_records_can_be_pickled() -> None:
    """Spark sends them between processes."""
    user = RECORD.as_user_record()
    assert pickle.loads(pickle.dumps(user)) == user
    assert type(pickle.loads(pickle.dumps(user))) is UserRecord


def test_records_turn_into_columns() -> None:
    """A batch can be processed column by column."""
    data, keys, *_ = zip(RECORD.as_user_record(), Record(b"b", "k", "496").as_user_record(), strict=True)
    assert (data, keys) == ((b"secret", b"b"), ("key-of-secret", "k"))


@pytest.mark.parametrize(
    ("entry", "hash_key"),
    [
        (PutEntry(b"", "pk1"), 329398341438914906102347661116985167824),
        (PutEntry(b"", "pk1", 0), 0),
        (PutEntry(b"", "größe"), hash_key_of("größe")),
    ],
)
def test_an_explicit_hash_key_overrides_the_partition_key(entry: PutEntry, hash_key: int) -> None:
    """Kinesis routes by the explicit hash key if there is one, and 0 is one."""
    assert entry.hash_key == hash_key


def test_hash_key_is_the_md5_of_utf_8() -> None:
    """The same number as Kinesis computes, also beyond ASCII."""
    assert hash_key_of("größe") == 0xFDBB3A56280ACFA9031707622C599CCB
