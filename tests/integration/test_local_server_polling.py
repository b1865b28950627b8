"""The local server over HTTP with polling, through boto3."""

import base64
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from botocore.exceptions import ClientError

from leasehold.errors import ConfigError
from leasehold.local import LocalKinesis
from tests.integration.local_server_clients import (
    MIDDLE,
    PARENT,
    cbor_call,
    client_of,
    json_call,
    raw_call,
    raw_request,
    read_to_end,
    records_of,
)

ALL_BYTES = bytes(range(256))


@pytest.fixture
def server() -> Iterator[LocalKinesis]:
    """Run a server for this test only, because it changes the clock and the settings."""
    with LocalKinesis.in_thread() as running:
        yield running


@pytest.fixture
def client(server: LocalKinesis) -> Any:
    return client_of(server)


def code_of(call: Callable[[], object]) -> str:
    """Return the error code of a refused call."""
    with pytest.raises(ClientError) as error:
        call()
    return str(error.value.response["Error"]["Code"])


def test_create_put_split_read_to_the_end_and_find_the_children(client: Any) -> None:
    """Records stay in the parent. Its end names the children, which contain the later records."""
    client.create_stream(StreamName="orders", ShardCount=1)
    client.put_record(StreamName="orders", Data=ALL_BYTES, PartitionKey="ключ")
    client.split_shard(StreamName="orders", ShardToSplit=PARENT, NewStartingHashKey=MIDDLE)
    client.put_record(StreamName="orders", Data=b"low", PartitionKey="k", ExplicitHashKey="0")
    client.put_record(StreamName="orders", Data=b"high", PartitionKey="k", ExplicitHashKey=MIDDLE)
    records, children = read_to_end(client, "orders")
    assert [(record["Data"], record["PartitionKey"]) for record in records] == [(ALL_BYTES, "ключ")]
    assert children == ["shardId-000000000001", "shardId-000000000002"]
    assert [records_of(client, "orders", child)[0]["Data"] for child in children] == [b"low", b"high"]


@pytest.mark.parametrize("with_last_records", [False, True])
def test_a_shard_ends_with_or_after_its_last_records(
    server: LocalKinesis, client: Any, with_last_records: bool
) -> None:
    """The setting decides: in the response with the last records, or in an empty one after them."""
    server.settings(shard_end_with_last_records=with_last_records)
    client.create_stream(StreamName="orders", ShardCount=1)
    client.put_record(StreamName="orders", Data=b"x", PartitionKey="k")
    client.split_shard(StreamName="orders", ShardToSplit=PARENT, NewStartingHashKey=MIDDLE)
    iterator = client.get_shard_iterator(
        StreamName="orders", ShardId=PARENT, ShardIteratorType="TRIM_HORIZON"
    )
    page = client.get_records(ShardIterator=iterator["ShardIterator"])
    assert len(page["Records"]) == 1
    assert ("ChildShards" in page, "NextShardIterator" in page) == (with_last_records, not with_last_records)


def test_responses_contain_no_null_members(server: LocalKinesis, client: Any) -> None:
    """Members that do not apply are left out, as in the service."""
    client.create_stream(StreamName="orders", ShardCount=1)
    _, shards = json_call(server, "ListShards", {"StreamName": "orders"})
    assert set(shards) == {"Shards"}
    assert set(shards["Shards"][0]) == {"ShardId", "HashKeyRange", "SequenceNumberRange"}
    assert set(shards["Shards"][0]["SequenceNumberRange"]) == {"StartingSequenceNumber"}


def test_advancing_the_clock_expires_iterators_and_records(server: LocalKinesis, client: Any) -> None:
    """An iterator expires within six minutes, the records within a day, without waiting."""
    client.create_stream(StreamName="orders", ShardCount=1)
    client.put_record(StreamName="orders", Data=b"x", PartitionKey="k")
    request = {"StreamName": "orders", "ShardId": PARENT, "ShardIteratorType": "TRIM_HORIZON"}
    iterator = client.get_shard_iterator(**request)["ShardIterator"]
    server.advance(timedelta(minutes=6))
    assert code_of(lambda: client.get_records(ShardIterator=iterator)) == "ExpiredIteratorException"
    assert len(records_of(client, "orders")) == 1
    server.advance(timedelta(hours=24))
    assert records_of(client, "orders") == []


