"""Requests checked against the service's model."""

from typing import Any

import pytest

from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError
from leasehold.local.encodings import CBOR, JSON, MalformedBodyError
from leasehold.local.operations import OPERATIONS
from leasehold.local.request_validation import RequestValidator

INPUTS = RequestValidator()


def test_every_operation_we_serve_is_one_of_the_service() -> None:
    """No operation is misspelled."""
    for operation in [*OPERATIONS, "SubscribeToShard"]:
        with pytest.raises((KinesisApiError, MalformedBodyError)):
            INPUTS.checked(operation, [], JSON)


def test_a_request_comes_out_with_bytes_and_milliseconds() -> None:
    """In either encoding, and without members that the model does not know or that are null."""
    request: dict[str, Any] = {"StreamName": "s", "PartitionKey": "k", "Unknown": 1, "ExplicitHashKey": None}
    expected = {"StreamName": "s", "PartitionKey": "k", "Data": b"hello"}
    assert INPUTS.checked("PutRecord", request | {"Data": "aGVsbG8="}, JSON) == expected
    assert INPUTS.checked("PutRecord", request | {"Data": b"hello"}, CBOR) == expected
    ask = {"ShardId": "shardId-0", "ShardIteratorType": "AT_TIMESTAMP"}
    assert INPUTS.checked("GetShardIterator", ask | {"Timestamp": 1.5}, JSON)["Timestamp"] == 1500
    assert INPUTS.checked("GetShardIterator", ask | {"Timestamp": 1500}, CBOR)["Timestamp"] == 1500


@pytest.mark.parametrize(
    ("operation", "request_", "message"),
    [
        ("GetRecords", {}, "Value null at 'shardIterator'.*must not be null"),
        (
            "GetRecords",
            {"ShardIterator": "x", "Limit": 0},
            "Value '0' at 'limit'.*greater than or equal to 1",
        ),
        ("GetRecords", {"ShardIterator": "x", "Limit": 10_001}, "'10001'.*less than or equal to 10000"),
        ("GetRecords", {"ShardIterator": "x" * 513}, "length less than or equal to 512"),
        ("CreateStream", {"StreamName": "a b", "ShardCount": 1}, "regular expression pattern"),
        ("CreateStream", {"StreamName": "a", "ShardCount": 0}, "'shardCount'"),
        (
            "GetShardIterator",
            {"ShardId": "s", "ShardIteratorType": "SOMEWHERE"},
            "enum value set.*TRIM_HORIZON",
        ),
        ("SplitShard", {"ShardToSplit": "s", "NewStartingHashKey": "-1"}, "newStartingHashKey"),
        ("ListShards", {"StreamName": "s", "ShardFilter": {}}, "at 'shardFilter.Type'"),
        ("PutRecord", {"Data": "", "PartitionKey": "k", "DryRun": True}, "DryRun is not served"),
    ],
)
def test_what_the_model_forbids_is_refused_in_the_services_words(
    operation: str, request_: dict[str, Any], message: str
) -> None:
    """Member, value and constraint are named."""
    with pytest.raises(KinesisApiError, match=message) as error:
        INPUTS.checked(operation, request_, JSON)
    assert error.value.error_type == ErrorType.VALIDATION


@pytest.mark.parametrize(
    "body",
    [None, [], "text", {"ShardIterator": 5}, {"ShardIterator": "x", "Limit": True}, {"ShardIterator": ["x"]}],
)
def test_a_member_of_the_wrong_type_is_malformed(body: object) -> None:
    """True is no number, a list no text."""
    with pytest.raises(MalformedBodyError):
        INPUTS.checked("GetRecords", body, JSON)


def test_a_long_value_is_not_repeated_in_full() -> None:
    """A message never carries a whole payload back."""
    with pytest.raises(KinesisApiError) as error:
        INPUTS.checked("CreateStream", {"StreamName": "n" * 100_000, "ShardCount": 1}, JSON)
    assert len(error.value.message) < 500
