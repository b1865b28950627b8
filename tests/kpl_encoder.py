"""A second encoder of the KPL's format, independent of the library, so that a bug in one does not hide in the other.
It can also write invalid messages.
"""

import hashlib

MAGIC = bytes.fromhex("f3899ac2")


def add_frame(message: bytes, checksum: bytes | None = None) -> bytes:
    """The data of a Kinesis record."""
    return MAGIC + message + (hashlib.md5(message).digest() if checksum is None else checksum)


def partition_key(key: bytes) -> bytes:
    """An entry of the table of partition keys."""
    return delimited(1, key)


def hash_key(key: bytes) -> bytes:
    """An entry of the table of explicit hash keys."""
    return delimited(2, key)


def user_record(key: int | None, hash_key: int | None, data: bytes | None, more: bytes = b"") -> bytes:
    """A user record with two indices and data; None leaves a field out."""
    fields = [
        b"" if key is None else b"\x08" + varint(key),
        b"" if hash_key is None else b"\x10" + varint(hash_key),
    ]
    return delimited(3, b"".join([*fields, b"" if data is None else delimited(3, data), more]))


def delimited(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def varint(value: int) -> bytes:
    head = b""
    while value > 0x7F:
        head += bytes([value & 0x7F | 0x80])
        value >>= 7
    return head + bytes([value])