def test_trim_removes_records_and_closed_shards(server: LocalKinesis, client: Any) -> None:
    """It trims one stream or all, at once."""
    for name in ("orders", "others"):
        client.create_stream(StreamName=name, ShardCount=1)
        client.put_record(StreamName=name, Data=b"x", PartitionKey="k")
        client.split_shard(StreamName=name, ShardToSplit=PARENT, NewStartingHashKey=MIDDLE)
    server.trim("orders")
    assert len(client.list_shards(StreamName="orders")["Shards"]) == 2
    assert len(client.list_shards(StreamName="others")["Shards"]) == 3
    server.trim()
    assert len(client.list_shards(StreamName="others")["Shards"]) == 2


def test_limits_are_enforced_by_setting(server: LocalKinesis, client: Any) -> None:
    """The sixth read of a second is refused, and a put above the limit fails in part."""
    client.create_stream(StreamName="orders", ShardCount=1)
    request = {"StreamName": "orders", "ShardId": PARENT, "ShardIteratorType": "TRIM_HORIZON"}
    iterator = client.get_shard_iterator(**request)["ShardIterator"]
    server.settings(enforce_limits=True)
    # One short burst on a clock of its own: faster than five a second on any machine that runs tests.
    with ThreadPoolExecutor(20) as pool:
        outcomes = list(
            pool.map(
                lambda _: error_code_or_none(lambda: client.get_records(ShardIterator=iterator)), range(60)
            )
        )
    assert set(outcomes) == {None, "ProvisionedThroughputExceededException"}
    large = [{"Data": bytes(1_000_000), "PartitionKey": "k"}] * 4
    response = client.put_records(StreamName="orders", Records=large)
    assert response["FailedRecordCount"] == 3
    assert {record.get("ErrorCode") for record in response["Records"]} == {
        None,
        "ProvisionedThroughputExceededException",
    }
    server.settings(enforce_limits=False)
    assert client.put_records(StreamName="orders", Records=large)["FailedRecordCount"] == 0


def error_code_or_none(call: Callable[[], object]) -> str | None:
    try:
        call()
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    return None


def test_a_stream_is_creating_for_the_delay(server: LocalKinesis, client: Any) -> None:
    """With a delay set, a stream is CREATING until the clock advances."""
    server.settings(status_delay_ms=60_000)
    client.create_stream(StreamName="orders", ShardCount=1)

    def status() -> str:
        return str(
            client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamStatus"]
        )

    assert status() == "CREATING"
    assert code_of(lambda: client.list_shards(StreamName="orders")) == "ResourceInUseException"
    server.advance(timedelta(minutes=1))
    assert status() == "ACTIVE"


def test_reset_restores_the_initial_state(server: LocalKinesis, client: Any) -> None:
    """No streams, the initial settings, the system's time."""
    client.create_stream(StreamName="orders", ShardCount=1)
    server.settings(enforce_limits=True)
    server.advance(timedelta(days=400))
    ahead_ms = server.now_ms()
    server.reset()
    assert client.list_streams()["StreamNames"] == []
    assert server.settings()["enforce_limits"] is False
    assert server.now_ms() < ahead_ms - 399 * 86_400_000


def test_the_control_endpoint_refuses_invalid_requests(server: LocalKinesis) -> None:
    """A wrong name, value or path is reported, and nothing changes."""
    with pytest.raises(ConfigError, match="did you mean heartbeat_ms"):
        server.settings(heartbeat=5)
    with pytest.raises(ConfigError, match="iterator_lifetime_ms='long'"):
        server.settings(iterator_lifetime_ms="long")
    with pytest.raises(ConfigError, match="not found"):
        server.trim("nothing-here")
    for path, body in (("clock", b"[]"), ("clock", b"{"), ("clock", b'{"advance_ms":"x"}')):
        assert raw_request(server, "POST", f"/_leasehold/{path}", body, {})[0] == 400
    assert raw_request(server, "POST", "/_leasehold/explode", b"", {})[0] == 404
    assert raw_request(server, "POST", "/_leasehold/reset", b"", {"Origin": "http://evil.example"})[0] == 403
    assert server.settings()["heartbeat_ms"] == 5_000


