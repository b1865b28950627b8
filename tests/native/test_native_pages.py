"""Responses and events: the native decoder gives the rows, fields and errors of the decoder in Python."""

import base64
from typing import Any

import cbor2
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.native.cbor_as_json import NOT_CBOR, InexactError, to_json
from tests.native.hostile_bodies import cbor_bodies, cbor_page, end_text, json_bodies, page_text
from tests.native.mutations import mutants
from tests.native.outcomes import Decoded, Kind, Malformed, decode_in_python, decode_natively

KINDS: list[Kind] = ["page", "event"]
JSON_CORPUS = list(dict.fromkeys(json_bodies()))
CBOR_CORPUS = list(dict.fromkeys(cbor_bodies()))


def check_json(body: bytes) -> None:
    for kind in KINDS:
        assert decode_natively(body, kind) == decode_in_python(body, kind), (kind, body[:2_000])


def check_cbor(body: bytes) -> None:
    try:
        json = to_json(body)
    except InexactError:
        return
    for kind in KINDS:
        expected = Malformed(NOT_CBOR) if json is None else decode_in_python(json, kind)
        assert decode_natively(body, kind, cbor=True) == expected, (kind, body[:2_000].hex())


def test_hostile_json() -> None:
    """A corpus of more than a thousand bodies."""
    assert len(JSON_CORPUS) > 1_000
    for body in JSON_CORPUS:
        check_json(body)


def test_hostile_cbor() -> None:
    assert len(CBOR_CORPUS) > 500
    for body in CBOR_CORPUS:
        check_cbor(body)


@pytest.mark.parametrize("kind", KINDS)
def test_a_page_with_a_record_is_decoded(kind: Kind) -> None:
    """The other tests compare; this one shows that there is something to compare."""
    place = "AAAA" if kind == "page" else "4712"
    row = (b"hello", "key", "4711", 1_700_000_000_123, "KMS")
    assert decode_natively(page_text().encode(), kind) == Decoded([row], place, 0, [])
    expected = Decoded([(*row[:4], None)], place, 0, [])
    assert decode_natively(cbor2.dumps(cbor_page()), kind, cbor=True) == expected
    child = ("shardId-1", ["shardId-0"], 0, 2**128 - 1)
    assert decode_natively(end_text().encode(), kind) == Decoded([], None, None, [child])


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("ApproximateArrivalTimestamp", "true", "ApproximateArrivalTimestamp in seconds"),
        ("ApproximateArrivalTimestamp", "1e16", "ApproximateArrivalTimestamp in seconds"),
        ("EncryptionType", "7", "EncryptionType as text"),
    ],
)
def test_a_value_that_no_column_can_hold_is_malformed(field: str, value: str, problem: str) -> None:
    body = page_text(Records=f'[{{"Data":"","PartitionKey":"","SequenceNumber":"0","{field}":{value}}}]')
    assert decode_natively(body.encode(), "page") == Malformed(f"record 0 of 1 has no {problem}")


@pytest.mark.parametrize("key", ["7", "true", '" 7"', '"1_0"', '"+7"', '"\u0667"', f'"{"0" * 39}7"'])
def test_a_hash_key_of_a_child_is_text_in_digits(key: str) -> None:
    body = end_text(HashKeyRange=f'{{"StartingHashKey":{key},"EndingHashKey":"99"}}').encode()
    expected = Malformed("ChildShards lacks a ShardId, ParentShards or a HashKeyRange")
    assert decode_natively(body, "page") == expected


def test_a_time_in_cbor_is_in_milliseconds_as_integer_and_in_seconds_as_float() -> None:
    """The Java SDK reads integers as milliseconds; the standard of the tag knows seconds only."""
    for value in (1_700_000_000_123, 1_700_000_000.123):
        for time in (value, cbor2.CBORTag(1, value)):
            body = cbor2.dumps(cbor_page(record={"ApproximateArrivalTimestamp": time}))
            decoded = decode_natively(body, "page", cbor=True)
            assert isinstance(decoded, Decoded)
            assert decoded.rows[0][3] == 1_700_000_000_123


