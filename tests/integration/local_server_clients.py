"""Clients for the tests of the local server: boto3, and raw HTTP for requests that boto3 would not send."""

import http.client
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import cbor2
from botocore.config import Config

from leasehold.local import LocalKinesis

PARENT = "shardId-000000000000"
MIDDLE = str(2**127)


def client_of(server: LocalKinesis) -> Any:
    """Return a boto3 client that does not retry, so that a refusal reaches the test."""
    return server.client(config=Config(retries={"total_max_attempts": 1}, read_timeout=60))


def records_of(
    client: Any, stream: str, shard: str = PARENT, kind: str = "TRIM_HORIZON", **more: Any
) -> list[Any]:
    """Return the records of a shard, up to its end or tip."""
    records, _ = read_to_end(client, stream, shard, kind, **more)
    return records


def read_to_end(
    client: Any, stream: str, shard: str = PARENT, kind: str = "TRIM_HORIZON", **more: Any
) -> tuple[list[Any], list[str]]:
    """Return the records of a shard up to its end or tip, and its children if it has ended."""
    iterator = client.get_shard_iterator(StreamName=stream, ShardId=shard, ShardIteratorType=kind, **more)[
        "ShardIterator"
    ]
    records: list[Any] = []
    while True:
        page = client.get_records(ShardIterator=iterator)
        records += page["Records"]
        if "NextShardIterator" not in page:
            return records, [child["ShardId"] for child in page["ChildShards"]]
        if not page["Records"]:
            return records, []
        iterator = page["NextShardIterator"]


def raw_call(
    server: LocalKinesis, operation: str, body: bytes, content_type: str = "application/x-amz-json-1.1"
) -> tuple[int, Mapping[str, str], bytes]:
    """Send one request unchanged, and return status, headers and body."""
    headers = {"Content-Type": content_type, "X-Amz-Target": f"Kinesis_20131202.{operation}"}
    return raw_request(server, "POST", "/", body, headers)


def raw_request(
    server: LocalKinesis, method: str, path: str, body: bytes, headers: Mapping[str, str]
) -> tuple[int, Mapping[str, str], bytes]:
    address = urlsplit(server.endpoint_url)
    connection = http.client.HTTPConnection(str(address.hostname), address.port, timeout=60)
    try:
        connection.request(method, path, body, dict(headers))
        response = connection.getresponse()
        return (
            response.status,
            {name.lower(): value for name, value in response.getheaders()},
            response.read(),
        )
    finally:
        connection.close()


def json_call(server: LocalKinesis, operation: str, members: Mapping[str, Any]) -> tuple[int, Any]:
    status, _, body = raw_call(server, operation, json.dumps(members).encode())
    return status, json.loads(body) if body else None


def cbor_call(server: LocalKinesis, operation: str, members: Mapping[str, Any]) -> tuple[int, Any]:
    """Send a request as the Java SDK does: blobs as byte strings, times as tag 1 with milliseconds."""
    status, headers, body = raw_call(server, operation, cbor2.dumps(members), "application/x-amz-cbor-1.1")
    assert headers["content-type"] == "application/x-amz-cbor-1.1"
    # Tag 1 holds milliseconds here, which a datetime would misread.
    decoders = {1: lambda value, _immutable: ("milliseconds", value)}
    return status, cbor2.loads(body, semantic_decoders=decoders) if body else None
