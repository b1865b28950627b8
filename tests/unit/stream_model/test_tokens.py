"""Opaque tokens."""

import base64

from hypothesis import example, given
from hypothesis import strategies as st

from leasehold.core.stream_model.tokens import seal, unseal

FIELDS = st.lists(st.none() | st.integers(-(2**63), 2**63 - 1) | st.text())


@given(FIELDS)
def test_what_was_sealed_comes_out_again(fields: list[str | int | None]) -> None:
    """A token carries its fields unchanged."""
    assert unseal("kind", seal("kind", *fields)) == fields


@given(st.text())
@example("AAAAAAAAAAE=")
@example(base64.b64encode(bytes(7) + b"\x01" + bytes(8) + b"[]").decode())
def test_invented_text_is_no_token(text: str) -> None:
    """Whatever is sent instead of a token is recognised as none, without an error."""
    assert unseal("kind", text) is None


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_damaged_token_is_none(place: int, flip: int) -> None:
    """Changing any byte of a token makes it invalid."""
    raw = bytearray(base64.b64decode(seal("kind", "orders", 42)))
    raw[place % len(raw)] ^= flip
    assert unseal("kind", base64.b64encode(raw).decode()) is None


def test_a_token_of_another_kind_is_none() -> None:
    """An iterator is not taken for a continuation token."""
    assert unseal("shards", seal("iterator", "orders")) is None
