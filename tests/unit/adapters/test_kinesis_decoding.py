"""Valid and invalid GetRecords responses: the result is what botocore would return, or an error that names the
problem.
"""

import base64
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from leasehold.adapters.aws.kinesis_decoding import event_from_payload, page_from_body
from leasehold.core.model import ChildShard, HashRange, ShardId
from leasehold.core.record import Record
from leasehold.errors import UnavailableError
from leasehold.ports import Page, SubscriptionEvent
from tests.unit.adapters.canned_kinesis import CannedKinesis

NUMBER = "49590338271490256608559692538361571095921575989136588898"
RECORD = {
    "SequenceNumber": NUMBER,
    "ApproximateArrivalTimestamp": 1700000000.123,
    "Data": "aGVsbG8=",
    "PartitionKey": "k",
}
CHILD = {
    "ShardId": "shardId-000000000001",
    "ParentShards": ["shardId-000000000000"],
    "HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "340282366920938463463374607431768211455"},
}
WITHOUT = object()


def body(**members: Any) -> bytes:
    """A valid response, with some fields replaced or removed."""
    whole = {"Records": [RECORD], "NextShardIterator": "AAAA", "MillisBehindLatest": 5} | members
    return json.dumps({name: value for name, value in whole.items() if value is not WITHOUT}).encode()


def record(**members: Any) -> dict[str, Any]:
    return {name: value for name, value in (RECORD | members).items() if value is not WITHOUT}


def test_a_page_with_records_is_decoded() -> None:
    """Data as bytes, the sequence number as text, the arrival time in whole milliseconds."""
    response = body(Records=[RECORD, record(EncryptionType="KMS", Data="", ApproximateArrivalTimestamp=17)])
    assert page_from_body(response) == Page(
        [
            Record(b"hello", "k", NUMBER, 1_700_000_000_123, None),
            Record(b"", "k", NUMBER, 17_000, "KMS"),
        ],
        "AAAA",
        5,
    )


def event(**members: Any) -> bytes:
    """A valid event, with some fields replaced or removed."""
    return body(NextShardIterator=WITHOUT, **{"ContinuationSequenceNumber": NUMBER} | members)


def test_an_event_is_decoded_as_a_page_is() -> None:
    """It continues at a number instead of an iterator."""
    assert event_from_payload(event()) == SubscriptionEvent(
        [Record(b"hello", "k", NUMBER, 1_700_000_000_123, None)], NUMBER, 5
    )
    last = event_from_payload(event(Records=[], ContinuationSequenceNumber=None, ChildShards=[CHILD]))
    assert (last.continuation, [child.id for child in last.children]) == (None, ["shardId-000000000001"])


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b"\xff", "not JSON"),
        (event(ContinuationSequenceNumber=WITHOUT), "neither a ContinuationSequenceNumber nor ChildShards"),
        (event(ChildShards=[CHILD]), "both a ContinuationSequenceNumber and ChildShards"),
        (event(ContinuationSequenceNumber="LATEST"), "ContinuationSequenceNumber is not a sequence number"),
        (event(ContinuationSequenceNumber=5), "ContinuationSequenceNumber is not text"),
        (event(Records=None), "list of Records"),
        (event(MillisBehindLatest=-1), "MillisBehindLatest"),
    ],
)
def test_a_malformed_event_is_an_error_that_names_the_field(payload: bytes, problem: str) -> None:
    """The subscription is renewed where it was."""
    with pytest.raises(UnavailableError, match=problem):
        event_from_payload(payload)


def test_the_end_of_a_shard_names_its_children() -> None:
    """There is no iterator, and the children are listed."""
    response = body(Records=[], NextShardIterator=WITHOUT, ChildShards=[CHILD])
    child = ChildShard(
        ShardId("shardId-000000000001"), (ShardId("shardId-000000000000"),), HashRange(0, 2**128 - 1)
    )
    assert page_from_body(response) == Page([], None, 5, (child,))


def test_unknown_fields_are_ignored() -> None:
    """A later version of the service may add some, to the response and to its records."""
    response = body(Unknown={"a": [1]}, Records=[record(Unknown="x")])
    assert page_from_body(response) == page_from_body(body())


