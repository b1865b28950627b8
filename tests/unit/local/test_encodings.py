"""The JSON and CBOR encodings."""

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.local.encodings import CBOR, JSON, Encoding, MalformedBodyError, encoding_for

ENCODINGS = pytest.mark.parametrize("encoding", [JSON, CBOR], ids=["json", "cbor"])


@ENCODINGS
@given(data=st.binary(), time_ms=st.integers(0, 2**42))
def test_blobs_and_times_are_encoded_and_decoded(encoding: Encoding, data: bytes, time_ms: int) -> None:
    """Bytes are equal byte for byte, times to the millisecond."""
    body = encoding.encode({"Data": encoding.encode_blob(data), "Time": encoding.encode_time(time_ms)})
    decoded = encoding.decode(body)
    assert encoding.decode_blob(decoded["Data"]) == data
    assert encoding.decode_time(decoded["Time"]) == time_ms


def test_json_times_are_seconds_with_three_decimals() -> None:
    """The service writes them in the same way."""
    assert JSON.encode(JSON.encode_time(1_700_000_000_123)) == b"1700000000.123"


def test_cbor_times_are_tagged_milliseconds_and_blobs_are_byte_strings() -> None:
    """The Java SDK expects tag 1 with milliseconds."""
    assert CBOR.encode([CBOR.encode_time(1_700_000_000_123), CBOR.encode_blob(b"\x00")]) == bytes.fromhex(
        "82c11b0000018bcfe5687b4100"
    )


@ENCODINGS
@given(body=st.binary())
def test_any_bytes_are_decoded_or_refused(encoding: Encoding, body: bytes) -> None:
    """No other error occurs."""
    try:
        encoding.decode(body)
    except MalformedBodyError:
        return


@pytest.mark.parametrize("blob", ["not base64!", "YQ", "YQ==\n", 5, None])
def test_json_blobs_are_strict_base64(blob: object) -> None:
    """Text that is almost base64 is refused."""
    with pytest.raises(MalformedBodyError):
        JSON.decode_blob(blob)


@pytest.mark.parametrize("time", [True, "1700000000", 1e300, float("nan"), float("inf"), None, 2**70])
def test_a_value_that_is_no_time_is_refused(time: object) -> None:
    """Other types, and numbers outside the range of times, are refused in both encodings."""
    for encoding in (JSON, CBOR):
        with pytest.raises(MalformedBodyError):
            encoding.decode_time(time)


@pytest.mark.parametrize("depth", [17, 100_000])
def test_deeply_nested_cbor_is_refused(depth: int) -> None:
    """Deep nesting does not exhaust the stack."""
    with pytest.raises(MalformedBodyError):
        CBOR.decode(b"\x81" * depth + b"\x00")


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        (CBOR, b"\x9a\x00\x98\x96\x80" + b"\x80" * 10_000_000),
        (CBOR, b"\x9f" + b"\xa0" * 10_000_000 + b"\xff"),
        (CBOR, b"\x9f" + b"\x5f\xff" * 5_000_000 + b"\xff"),
        (JSON, b"[" + b"[]," * 3_000_000 + b"[]]"),
        (JSON, b"[" + b"{}," * 3_000_000 + b"{}]"),
        (JSON, b"[" + b"[[]]," * 3_000_000 + b"0]"),
    ],
    ids=["cbor arrays", "cbor maps", "cbor strings", "json arrays", "json objects", "json nested"],
)
def test_many_tiny_values_are_refused_before_they_are_decoded(encoding: Encoding, body: bytes) -> None:
    """Decoded, they would stop the server for a minute and fill the memory."""
    with pytest.raises(MalformedBodyError, match="more values than any request"):
        encoding.decode(body)


@ENCODINGS
def test_the_largest_request_is_decoded(encoding: Encoding) -> None:
    """500 records with keys that consist of separators, and an explicit hash key each."""
    record = {
        "Data": encoding.encode_blob(b"x" * 9_000),
        "PartitionKey": "," * 256,
        "ExplicitHashKey": "1" * 39,
    }
    request = {"StreamName": "orders", "Records": [record] * 500}
    assert encoding.decode(encoding.encode(request)) == request


@pytest.mark.parametrize("tag", [0, 2, 4, 5, 28, 29, 30, 35, 36, 258, 55799])
def test_cbor_tags_other_than_times_are_refused(tag: int) -> None:
    """The decoder would compile regular expressions, parse messages, and build numbers of any size."""
    for value in ("(a+)+$", [2**31, 3], b"\xff" * 100):
        with pytest.raises(MalformedBodyError, match=f"CBOR tag {tag}"):
            CBOR.decode(cbor2.dumps({"StreamName": cbor2.CBORTag(tag, value)}))


@given(
    value=st.recursive(
        st.integers(-(2**63), 2**63) | st.text() | st.binary() | st.floats(), st.lists, max_leaves=30
    )
)
def test_cbor_items_are_recognized_at_any_length(value: object) -> None:
    """The check before decoding follows the lengths of all kinds of items, with and without known lengths."""
    for indefinite in (False, True):
        body = cbor2.dumps([value, cbor2.CBORTag(1, 5)], indefinite_containers=indefinite)
        assert repr(CBOR.decode(body)) == repr([value, 5])
        with pytest.raises(MalformedBodyError, match="CBOR tag 2"):
            CBOR.decode(cbor2.dumps([value, cbor2.CBORTag(2, b"1")], indefinite_containers=indefinite))


def test_the_content_type_selects_the_encoding() -> None:
    """Parameters and case do not matter. Other types are unknown."""
    assert encoding_for("application/x-amz-cbor-1.1") is CBOR
    assert encoding_for("Application/X-Amz-Json-1.1; charset=utf-8") is JSON
    assert encoding_for("text/html") is None


def test_enumerations_are_plain_text_in_both_encodings() -> None:
    """A status or mode is encoded as its text."""
    from leasehold.kinesis_model.stream import StreamMode

    assert JSON.decode(JSON.encode({"m": StreamMode.ON_DEMAND})) == {"m": "ON_DEMAND"}
    assert cbor2.loads(CBOR.encode({"m": StreamMode.ON_DEMAND})) == {"m": "ON_DEMAND"}
