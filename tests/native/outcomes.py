"""What each of the two decoders makes of the same bytes, in a form that can be compared."""

from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from leasehold.adapters.aws.kinesis_decoding import event_from_payload, page_from_body
from leasehold.core.model import HashRange
from leasehold.core.record import Record, UserRecord
from leasehold.core.records.deaggregation import (
    DEFAULT_DEAGGREGATION,
    DeaggregationSettings,
    Unreadable,
    deaggregate_all,
)
from leasehold.errors import MalformedAggregateError, UnavailableError
from leasehold.ports import Page, SubscriptionEvent

Kind = Literal["page", "event"]

RAW = pa.schema(
    [
        pa.field("data", pa.binary(), nullable=False),
        pa.field("partition_key", pa.string(), nullable=False),
        pa.field("sequence_number", pa.string(), nullable=False),
        pa.field("arrival_ms", pa.int64()),
        pa.field("encryption_type", pa.string()),
    ]
)
USER = pa.schema(
    [
        *RAW,
        pa.field("sub_sequence_number", pa.int64(), nullable=False),
        pa.field("explicit_hash_key", pa.string()),
        pa.field("aggregated", pa.bool_(), nullable=False),
    ]
)


class Decoded(NamedTuple):
    """The content of a body."""

    rows: list[tuple[Any, ...]]
    next: str | None
    millis_behind: int | None
    children: list[tuple[str, list[str], int, int]]


class Malformed(NamedTuple):
    """The text of the error."""

    problem: str


class Split(NamedTuple):
    """The user records of a batch, and its incidents."""

    rows: list[tuple[Any, ...]]
    incidents: list[tuple[str, str, int]]


class Unsplit(NamedTuple):
    """The sequence number and the problem of an aggregate that must not be skipped."""

    sequence_number: str
    problem: str


def decode_in_python(body: bytes, kind: Kind) -> Decoded | Malformed:
    found: Page | SubscriptionEvent
    try:
        found = page_from_body(body) if kind == "page" else event_from_payload(body)
    except UnavailableError as error:
        return Malformed(str(error).partition("malformed: ")[2].partition(";")[0])
    children = [
        (str(each.id), [*map(str, each.parents)], each.hash_range.start, each.hash_range.end)
        for each in found.children
    ]
    place = found.next_iterator if isinstance(found, Page) else found.continuation
    return Decoded([tuple(each) for each in found.records], place, found.millis_behind, children)


def decode_natively(body: bytes, kind: Kind, *, cbor: bool = False) -> Decoded | Malformed:
    import leasehold_native

    decode = leasehold_native.decode_page if kind == "page" else leasehold_native.decode_event
    try:
        page = decode(body, cbor)
    except leasehold_native.MalformedError as error:
        return Malformed(str(error))
    rows = rows_of(page.records, RAW)
    assert list(zip(*page.to_columns(), strict=True)) == rows
    return Decoded(rows, page.next, page.millis_behind, page.children)


def rows_of(batch: Any, schema: pa.Schema) -> list[tuple[Any, ...]]:
    """The rows of a native batch, after Arrow has checked all of its buffers."""
    table = pa.record_batch(batch)
    table.validate(full=True)
    assert table.schema.equals(schema, check_metadata=True)
    assert len(batch) == table.num_rows
    return [tuple(row.values()) for row in table.to_pylist()]


def raw_batch(records: Iterable[Record]) -> pa.RecordBatch:
    columns = list(zip(*records, strict=True)) or [()] * len(RAW)
    return pa.record_batch(
        [pa.array(column, field.type) for column, field in zip(columns, RAW, strict=True)], schema=RAW
    )


def as_row(record: UserRecord) -> tuple[Any, ...]:
    """With the explicit hash key as text, because no column holds 128 bits."""
    key = record.explicit_hash_key
    return tuple(record._replace(explicit_hash_key=None if key is None else str(key)))  # type: ignore[arg-type]


def split_in_python(
    records: Sequence[Record],
    shard: HashRange | None = None,
    settings: DeaggregationSettings = DEFAULT_DEAGGREGATION,
) -> Split | Unsplit:
    try:
        result = deaggregate_all(records, shard, settings)
    except MalformedAggregateError as error:
        return Unsplit(error.sequence_number, error.problem)
    incidents = [(each.sequence_number, each.outcome.value, each.dropped) for each in result.incidents]
    return Split([as_row(each) for each in result.records], incidents)


def split_natively(
    records: Sequence[Record],
    shard: HashRange | None = None,
    settings: DeaggregationSettings = DEFAULT_DEAGGREGATION,
) -> Split | Unsplit:
    """Also checks that the rows as records are the records that Python makes."""
    import leasehold_native

    try:
        batch, incidents = leasehold_native.deaggregate(
            raw_batch(records),
            None if shard is None else shard.start,
            None if shard is None else shard.end,
            out_of_range=settings.out_of_range.value,
            fail_unreadable=settings.unreadable is Unreadable.FAIL,
            user_records_max=settings.user_records_max,
            expanded_bytes_max=settings.expanded_bytes_max,
        )
    except leasehold_native.UnreadableAggregateError as error:
        return Unsplit(*error.args)
    rows = rows_of(batch, USER)
    made = leasehold_native.to_records(batch, UserRecord)
    assert {type(each) for each in made} <= {UserRecord}
    assert [as_row(each) for each in made] == rows
    return Split(rows, incidents)