def test_a_null_field_counts_as_absent() -> None:
    """kinesis-local writes null for absent fields."""
    response = body(
        Records=[record(EncryptionType=None, ApproximateArrivalTimestamp=None)],
        ChildShards=None,
        MillisBehindLatest=None,
    )
    assert page_from_body(response) == Page([Record(b"hello", "k", NUMBER, None, None)], "AAAA", None)
    assert page_from_body(body(Records=[], NextShardIterator=None, ChildShards=[CHILD])).next_iterator is None


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        (b"", "not JSON"),
        (b'{"Records": [', "not JSON"),
        (b"\xff\xfe", "not JSON"),
        (b'{"Records": [], "MillisBehindLatest": NaN}', "not JSON"),
        (b"[]", "not an object"),
        (b"null", "not an object"),
        (b"{}", "neither a NextShardIterator nor ChildShards"),
        (body(NextShardIterator=None), "neither a NextShardIterator nor ChildShards"),
        (body(NextShardIterator=None, ChildShards=[]), "neither a NextShardIterator nor ChildShards"),
        (body(ChildShards=[CHILD]), "both a NextShardIterator and ChildShards"),
        (body(NextShardIterator=""), "NextShardIterator is not text"),
        (body(NextShardIterator=7), "NextShardIterator is not text"),
        (body(NextShardIterator=["AAAA"]), "NextShardIterator is not text"),
        (body(MillisBehindLatest="5"), "MillisBehindLatest"),
        (body(MillisBehindLatest=-1), "MillisBehindLatest"),
        (body(MillisBehindLatest=True), "MillisBehindLatest"),
        (body(MillisBehindLatest=1.5), "MillisBehindLatest"),
        (body(Records=WITHOUT), "no list of Records"),
        (body(Records=None), "no list of Records"),
        (body(Records={"0": RECORD}), "no list of Records"),
        (body(Records=[RECORD, None]), "record 1 of 2 has no fields"),
        (body(Records=["x"]), "record 0 of 1 has no fields"),
        (body(Records=[[]]), "record 0 of 1 has no fields"),
        (body(Records=[RECORD, record(Data=WITHOUT)]), "record 1 of 2 has no Data"),
        (body(Records=[record(Data=None)]), "has no Data"),
        (body(Records=[record(Data=5)]), "has no Data"),
        (body(Records=[record(Data="aGVsbG8")]), "has no Data"),
        (body(Records=[record(Data="aGVs bG8=")]), "has no Data"),
        (body(Records=[record(Data="aGVsbG8=\u00e9")]), "has no Data"),
        (body(Records=[record(PartitionKey=WITHOUT)]), "has no PartitionKey"),
        (body(Records=[record(PartitionKey=None)]), "has no PartitionKey"),
        (body(Records=[record(PartitionKey=1)]), "has no PartitionKey"),
        (body(Records=[record(SequenceNumber=WITHOUT)]), "has no SequenceNumber"),
        (body(Records=[RECORD, record(SequenceNumber="")]), "record 1 of 2 has no SequenceNumber"),
        (body(Records=[record(SequenceNumber=5)]), "has no SequenceNumber"),
        (body(Records=[record(SequenceNumber="12x")]), "has no SequenceNumber"),
        (body(Records=[record(SequenceNumber="-12")]), "has no SequenceNumber"),
        (
            body(Records=[RECORD, record(ApproximateArrivalTimestamp=True)]),
            "record 1 of 2 has no ApproximateArr",
        ),
        (body(Records=[record(ApproximateArrivalTimestamp=1e300)]), "has no ApproximateArrivalTimestamp"),
        (body(Records=[record(ApproximateArrivalTimestamp=10**400)]), "not JSON"),
        (body(Records=[RECORD, record(EncryptionType=5)]), "record 1 of 2 has no EncryptionType as text"),
        (body(MillisBehindLatest=2**63), "MillisBehindLatest"),
        (body(Unknown="?").replace(b"?", b"\xff"), "not JSON"),
        (body(Unknown="?").replace(b'"?"', b"1e400"), "not JSON"),
        (body(Records=[record(Data="QUJD" * 1_000 + "!")]), "has no Data"),
        (body(Records=[record(SequenceNumber="\u0661\u0662")]), "has no SequenceNumber"),
        (body(Records=[record(SequenceNumber="\u00b2")]), "has no SequenceNumber"),
        (body(Records=[record(SequenceNumber="1" * 130)]), "has no SequenceNumber"),
        (body(Records=[record(ApproximateArrivalTimestamp="x" * 9)]), "has no ApproximateArrivalTimestamp"),
        (body(Records=[record(ApproximateArrivalTimestamp=[1])]), "has no ApproximateArrivalTimestamp"),
        (body(Records=[record(ApproximateArrivalTimestamp=1e307)]), "has no ApproximateArrivalTimestamp"),
    ],
)
def test_a_malformed_response_is_an_error_that_names_the_field(response: bytes, problem: str) -> None:
    """It is an error of the server, so the iterator is used again. The message never quotes the response."""
    with pytest.raises(UnavailableError, match=problem) as caught:
        page_from_body(response)
    assert "aGVs" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "child",
    [
        {},
        None,
        CHILD | {"ShardId": None},
        CHILD | {"ShardId": ""},
        CHILD | {"ParentShards": []},
        CHILD | {"ParentShards": None},
        CHILD | {"ParentShards": [None]},
        CHILD | {"ParentShards": "shardId-000000000000"},
        CHILD | {"HashKeyRange": None},
        CHILD | {"HashKeyRange": {"StartingHashKey": "5", "EndingHashKey": "4"}},
        CHILD | {"HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": str(2**128)}},
        CHILD | {"HashKeyRange": {"StartingHashKey": "0", "EndingHashKey": "9" * 5000}},
    ],
)
def test_a_child_must_be_complete(child: Any) -> None:
    """A child without parents or hash keys cannot get a lease, so the request is repeated."""
    with pytest.raises(UnavailableError, match="ChildShards"):
        page_from_body(body(NextShardIterator=None, ChildShards=[CHILD, child]))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
