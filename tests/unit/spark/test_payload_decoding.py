"""Payloads are decoded to records, or have an error. One payload never fails another."""

import json
import pickle
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leasehold.errors import ConfigError
from leasehold.spark.decoding.avro_payloads import AvroPayloads, Header, header_prefix
from leasehold.spark.decoding.payload_column import PayloadFormat, decode_column, result_type
from leasehold.spark.decoding.protobuf_payloads import ProtobufPayloads
from tests.unit.spark.payloads import DESCRIPTORS, ORDER_AVSC, to_avro, to_protobuf

AVRO, PROTOBUF = AvroPayloads(ORDER_AVSC), ProtobufPayloads(DESCRIPTORS, "shop.Order")
NOON = datetime(2026, 11, 17, 12, 0, 0, 250_000, UTC)
ORDER: dict[str, Any] = {
    "customer": "Ä",
    "amount": 7,
    "at": NOON,
    "state": "PAID",
    "before": None,
    "price": Decimal("12.50"),
    "id": str(UUID(int=1)),
    "tags": {"a": ["x", "y"], "b": []},
    "items": [{"sku": b"ab"}],
}


def decode(format_: PayloadFormat, *payloads: bytes | None) -> list[dict[str, Any]]:
    column = decode_column(pa.array(payloads, pa.binary()), pickle.loads(pickle.dumps(format_)))
    assert column.type == result_type(format_)
    found: list[dict[str, Any]] = column.to_pylist()
    return found


def errors(format_: PayloadFormat, *payloads: bytes | None) -> list[str | None]:
    found = decode(format_, *payloads)
    assert all((each["record"] is None) == (each["decodeError"] is not None) for each in found)
    return [
        each["decodeError"]
        and each["decodeError"].removeprefix(f"the payload is not {format_.name} of the schema: ")
        for each in found
    ]


def test_avro_records_of_all_types() -> None:
    """Enumerations, fixed bytes and logical types without a column type are texts and bytes."""
    (found,) = decode(AVRO, to_avro(ORDER))
    assert found == {"record": ORDER | {"tags": [("a", ["x", "y"]), ("b", [])]}, "decodeError": None}


@pytest.mark.parametrize("scale", [{}, {"scale": 0}], ids=["no scale", "scale 0"])
def test_a_decimal_may_have_no_digits_after_the_point(scale: dict[str, int]) -> None:
    """Avro's scale is zero if a schema has none."""
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 6, **scale}
    schema = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}]})
    (found,) = decode(AvroPayloads(schema), b"\x04\x04\xd2")
    assert found == {"record": {"n": Decimal(1234)}, "decodeError": None}


def test_payloads_that_are_not_avro_of_the_schema() -> None:
    """Cut off, with bytes behind the record, of another schema, empty, or missing."""
    good = to_avro(ORDER)
    assert errors(AVRO, good, good[:-1], good + b"\x00", b"", b"\xff" * 30, None, good) == [
        None,
        "EOFError",
        "TrailingBytesError",
        *(error for error in errors(AVRO, b"", b"\xff" * 30, None)),
        None,
    ]
    assert None not in errors(AVRO, b"", b"\xff" * 30, None)


def test_a_value_that_its_column_cannot_hold_fails_only_its_record() -> None:
    """A number of 64 bits in a field of 32: a decoder may accept it."""
    as_long, as_int = (
        json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}]})
        for kind in ("long", "int")
    )
    found = errors(AvroPayloads(as_int), *(to_avro({"n": n}, as_long) for n in (1, 2**40, -5)))
    assert [each is None for each in found] == [True, False, True]


@pytest.mark.parametrize(
    ("header", "schema_id", "other"),
    [(Header.CONFLUENT, 7, 8), (Header.GLUE, str(UUID(int=7)), str(UUID(int=8)))],
)
def test_records_with_the_header_of_a_registry(header: Header, schema_id: object, other: object) -> None:
    """A payload of another schema, and one without the header, has an error: it must not be decoded wrongly."""
    format_ = AvroPayloads(ORDER_AVSC, header_prefix(header, schema_id))
    good, foreign = (header_prefix(header, each) + to_avro(ORDER) for each in (schema_id, other))
    assert errors(format_, good, foreign, to_avro(ORDER), b"") == [None, *["UnexpectedHeaderError"] * 3]


@pytest.mark.parametrize(
    ("schema", "sentence"),
    [
        ("{", "not an Avro schema"),
        ('"string"', "must be a record"),
        ('{"type":"record","name":"R","fields":[]}', "has no fields"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":["int","string"]}]}', "union of several"),
        ('{"type":"record","name":"R","fields":[{"name":"a","type":["null","R"]}]}', "contains itself"),
        (
            '{"type":"record","name":"R","fields":[{"name":"a","type":{"type":"array","items":"null"}}]}',
            "may be endless",
        ),
    ],
)
def test_avro_schemas_without_a_column_type_are_refused(schema: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        AvroPayloads(schema).record_type()


def test_protobuf_messages_of_all_types() -> None:
    """A field that is not there is null if the message shows this, and otherwise has its default."""
    payload = to_protobuf(
        customer="Ä",
        total=2**64 - 1,
        at={"seconds": int(NOON.timestamp()), "nanos": 250_000_999},
        state=1,
        items=[{"sku": b"ab"}],
        tags={"a": 2**32 - 1},
    )
    full, empty, unknown = decode(PROTOBUF, payload, b"", to_protobuf(state=9, note="", first={}))
    assert full["record"] == {
        "customer": "Ä",
        "amount": 0,
        "total": Decimal(2**64 - 1),
        "note": None,
        "at": NOON,
        "state": "PAID",
        "items": [{"sku": b"ab"}],
        "tags": [("a", 2**32 - 1)],
        "first": None,
    }
    assert (empty["record"]["customer"], empty["record"]["at"]) == ("", None)
    assert (unknown["record"]["state"], unknown["record"]["note"], unknown["record"]["first"]) == (
        "9",
        "",
        {"sku": b""},
    )


def test_payloads_that_are_not_protobuf_of_the_message() -> None:
    """Also a time that no column can hold."""
    good = to_protobuf(customer="a")
    late = to_protobuf(at={"seconds": 10**15})
    found = errors(PROTOBUF, good, good[:-1], b"\xff" * 20, late, None, good)
    assert found == [None, "DecodeError", "DecodeError", "OverflowError", "TypeError", None]


@pytest.mark.parametrize(
    ("descriptors", "message", "sentence"),
    [
        (b"\xff", "shop.Order", "--include_imports"),
        (DESCRIPTORS, "Order", "is not in the descriptor set"),
        (DESCRIPTORS, "shop.Node", "contains itself"),
        (DESCRIPTORS, "shop.Nothing", "has no fields"),
    ],
)
def test_messages_without_a_column_type_are_refused(descriptors: bytes, message: str, sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        ProtobufPayloads(descriptors, message).record_type()


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_a_record_or_an_error(payload: bytes) -> None:
    """Hostile payloads raise nothing, and no error quotes them."""
    for format_, good in ((AVRO, to_avro(ORDER)), (PROTOBUF, to_protobuf(customer="a"))):
        found = errors(format_, good, payload, good + payload, good[: len(payload)] + payload)
        assert found[0] is None
        assert all(each is None or each.isidentifier() for each in found)