def test_tags_monitoring_encryption_and_limits_are_stored_and_returned(client: Any) -> None:
    """The server stores and returns these settings, like the service."""
    client.create_stream(StreamName="orders", ShardCount=1, Tags={"team": "billing"})
    client.add_tags_to_stream(StreamName="orders", Tags={"stage": "test"})
    client.remove_tags_from_stream(StreamName="orders", TagKeys=["team", "never"])
    tags = client.list_tags_for_stream(StreamName="orders")
    assert (tags["Tags"], tags["HasMoreTags"]) == ([{"Key": "stage", "Value": "test"}], False)
    client.enable_enhanced_monitoring(StreamName="orders", ShardLevelMetrics=["ALL"])
    client.disable_enhanced_monitoring(StreamName="orders", ShardLevelMetrics=["IncomingBytes"])
    client.start_stream_encryption(StreamName="orders", EncryptionType="KMS", KeyId="alias/key")
    put = client.put_record(StreamName="orders", Data=b"x", PartitionKey="k")
    described = client.describe_stream(StreamName="orders")["StreamDescription"]
    assert (described["EncryptionType"], described["KeyId"], put["EncryptionType"]) == (
        "KMS",
        "alias/key",
        "KMS",
    )
    assert len(described["EnhancedMonitoring"][0]["ShardLevelMetrics"]) == 6
    assert records_of(client, "orders")[0]["EncryptionType"] == "KMS"
    client.stop_stream_encryption(StreamName="orders", EncryptionType="KMS", KeyId="alias/key")
    assert "EncryptionType" not in records_of(client, "orders")[0]
    assert client.describe_limits()["OpenShardCount"] == 1


def test_update_max_record_size_allows_larger_records(client: Any) -> None:
    """A record of 9 MiB is accepted and read."""
    client.create_stream(StreamName="orders", ShardCount=1)
    large = bytes(9 * 1024 * 1024)
    assert (
        code_of(lambda: client.put_record(StreamName="orders", Data=large, PartitionKey="k"))
        == "ValidationException"
    )
    arn = client.describe_stream_summary(StreamName="orders")["StreamDescriptionSummary"]["StreamARN"]
    client.update_max_record_size(StreamARN=arn, MaxRecordSizeInKiB=10_240)
    client.put_record(StreamName="orders", Data=large, PartitionKey="k")
    assert records_of(client, "orders")[0]["Data"] == large


def test_listing_tokens_expire(server: LocalKinesis, client: Any) -> None:
    """After five minutes a token for shards or streams is refused with ExpiredNextToken."""
    for name in ("a", "b"):
        client.create_stream(StreamName=name, ShardCount=2)
    shards = client.list_shards(StreamName="a", MaxResults=1)["NextToken"]
    streams = client.list_streams(Limit=1)["NextToken"]
    assert client.list_streams(Limit=1, NextToken=streams)["StreamNames"] == ["b"]
    server.advance(timedelta(seconds=301))
    assert code_of(lambda: client.list_shards(NextToken=shards)) == "ExpiredNextTokenException"
    assert code_of(lambda: client.list_streams(NextToken=streams)) == "ExpiredNextTokenException"


# What no SDK would send


@pytest.mark.parametrize(
    ("operation", "body", "error"),
    [
        ("GetRecords", b'{"ShardIterator":"garbage"}', "InvalidArgumentException"),
        ("GetRecords", b'{"ShardIterator":"' + b"A" * 600 + b'"}', "ValidationException"),
        ("GetRecords", b"{", "SerializationException"),
        ("GetRecords", b"[]", "SerializationException"),
        ("GetRecords", b"", "ValidationException"),
        ("GetRecords", b'{"ShardIterator":5}', "SerializationException"),
        ("GetRecords", b"\xff\xfe", "SerializationException"),
        ("PutRecord", b'{"StreamName":"s","Data":"!!","PartitionKey":"k"}', "SerializationException"),
        ("PutRecord", b'{"StreamName":"s","Data":""}', "ValidationException"),
        ("PutRecords", b'{"StreamName":"s","Records":[{"Data":""}]}', "ValidationException"),
        ("PutRecords", b'{"StreamName":"s","Records":[]}', "ValidationException"),
        ("DescribeStream", b'{"StreamName":"nothing-here"}', "ResourceNotFoundException"),
        ("DescribeStream", b"{}", "InvalidArgumentException"),
        ("ListShards", b'{"NextToken":"x"}', "InvalidArgumentException"),
        ("NoSuchThing", b"{}", "UnknownOperationException"),
        ("CreateChannel", b"{}", "UnknownOperationException"),
    ],
)
def test_invalid_requests_get_the_error_type_of_the_service(
    server: LocalKinesis, operation: str, body: bytes, error: str
) -> None:
    """The response is a 400 with a type and a message. The server never fails."""
    status, headers, response = raw_call(server, operation, body)
    assert status == 400, response
    assert headers["x-amzn-errortype"] == error
    assert f'"__type":"{error}"'.encode() in response
    assert b'"message":"' in response
    assert headers["x-amzn-requestid"]


