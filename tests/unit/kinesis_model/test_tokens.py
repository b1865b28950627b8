"""Opaque tokens."""

import base64

from hypothesis import example, given
from hypothesis import strategies as st

from leasehold.kinesis_model.tokens import decode_token, encode_token

FIELDS = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.text())


@given(FIELDS)
def test_a_token_carries_its_fields(fields: list[str | int | None]) -> None:
    """Decoding returns the encoded fields unchanged."""
    assert decode_token("kind", encode_token("kind", *fields)) == fields


@given(st.text())
@example("AAAAAAAAAAE=")
@example(base64.b64encode(bytes(7) + b"\x01" + bytes(8) + b"[]").decode())
def test_other_text_is_no_token(text: str) -> None:
    """Decoding any other text returns None without an error."""
    assert decode_token("kind", text) is None


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_token_is_refused(index: int, flip: int) -> None:
    """Changing any byte of a token makes it invalid."""
    raw = bytearray(base64.b64decode(encode_token("kind", "orders", 42)))
    raw[index % len(raw)] ^= flip
    assert decode_token("kind", base64.b64encode(raw).decode()) is None


def test_a_token_of_another_kind_is_refused() -> None:
    """An iterator is not accepted as a continuation token."""
    assert decode_token("shards", encode_token("iterator", "orders")) is None
