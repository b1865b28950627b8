"""JSON and CBOR."""

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.local.encodings import CBOR, JSON, Encoding, MalformedBodyError, encoding_for

WIRES = pytest.mark.parametrize("wire", [JSON, CBOR], ids=["json", "cbor"])


@WIRES
@given(data=st.binary(), time_ms=st.integers(0, 2**42))
def test_blobs_and_times_survive_the_wire(wire: Encoding, data: bytes, time_ms: int) -> None:
    """Bytes come back byte for byte, times to the millisecond."""
    body = wire.encode({"Data": wire.blob(data), "Time": wire.time(time_ms)})
    decoded = wire.decode(body)
    assert wire.decode_blob(decoded["Data"]) == data
    assert wire.decode_time(decoded["Time"]) == time_ms


def test_json_times_are_seconds_with_milliseconds_behind_the_point() -> None:
    """As the service writes them."""
    assert JSON.encode(JSON.time(1_700_000_000_123)) == b"1700000000.123"


def test_cbor_times_are_tagged_milliseconds_and_blobs_are_byte_strings() -> None:
    """As the Java SDK expects them: tag 1, but not in seconds."""
    assert CBOR.encode([CBOR.time(1_700_000_000_123), CBOR.blob(b"\x00")]) == bytes.fromhex(
        "82c11b0000018bcfe5687b4100"
    )


@WIRES
@given(body=st.binary())
def test_a_body_that_is_not_what_it_claims_is_told_so(wire: Encoding, body: bytes) -> None:
    """Any bytes decode to something or are refused; nothing else happens."""
    try:
        wire.decode(body)
    except MalformedBodyError:
        return


@pytest.mark.parametrize("blob", ["not base64!", "YQ", "YQ==\n", 5, None])
def test_json_blobs_are_strict_base64(blob: object) -> None:
    """Text that only looks like base64 is refused, not guessed at."""
    with pytest.raises(MalformedBodyError):
        JSON.decode_blob(blob)


@pytest.mark.parametrize("time", [True, "1700000000", 1e300, float("nan"), float("inf"), None, 2**70])
def test_a_time_is_a_number_that_could_be_one(time: object) -> None:
    """Other types, and numbers beyond all times, are refused in both encodings."""
    for wire in (JSON, CBOR):
        with pytest.raises(MalformedBodyError):
            wire.decode_time(time)


@pytest.mark.parametrize("depth", [17, 100_000])
def test_deeply_nested_cbor_is_refused(depth: int) -> None:
    """A bomb of nested lists costs nothing."""
    with pytest.raises(MalformedBodyError):
        CBOR.decode(b"\x81" * depth + b"\x00")


def test_a_content_type_names_its_encoding() -> None:
    """Parameters and case do not matter; others are unknown."""
    assert encoding_for("application/x-amz-cbor-1.1") is CBOR
    assert encoding_for("Application/X-Amz-Json-1.1; charset=utf-8") is JSON
    assert encoding_for("text/html") is None


def test_enumerations_are_plain_text_in_both_encodings() -> None:
    """A status or mode arrives as the text it stands for."""
    from leasehold.kinesis_model.stream import StreamMode

    assert JSON.decode(JSON.encode({"m": StreamMode.ON_DEMAND})) == {"m": "ON_DEMAND"}
    assert cbor2.loads(CBOR.encode({"m": StreamMode.ON_DEMAND})) == {"m": "ON_DEMAND"}
