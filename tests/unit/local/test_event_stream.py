"""Frames of an event stream, decoded with botocore."""

from botocore.eventstream import EventStreamBuffer
from hypothesis import given
from hypothesis import strategies as st

from leasehold.local import event_stream

TEXTS = st.text(min_size=1, max_size=100)


@given(st.lists(st.binary(max_size=2000), max_size=5), TEXTS, st.integers(1, 50))
def test_botocore_decodes_our_frames(payloads: list[bytes], event_type: str, piece: int) -> None:
    """Type, content type and payload arrive, in whatever pieces the bytes come. The checksums are valid."""
    frames = b"".join(event_stream.event(event_type, "application/json", payload) for payload in payloads)
    buffer = EventStreamBuffer()
    for start in range(0, len(frames), piece):
        buffer.add_data(frames[start : start + piece])
    messages = list(buffer)
    assert [message.payload for message in messages] == payloads
    for message in messages:
        assert message.headers == {
            ":event-type": event_type,
            ":content-type": "application/json",
            ":message-type": "event",
        }


def test_botocore_decodes_an_exception_frame() -> None:
    """A client finds the message type and the exception type."""
    buffer = EventStreamBuffer()
    buffer.add_data(
        event_stream.exception("ResourceInUseException", "application/json", b'{"message":"taken"}')
    )
    (message,) = buffer
    response = message.to_response_dict()
    assert (response["status_code"], response["headers"][":exception-type"]) == (
        400,
        "ResourceInUseException",
    )
