"""CBOR of requests and errors: the same as cbor2's, and no length is trusted."""

from contextlib import suppress
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.adapters.aws.cbor import NotCborError, decode, encode
from leasehold.adapters.aws.direct_calls import client_error
from leasehold.adapters.aws.error_translation import error_code

NAMES = st.text(max_size=300)
REQUESTS = st.dictionaries(NAMES, NAMES | st.integers(0, 2**64 - 1), max_size=30)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.binary()
    | NAMES
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=10,
)


@given(REQUESTS)
def test_a_request_is_what_cbor2_writes(fields: dict[str, str | int]) -> None:
    assert encode(fields) == cbor2.dumps(fields)


@given(VALUES, st.booleans())
def test_every_value_is_read(value: Any, indefinite: bool) -> None:
    """Also of unknown length, as Jackson writes maps and lists, and half precision."""
    body = cbor2.dumps(value, indefinite_containers=indefinite, canonical=not indefinite)
    assert decode(body) == value


@given(st.binary(max_size=40), st.binary(max_size=4), st.integers(0, 60))
def test_hostile_bytes_are_no_cbor_or_a_value(junk: bytes, changed: bytes, at: int) -> None:
    """Random bytes and a changed error are a value or `NotCborError`, never another error."""
    error = cbor2.dumps({"__type": "ExpiredIteratorException", "message": "old", "more": [1.5, None]})
    for body in (junk, error[:at] + changed + error[at + len(changed) :], error[:at]):
        with suppress(NotCborError):
            decode(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xff",
        b"\x1c",  # a reserved length
        b"\x5b" + b"\xff" * 8,  # strings and containers that claim exabytes
        b"\x7b" + b"\xff" * 8,
        b"\x9b" + b"\xff" * 8,
        b"\xbb" + b"\xff" * 8,
        b"\x9b\x00\x00\x00\x00\x7f\xff\xff\xff",
        b"\x81" * 1_000 + b"\x00",  # too deep
        b"\xc1" * 1_000 + b"\x00",
        b"\xa1\x80\x00",  # a list as a key
        b"\x62\xff\xff",  # no UTF-8
        b"\x7f\x41a\xff",  # a part of another type
        b"\x00\x00",  # bytes after the item
        cbor2.dumps("x" * 70_000),
    ],
)
def test_what_is_no_cbor(body: bytes) -> None:
    with pytest.raises(NotCborError):
        decode(body)
    error = client_error("GetRecords", 500, body, is_cbor=True)
    assert error_code(error) == "500"


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ({"__type": "ExpiredIteratorException", "message": "old"}, "ExpiredIteratorException", "old"),
        (
            {"__type": "com.amazonaws#LimitExceededException:http://internal/#x", "Message": "slow"},
            "LimitExceededException",
            "slow",
        ),
        (
            {"__type": "com.amazonaws#LimitExceededException", "Message": "slow"},
            "LimitExceededException",
            "slow",
        ),
        ({"message": "no type"}, "400", "no type"),
        ([1, 2], "400", "the response is not an AWS error"),
    ],
)
def test_an_error_in_cbor_is_the_error_in_json(fields: Any, code: str, message: str) -> None:
    error = client_error("GetRecords", 400, cbor2.dumps(fields), is_cbor=True)
    assert error.response["Error"] == {"Code": code, "Message": message}