record_names = [*RECORD, "EncryptionType"]
odd_records = st.lists(
    st.dictionaries(st.sampled_from(record_names), json_values).map(lambda odd: RECORD | odd) | json_values,
    max_size=3,
)
names = ["Records", "NextShardIterator", "MillisBehindLatest", "ChildShards"]


@given(
    odd=st.dictionaries(st.sampled_from(names), json_values | st.just([CHILD])),
    records=odd_records | st.just([RECORD]),
)
def test_any_response_is_a_page_or_an_unavailable_error(odd: dict[str, Any], records: Any) -> None:
    """No response raises any other exception."""
    try:
        page = page_from_body(body(**{"Records": records} | odd))
    except UnavailableError:
        return
    assert (page.next_iterator is None) == bool(page.children)
    for each in page.records:
        assert each.as_user_record().position.is_record
        assert isinstance(each.data, bytes)
        assert isinstance(each.partition_key, str)


@given(
    st.lists(
        st.builds(
            lambda data, key, number, arrival_ms: {
                "SequenceNumber": str(number),
                "ApproximateArrivalTimestamp": arrival_ms / 1000,
                "Data": base64.b64encode(data).decode(),
                "PartitionKey": key,
            },
            data=st.binary(max_size=50),
            key=st.text(min_size=1, max_size=10),
            number=st.integers(0, 10**56),
            arrival_ms=st.integers(0, 4_102_444_800_000),
        ),
        max_size=5,
    )
)
def test_records_equal_those_of_botocore(records: list[dict[str, Any]]) -> None:
    """The fast path agrees with botocore's own parser, field by field."""
    response = body(Records=records)
    theirs = CannedKinesis((200, response)).client.get_records(ShardIterator="AAAA")
    ours = page_from_body(response)
    assert [
        (
            each["Data"],
            each["PartitionKey"],
            each["SequenceNumber"],
            math.floor(each["ApproximateArrivalTimestamp"].timestamp() * 1000 + 0.5),
        )
        for each in theirs["Records"]
    ] == [tuple(each)[:4] for each in ours.records]
