"""Opaque tokens: shard iterators and continuation tokens. Encodes a few fields as text and decodes untrusted text.

A checksum, which is no secret, detects tokens that are damaged or were not issued by this server.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from hashlib import blake2b
from typing import Final

import orjson

Field = str | int | None

# Iterators of the real service begin with the same bytes.
_HEADER: Final = bytes(7) + b"\x01"
_CHECKSUM_BYTES: Final = 8


def encode_token(kind: str, *fields: Field) -> str:
    """Encode fields as a token. Only `decode_token` with the same kind decodes it."""
    payload = orjson.dumps([kind, *fields])
    return b64encode(_HEADER + _checksum(payload) + payload).decode()


def decode_token(kind: str, text: str) -> list[Field] | None:
    """Return the fields of a token, or None if the text is no token of this kind.

    >>> token = encode_token("iterator", "orders", 3)
    >>> decode_token("iterator", token), decode_token("list", token)
    (['orders', 3], None)
    >>> decode_token("iterator", "AAAAAAAAAAGzzzz")
    """
    try:
        raw = b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    header, checksum, payload = raw[:8], raw[8 : 8 + _CHECKSUM_BYTES], raw[8 + _CHECKSUM_BYTES :]
    if header != _HEADER or checksum != _checksum(payload):
        return None
    found, *fields = orjson.loads(payload)
    return fields if found == kind else None


def _checksum(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=_CHECKSUM_BYTES, person=b"leasehold").digest()
