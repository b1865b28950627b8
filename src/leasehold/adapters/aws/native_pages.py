"""Pages and events from the native decoder, and pages in CBOR, which only it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from leasehold.adapters.native_decoder import NativeDecoder, native_decoder
from leasehold.core.model import ChildShard, HashRange, ShardId
from leasehold.core.record import Record
from leasehold.core.records.record_columns import RecordColumns
from leasehold.errors import UnavailableError
from leasehold.ports import Page

LIKELY_CAUSE: Final = "If this does not end, the endpoint is not Kinesis, or a proxy changes its responses"
# The records of a smaller body are lists, because every call of Arrow takes some microseconds.
ARROW_BYTES_MIN: Final = 8 * 1024


def page_from_cbor(body: bytes) -> Page:
    """The page in the body of a response with status 200, in CBOR. Needs the native decoder."""
    native = native_decoder()
    assert native is not None, "CBOR is requested only with the native decoder"
    try:
        return Page(*decode_natively(native, partial(native.decode_page, cbor=True), body))
    except ValueError as error:  # names the field, and never its content
        raise UnavailableError(
            f"GetRecords: the response is malformed: {error}; the request will be retried with the same iterator. "
            f"{LIKELY_CAUSE}"
        ) from None


def decode_natively(
    native: NativeDecoder, decode: Callable[[bytes], Any], body: bytes
) -> tuple[Sequence[Record], str | None, int | None, tuple[ChildShard, ...]]:
    """The fields of a `Page` or a `SubscriptionEvent`. Its errors are ours: `MalformedError` is a ValueError."""
    page = decode(body)
    children = tuple(
        ChildShard(ShardId(shard), tuple(map(ShardId, parents)), HashRange(start, end))
        for shard, parents, start, end in page.children
    )
    is_large = len(body) >= ARROW_BYTES_MIN
    records = native.to_sequence(page) if is_large else RecordColumns(page.to_columns())
    return records, page.next, page.millis_behind, children