@pytest.mark.parametrize("ms", [2**63 - 1, -(2**63), 2**63, -(2**63) - 1, 2**64 - 1, -(2**64)])
def test_a_time_in_cbor_beyond_64_bits_is_malformed(ms: int) -> None:
    body = cbor2.dumps(cbor_page(record={"ApproximateArrivalTimestamp": ms}))
    decoded = decode_natively(body, "page", cbor=True)
    if -(2**63) <= ms < 2**63:
        assert isinstance(decoded, Decoded)
        assert decoded.rows[0][3] == ms
    else:
        assert decoded == Malformed("record 0 of 1 has no ApproximateArrivalTimestamp in seconds")


def test_a_length_in_cbor_allocates_nothing() -> None:
    """A string or list that claims 16 exabytes in a body of a few bytes is no CBOR."""
    for claim in (b"\x5b", b"\x7b", b"\x9b", b"\xbb"):
        body = b"\xa1\x67Records" + claim + b"\xff" * 8
        assert decode_natively(body, "page", cbor=True) == Malformed("it is not CBOR")


@pytest.mark.parametrize("filler", [b"[", b'{"":', b'"', b"1", b",", b" ", b"\\u0041", b"[],"])
def test_ten_megabytes_of_one_token_end_soon(filler: bytes) -> None:
    """No quadratic time and no deep recursion."""
    count = 10_000_000 // len(filler)
    body = page_text(Unknown="").encode()[:-1] + filler * count
    assert decode_natively(body, "page") == Malformed("it is not JSON")


def test_a_body_of_another_type_is_a_type_error() -> None:
    import leasehold_native

    for body in ("{}", None, bytearray(b"{}"), 7):
        with pytest.raises(TypeError):
            leasehold_native.decode_page(body)  # type: ignore[arg-type]


TEXTS = st.text(max_size=6) | st.sampled_from(["4711", "0", "AAAA", "aGVsbG8=", "A===", "9" * 130])
NUMBERS = (
    st.integers(-5, 5) | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
)
SCALARS = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = SCALARS | st.lists(SCALARS, max_size=2) | st.dictionaries(TEXTS, SCALARS, max_size=2)


def object_of(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Mostly complete objects, with a wrong value here and there."""
    usual = st.fixed_dictionaries(fields)
    wrong = st.dictionaries(st.sampled_from([*fields]), VALUES, min_size=1, max_size=1)
    return usual | usual | st.builds(lambda one, other: one | other, usual, wrong)


NUMBER_TEXTS = st.integers(0, 10**56).map(str)
SECONDS = st.floats(0, 1e10) | st.integers(0, 10**10) | st.none()
RECORDS = object_of(
    Data=st.binary(max_size=12).map(lambda data: base64.b64encode(data).decode()),
    PartitionKey=TEXTS,
    SequenceNumber=NUMBER_TEXTS,
    ApproximateArrivalTimestamp=SECONDS,
    EncryptionType=st.sampled_from([None, "NONE", "KMS"]),
)
CHILDREN = object_of(
    ShardId=TEXTS,
    ParentShards=st.lists(TEXTS, max_size=2),
    HashKeyRange=object_of(StartingHashKey=NUMBER_TEXTS, EndingHashKey=NUMBER_TEXTS),
)
PAGES = object_of(
    Records=st.lists(RECORDS, max_size=3),
    NextShardIterator=TEXTS,
    ContinuationSequenceNumber=NUMBER_TEXTS,
    MillisBehindLatest=st.integers(0, 10**9) | st.none(),
) | object_of(Records=st.lists(RECORDS, max_size=2), ChildShards=st.lists(CHILDREN, max_size=2))


@settings(max_examples=150, deadline=None)
@given(PAGES, st.booleans(), st.integers(0))
def test_generated_json(page: Any, indented: bool, seed: int) -> None:
    """Pages with wrong values, and with changed, missing and repeated bytes."""
    body = orjson.dumps(page, option=orjson.OPT_INDENT_2 * indented)
    for each in (body, *mutants(body, seed)):
        check_json(each)


@settings(max_examples=100, deadline=None)
@given(PAGES, st.integers(0))
def test_generated_cbor(page: Any, seed: int) -> None:
    body = cbor2.dumps(page)
    for each in (body, *mutants(body, seed)):
        check_cbor(each)
