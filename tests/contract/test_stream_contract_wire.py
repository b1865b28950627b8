"""Stream contract on the wire, without an SDK: error responses to requests that no SDK would send, and CBOR."""

import base64
import http.client
import json
from dataclasses import dataclass
from urllib.parse import urlsplit

import cbor2
import pytest

from tests.contract.streams import BAD_VALUE, KinesisUnderTest, Stream

JSON = "application/x-amz-json-1.1"
CBOR = "application/x-amz-cbor-1.1"


@dataclass(frozen=True, slots=True)
class Response:
    """A response as received."""

    status: int
    content_type: str
    body: bytes

    @property
    def error(self) -> str:
        """The error type, without the namespace that some servers put before it; empty if there is none."""
        if self.content_type not in {JSON, CBOR}:
            return ""
        members = (json if self.content_type == JSON else cbor2).loads(self.body)
        return str(members["__type"]).rpartition("#")[2]


def send_request(
    kinesis: KinesisUnderTest, operation: str | None, body: bytes, content_type: str = JSON
) -> Response:
    url = urlsplit(kinesis.client.meta.endpoint_url)
    headers = {
        "Content-Type": content_type,
        "X-Amz-Date": "20260101T000000Z",
        "Authorization": "AWS4-HMAC-SHA256 Credential=test/20260101/us-east-1/kinesis/aws4_request, "
        "SignedHeaders=host, Signature=0",
    }
    if operation is not None:
        headers["X-Amz-Target"] = f"Kinesis_20131202.{operation}"
    connection = http.client.HTTPConnection(str(url.hostname), url.port, timeout=60)
    try:
        connection.request("POST", "/", body, headers)
        response = connection.getresponse()
        return Response(response.status, str(response.getheader("content-type")), response.read())
    finally:
        connection.close()


# Errors


def test_a_body_that_is_not_json_is_refused(kinesis: KinesisUnderTest) -> None:
    """It is a client error, and the response is JSON."""
    response = send_request(kinesis, "ListStreams", b"{not json")
    assert (response.status, response.error) == (400, "SerializationException")


def test_a_value_of_the_wrong_type_is_refused(kinesis: KinesisUnderTest) -> None:
    """A string instead of a number is refused, and nothing changes."""
    response = send_request(kinesis, "CreateStream", b'{"StreamName": "wrong-type", "ShardCount": "two"}')
    assert (response.status, response.error) == (400, "SerializationException")
    assert b"wrong-type" not in send_request(kinesis, "ListStreams", b"{}").body


def test_a_missing_value_is_refused(kinesis: KinesisUnderTest, stream: Stream) -> None:
    """A record without a partition key is refused."""
    body = json.dumps({"StreamName": stream.name, "Data": "eA=="}).encode()
    response = send_request(kinesis, "PutRecord", body)
    assert response.status == 400
    assert response.error in kinesis.expects("a missing value", BAD_VALUE)


def test_data_that_is_not_base64_is_refused(kinesis: KinesisUnderTest, stream: Stream) -> None:
    """Data is base64 in JSON."""
    body = json.dumps({"StreamName": stream.name, "Data": "%%%", "PartitionKey": "k"}).encode()
    response = send_request(kinesis, "PutRecord", body)
    documented = (400, "SerializationException")
    assert (response.status, response.error) == kinesis.expects("data that is not base64", documented)


def test_an_unknown_operation_is_refused(kinesis: KinesisUnderTest) -> None:
    """The error type says that the operation is unknown."""
    response = send_request(kinesis, "MakeCoffee", b"{}")
    assert (response.status, response.error) == kinesis.expects(
        "an unknown operation", (400, "UnknownOperationException")
    )


# CBOR


def test_a_record_is_put_and_read_in_cbor(stream: Stream, shard_id: str) -> None:
    """Data is plain bytes in CBOR; boto3 reads the same record in JSON."""
    data = bytes(range(256))
    put = send_request(
        stream.kinesis,
        "PutRecord",
        cbor2.dumps({"StreamName": stream.name, "Data": data, "PartitionKey": "Schlüssel"}),
        CBOR,
    )
    (in_json,) = stream.read(shard_id).records
    assert in_json["Data"] == data
    assert in_json["SequenceNumber"] == cbor2.loads(put.body)["SequenceNumber"]

    request = cbor2.dumps({"ShardIterator": stream.iterator(shard_id)})
    got = send_request(stream.kinesis, "GetRecords", request, CBOR)
    assert (got.status, got.content_type) == (200, CBOR)
    # Searched and not decoded: AWS tags times in milliseconds, which is not standard CBOR.
    is_plain = stream.kinesis.expects("data in CBOR", "bytes") == "bytes"
    assert (cbor2.dumps(data) if is_plain else base64.b64encode(data)) in got.body


def test_the_error_of_a_cbor_request_is_cbor(stream: Stream) -> None:
    """The client can decode it."""
    response = send_request(stream.kinesis, "GetRecords", cbor2.dumps({"ShardIterator": "garbage"}), CBOR)
    documented = (400, CBOR, "InvalidArgumentException")
    found = (response.status, response.content_type, response.error)
    assert found == stream.kinesis.expects("an error in CBOR", documented)


@pytest.mark.parametrize("body", [b"", b"\xff\xff", b"\x9f\x01", cbor2.dumps([1, 2])])
def test_a_body_that_is_not_cbor_is_refused(kinesis: KinesisUnderTest, body: bytes) -> None:
    """It is a client error, too."""
    response = send_request(kinesis, "GetRecords", body, CBOR)
    assert response.status == 400
