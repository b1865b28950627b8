"""Validation of requests against botocore's model of the service."""

from typing import Any

import pytest

from leasehold.kinesis_model.api_errors import ErrorType, KinesisApiError
from leasehold.local.encodings import CBOR, JSON, MalformedBodyError
from leasehold.local.operations import OPERATIONS
from leasehold.local.request_validation import RequestValidator

VALIDATOR = RequestValidator()


def test_every_operation_exists_in_the_service() -> None:
    """No operation is misspelled."""
    for operation in [*OPERATIONS, "SubscribeToShard"]:
        with pytest.raises((KinesisApiError, MalformedBodyError)):
            VALIDATOR.validate(operation, [], JSON)


def test_a_validated_request_has_bytes_and_milliseconds() -> None:
    """Both encodings give the same members, without unknown ones and nulls."""
    request: dict[str, Any] = {"StreamName": "s", "PartitionKey": "k", "Unknown": 1, "ExplicitHashKey": None}
    expected = {"StreamName": "s", "PartitionKey": "k", "Data": b"hello"}
    assert VALIDATOR.validate("PutRecord", request | {"Data": "aGVsbG8="}, JSON) == expected
    assert VALIDATOR.validate("PutRecord", request | {"Data": b"hello"}, CBOR) == expected
    ask = {"ShardId": "shardId-0", "ShardIteratorType": "AT_TIMESTAMP"}
    assert VALIDATOR.validate("GetShardIterator", ask | {"Timestamp": 1.5}, JSON)["Timestamp"] == 1500
    assert VALIDATOR.validate("GetShardIterator", ask | {"Timestamp": 1500}, CBOR)["Timestamp"] == 1500


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
        ("PutRecord", {"Data": "", "PartitionKey": "k", "DryRun": True}, "DryRun is not supported"),
    ],
)
def test_a_violated_constraint_is_reported_as_the_service_does(
    operation: str, request_: dict[str, Any], message: str
) -> None:
    """The error names member, value and constraint."""
    with pytest.raises(KinesisApiError, match=message) as error:
        VALIDATOR.validate(operation, request_, JSON)
    assert error.value.error_type == ErrorType.VALIDATION


@pytest.mark.parametrize(
    "body",
    [None, [], "text", {"ShardIterator": 5}, {"ShardIterator": "x", "Limit": True}, {"ShardIterator": ["x"]}],
)
def test_a_member_of_the_wrong_type_is_malformed(body: object) -> None:
    """True is not accepted as a number, a list not as a text."""
    with pytest.raises(MalformedBodyError):
        VALIDATOR.validate("GetRecords", body, JSON)


def test_a_long_value_is_truncated_in_the_error() -> None:
    """An error never contains a whole payload."""
    with pytest.raises(KinesisApiError) as error:
        VALIDATOR.validate("CreateStream", {"StreamName": "n" * 100_000, "ShardCount": 1}, JSON)
    assert len(error.value.message) < 500
