"""The JavaScript and Java SDKs use `leasehold local` as they would use AWS, and read the same records as boto3.

The JavaScript SDK uses JSON. The Java SDK uses CBOR, which no Python client does, so only this test shows that AWS's
own decoder accepts our CBOR. Both use HTTP/1.1 here. test_local_server_http2.py covers HTTP/2, the default of the
JavaScript SDK and of Java's asynchronous client.
"""

import base64
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from leasehold.local import LocalKinesis
from tests.servers.install import java, java_can_compile, kcl_jars, node, node_modules

PROGRAMS = Path(__file__).parent / "sdk"
DEADLINE_S = 240
ALL_BYTES = bytes(range(256))
PARENT = "shardId-000000000000"
CHILDREN = ["shardId-000000000001", "shardId-000000000002"]


@pytest.fixture(scope="module")
def jdk() -> None:
    """Skip unless there is a JDK, which cannot be installed from PyPI or npm."""
    if not java_can_compile():
        pytest.skip("this Java cannot compile our small programs: install a JDK, not only a runtime")


@pytest.fixture(scope="module")
def server() -> Iterator[LocalKinesis]:
    """Run the server as a user does, in its own process."""
    with LocalKinesis.in_process() as running:
        yield running


def output_of(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def java_output(program: str, *arguments: str) -> list[tuple[str, ...]]:
    """Return the lines that one of our Java programs prints, split into fields."""
    source = str(PROGRAMS / program)
    output = output_of(str(java()), "-Xmx256m", "-cp", f"{kcl_jars()}/*", source, *arguments)
    return [tuple(line.split(" ")) for line in output.splitlines()]


def stored(client: Any, stream: str) -> list[tuple[str, str, int, bytes]]:
    """Return the records of the first shard as boto3 reads them: number, key, arrival in milliseconds, data."""
    iterator = client.get_shard_iterator(StreamName=stream, ShardId=PARENT, ShardIteratorType="TRIM_HORIZON")
    records = client.get_records(ShardIterator=iterator["ShardIterator"])["Records"]
    return [
        (
            record["SequenceNumber"],
            record["PartitionKey"],
            round(record["ApproximateArrivalTimestamp"].timestamp() * 1000),
            record["Data"],
        )
        for record in records
    ]


def java_records(lines: list[tuple[str, ...]]) -> list[tuple[str, str, int, bytes]]:
    return [
        (number, base64.b64decode(key).decode(), int(arrival_ms), base64.b64decode(data))
        for number, key, arrival_ms, data in (line[1:] for line in lines if line[0] == "record")
    ]


def javascript_records(found: dict[str, Any]) -> list[tuple[str, str, int, bytes]]:
    return [
        (record["number"], record["key"], record["arrivedMs"], record["data"].encode("latin1"))
        for record in found["records"]
    ]


def test_the_javascript_sdk_reads_to_the_end(server: LocalKinesis, unique_name: Callable[[str], str]) -> None:
    """It creates, puts, splits, reads the parent by polling and by fan-out, and finds the children."""
    stream = unique_name("javascript")
    program = str(PROGRAMS / "kinesis_client.cjs")
    output = output_of(str(node()), program, server.endpoint_url, stream, NODE_PATH=str(node_modules()))
    found = json.loads(output)
    in_python = stored(server.client(), stream)
    assert [record[3] for record in in_python] == [ALL_BYTES, b"second"]
    assert found["parent"] == PARENT
    assert found["numbers"] == [record[0] for record in in_python]
    for read in (found["polled"], found["subscribed"]):
        assert javascript_records(read) == in_python
        assert read["children"] == CHILDREN
    assert found["refusal"] == "InvalidArgumentException"


@pytest.mark.usefixtures("jdk")
def test_the_java_sdk_reads_to_the_end_in_cbor(
    server: LocalKinesis, unique_name: Callable[[str], str]
) -> None:
    """It creates, puts, splits and reads to the end in CBOR. Data, keys and arrival times are exact."""
    stream = unique_name("java")
    lines = java_output("KinesisPolling.java", server.endpoint_url, stream)
    in_python = stored(server.client(), stream)
    assert [record[3] for record in in_python] == [ALL_BYTES, b"second"]
    assert java_records(lines) == in_python
    assert [line[1] for line in lines if line[0] == "put"] == [record[0] for record in in_python]
    assert ("children", ",".join(CHILDREN)) in lines
    assert ("refused", "InvalidArgumentException") in lines
    assert ("sent", "application/x-amz-cbor-1.1") in lines
    assert ("received", "application/x-amz-cbor-1.1") in lines


@pytest.mark.usefixtures("jdk")
def test_the_java_sdk_subscribes_to_the_end(server: LocalKinesis, unique_name: Callable[[str], str]) -> None:
    """Enhanced fan-out with the Java SDK: every record, the children, and a clean end."""
    stream, client = unique_name("fan-out"), server.client()
    client.create_stream(StreamName=stream, ShardCount=1)
    for data in (ALL_BYTES, b"second"):
        client.put_record(StreamName=stream, Data=data, PartitionKey="Schlüssel")
    client.split_shard(StreamName=stream, ShardToSplit=PARENT, NewStartingHashKey=str(2**127))
    arn = client.describe_stream_summary(StreamName=stream)["StreamDescriptionSummary"]["StreamARN"]
    consumer = client.register_stream_consumer(StreamARN=arn, ConsumerName="java")["Consumer"]
    lines = java_output("KinesisFanOut.java", server.endpoint_url, consumer["ConsumerARN"], PARENT)
    assert java_records(lines) == stored(client, stream)
    assert ("children", ",".join(CHILDREN)) in lines
    assert lines[-1] == ("complete",)