def test_requests_that_are_not_kinesis_are_refused(server: LocalKinesis) -> None:
    """No target, another service, another method, and a body above all limits."""
    for headers in ({}, {"X-Amz-Target": "DynamoDB_20120810.ListTables"}):
        assert raw_request(server, "POST", "/", b"{}", headers)[0] == 400
    assert raw_request(server, "GET", "/", b"", {})[0] == 400
    assert raw_call(server, "PutRecord", bytes(25 * 1024 * 1024))[0] == 413


# CBOR


def test_cbor_and_json_responses_agree(server: LocalKinesis, client: Any) -> None:
    """Put, position by time, read and errors in CBOR, with bytes as bytes and times in milliseconds."""
    assert cbor_call(server, "CreateStream", {"StreamName": "orders", "ShardCount": 1}) == (200, None)
    record = {"Data": ALL_BYTES, "PartitionKey": "ключ"}
    status, put = cbor_call(server, "PutRecords", {"StreamName": "orders", "Records": [record]})
    assert (status, put["FailedRecordCount"]) == (200, 0)
    request = {
        "StreamName": "orders",
        "ShardId": PARENT,
        "ShardIteratorType": "AT_TIMESTAMP",
        "Timestamp": 1000,
    }
    _, iterator = cbor_call(server, "GetShardIterator", request)
    _, page = cbor_call(server, "GetRecords", {"ShardIterator": iterator["ShardIterator"]})
    (by_boto3,) = records_of(client, "orders")
    arrival_ms = round(by_boto3["ApproximateArrivalTimestamp"].timestamp() * 1000)
    assert page["Records"] == [
        {
            "SequenceNumber": put["Records"][0]["SequenceNumber"],
            "ApproximateArrivalTimestamp": ("milliseconds", arrival_ms),
            "Data": ALL_BYTES,
            "PartitionKey": "ключ",
        }
    ]
    status, error = cbor_call(server, "GetRecords", {"ShardIterator": "garbage"})
    assert (status, error["__type"]) == (400, "InvalidArgumentException")
    status, error = cbor_call(
        server, "PutRecord", {"StreamName": "orders", "Data": "text", "PartitionKey": "k"}
    )
    assert (status, error["__type"]) == (400, "SerializationException")


def test_a_blob_put_in_json_is_the_same_in_cbor(server: LocalKinesis, client: Any) -> None:
    """Records are the same in both encodings."""
    client.create_stream(StreamName="orders", ShardCount=1)
    status, _ = json_call(
        server,
        "PutRecord",
        {"StreamName": "orders", "Data": base64.b64encode(ALL_BYTES).decode(), "PartitionKey": "k"},
    )
    request = {"StreamName": "orders", "ShardId": PARENT, "ShardIteratorType": "TRIM_HORIZON"}
    _, iterator = cbor_call(server, "GetShardIterator", request)
    _, page = cbor_call(server, "GetRecords", {"ShardIterator": iterator["ShardIterator"]})
    assert (status, page["Records"][0]["Data"]) == (200, ALL_BYTES)


def test_concurrent_producers_lose_no_record(server: LocalKinesis, client: Any) -> None:
    """Eight threads put into one shard. Every acknowledged record is stored once, in the order of its number."""
    client.create_stream(StreamName="orders", ShardCount=1)
    numbers: list[tuple[int, bytes]] = []
    lock = threading.Lock()

    def produce(producer: int) -> None:
        mine = client_of(server)
        for turn in range(10):
            data = [b"%d-%d-%d" % (producer, turn, record) for record in range(20)]
            records = [{"Data": entry, "PartitionKey": "k"} for entry in data]
            response = mine.put_records(StreamName="orders", Records=records)
            with lock:
                numbers.extend(
                    (int(outcome["SequenceNumber"]), entry)
                    for outcome, entry in zip(response["Records"], data, strict=True)
                )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(produce, range(8)))
    found = [(int(record["SequenceNumber"]), record["Data"]) for record in records_of(client, "orders")]
    assert found == sorted(numbers)
    assert len(found) == 1600
