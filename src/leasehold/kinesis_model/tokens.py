"""Opaque tokens: shard iterators and continuation tokens. Seals a few fields into text, and opens hostile text.

The seal is a checksum, not a secret: it tells a damaged or invented token from one of ours.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from hashlib import blake2b
from typing import Final

import orjson

Field = str | int | None

# Iterators of the service begin the same way.
_HEADER: Final = bytes(7) + b"\x01"
_SEAL_BYTES: Final = 8


def encode_token(kind: str, *fields: Field) -> str:
    """Text that only `unseal` of the same kind understands."""
    payload = orjson.dumps([kind, *fields])
    return b64encode(_HEADER + _checksum(payload) + payload).decode()


def decode_token(kind: str, text: str) -> list[Field] | None:
    """The fields that were sealed, or nothing if this text was never a token of this kind.

    >>> decode_token("iterator", encode_token("iterator", "orders", 3)), decode_token("list", encode_token("iterator", "orders", 3))
    (['orders', 3], None)
    >>> decode_token("iterator", "AAAAAAAAAAGzzzz")
    """
    try:
        raw = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    header, checksum, payload = raw[:8], raw[8 : 8 + _SEAL_BYTES], raw[8 + _SEAL_BYTES :]
    if header != _HEADER or checksum != _checksum(payload):
        return None
    found, *fields = orjson.loads(payload)
    return fields if found == kind else None


def _checksum(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=_SEAL_BYTES, person=b"leasehold").digest()
