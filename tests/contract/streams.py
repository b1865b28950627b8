"""Helpers of the stream contract: a Kinesis server under test, one stream on it, and reading of a shard.

All calls use boto3 and do not depend on the server. Known differences between a server and AWS are declared in
`KNOWN_DEVIATIONS` with the reason. The tests assert them, so a test fails when a server changes.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any, NamedTuple, Protocol

import pytest
from botocore.exceptions import ClientError

from leasehold.local import LocalKinesis
from tests.servers import aws_client

HASH_KEY_MAX = 2**128 - 1
DEADLINE_S = 60.0

# For a value out of range the documentation says InvalidArgumentException, but the service often returns
# ValidationException. A client must expect both.
BAD_VALUE = ("InvalidArgumentException", "ValidationException")


class Deviation(NamedTuple):
    """The behaviour of a server where it differs from AWS's documentation, and the likely cause."""

    instead: Any
    because: str


ACCEPTED = "accepted"  # a deviation: no error, although AWS has one
CRASHED = "500"  # a deviation: an internal server error without details

KNOWN_DEVIATIONS: Mapping[str, Mapping[str, Deviation]] = {
    "kinesis_local": {
        "a filter on the second page": Deviation(
            "every shard after the first page", "its token forgets the filter"
        ),
        "a hash key that is not a number": Deviation(CRASHED, "it parses before it checks"),
        "a made-up iterator": Deviation(CRASHED, "it decodes before it checks"),
        "a missing value": Deviation(("SerializationException",), "its decoder needs every field"),
        "a page size of 0": Deviation(CRASHED, "the minimum is not checked"),
        "a page size of 10001": Deviation(ACCEPTED, "it returns at most 100 anyway"),
        "a position that is not a record": Deviation(
            "ResourceNotFoundException", "it searches for the number instead of comparing it"
        ),
        "a refused deletion": Deviation("deleted", "it reports that consumers exist, and deletes anyway"),
        "a second split": Deviation("ResourceInUseException", "it calls a closed shard not active"),
        "a split at the start": Deviation(ACCEPTED, "a child without a range is not noticed"),
        "a stream of no shards": Deviation("LimitExceededException", "it treats the minimum as a quota"),
        "an error in CBOR": Deviation((500, "None", ""), "it decodes the iterator before it checks"),
        "an unknown enum value": Deviation("SerializationException", "its decoder rejects the value first"),
        "an unknown operation": Deviation(
            (400, "AccessDeniedException"), "it treats it as a missing permission"
        ),
        "AT_TRIM_HORIZON": Deviation("every shard", "it treats the filter as FROM_TRIM_HORIZON"),
        "data in CBOR": Deviation("base64", "it writes base64 into CBOR; the Java SDK accepts both"),
        "data that is not base64": Deviation((500, ""), "it decodes before it checks"),
        "more than 500 records": Deviation(ACCEPTED, "the number of records is not checked"),
        "scaling an on-demand stream": Deviation(ACCEPTED, "it does not check the mode"),
        "splitting an on-demand stream": Deviation(ACCEPTED, "it does not check the mode"),
        "the ending number of a closed shard": Deviation(2**63 - 1, "it shows its internal maximum"),
        "uniform scaling": Deviation("splits every shard in two", "it uses the count, not the ranges"),
    },
    "ministack": {},
}


def eventually(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """The first truthy result of `condition`; fails if there is none before the deadline."""
    deadline = time.monotonic() + deadline_s
    while not (response := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {deadline_s} s: {what}")
        time.sleep(0.02)
    return response


@contextmanager
def expect_refusal(*codes: str) -> Iterator[None]:
    """The calls inside fail with one of these error codes."""
    with pytest.raises(ClientError) as caught:
        yield
    assert caught.value.response["Error"]["Code"] in codes, caught.value


def hash_key_of(partition_key: str) -> int:
    """The hash key of a partition key."""
    return int.from_bytes(hashlib.md5(partition_key.encode()).digest(), "big")


@dataclass(frozen=True, slots=True)
class KinesisUnderTest:
    """One Kinesis server, by name, through boto3."""

    name: str
    client: Any

    def expects(self, behaviour: str, documented: Any) -> Any:
        """The expected behaviour of this server: as documented, unless a deviation is declared."""
        deviation = KNOWN_DEVIATIONS.get(self.name, {}).get(behaviour)
        return documented if deviation is None else deviation.instead

    @contextmanager
    def refuses(self, behaviour: str, *documented: str) -> Iterator[None]:
        """The call inside fails with one of the documented codes, or as declared for this server."""
        expected = self.expects(behaviour, documented)
        if expected == ACCEPTED:
            yield
        else:
            with expect_refusal(*([expected] if isinstance(expected, str) else expected)):
                yield


@dataclass(frozen=True, slots=True)
class ShardRead:
    """The result of reading a shard: its records, whether it ended, and its children."""

    records: Sequence[Mapping[str, Any]]
    has_ended: bool
    children: Sequence[Mapping[str, Any]] = ()

    @property
    def data(self) -> list[bytes]:
        return [record["Data"] for record in self.records]

    @property
    def numbers(self) -> list[int]:
        return [int(record["SequenceNumber"]) for record in self.records]


@dataclass(frozen=True, slots=True)
class Stream:
    """One stream of the server under test. Changes wait until they are complete."""

    kinesis: KinesisUnderTest
    name: str
    arn: str = field(default="")

    @property
    def client(self) -> Any:
        return self.kinesis.client

    def summary(self) -> Mapping[str, Any]:
        response: Mapping[str, Any] = self.client.describe_stream_summary(StreamName=self.name)
        described: Mapping[str, Any] = response["StreamDescriptionSummary"]
        return described

    def wait_until_active(self) -> None:
        eventually(lambda: self.summary()["StreamStatus"] == "ACTIVE", f"{self.name} becomes ACTIVE")

    # Writing

    def put(self, data: bytes = b"x", key: str = "k", **more: Any) -> Mapping[str, Any]:
        response: Mapping[str, Any] = self.client.put_record(
            StreamName=self.name, Data=data, PartitionKey=key, **more
        )
        return response

    def put_many(self, entries: Sequence[tuple[str, bytes]]) -> list[Mapping[str, Any]]:
        response = self.client.put_records(
            StreamName=self.name, Records=[{"PartitionKey": key, "Data": data} for key, data in entries]
        )
        assert response["FailedRecordCount"] == 0
        return list(response["Records"])

    # Shards

    def shards(self, **request: Any) -> list[dict[str, Any]]:
        """All pages of ListShards: the name in the first call, only the token in the others, as AWS requires."""
        response = self.client.list_shards(StreamName=self.name, **request)
        found = list(response["Shards"])
        while response.get("NextToken"):
            response = self.client.list_shards(NextToken=response["NextToken"])
            found += response["Shards"]
        return found

    def shard_ids(self, **request: Any) -> list[str]:
        return [shard["ShardId"] for shard in self.shards(**request)]

    def open_shards(self) -> list[dict[str, Any]]:
        shards = [
            shard for shard in self.shards() if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
        ]
        return sorted(shards, key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))

    def split(self, shard_id: str, at: int | None = None) -> list[str]:
        """Split a shard, by default in the middle; returns the children, the lower range first."""
        shard = next(shard for shard in self.shards() if shard["ShardId"] == shard_id)
        first, last = hash_range(shard)
        middle = (first + last + 1) // 2 if at is None else at
        self.client.split_shard(StreamName=self.name, ShardToSplit=shard_id, NewStartingHashKey=str(middle))
        self.wait_until_active()
        return self.children_of(shard_id)

    def merge(self, shard_id: str, adjacent_id: str) -> str:
        """Merge two adjacent shards; returns their child."""
        self.client.merge_shards(
            StreamName=self.name, ShardToMerge=shard_id, AdjacentShardToMerge=adjacent_id
        )
        self.wait_until_active()
        (child,) = self.children_of(shard_id)
        return child

    def children_of(self, shard_id: str) -> list[str]:
        children = [
            shard
            for shard in self.shards()
            if shard_id in {shard.get("ParentShardId"), shard.get("AdjacentParentShardId")}
        ]
        return [shard["ShardId"] for shard in sorted(children, key=hash_range)]

    # Reading

    def iterator(self, shard_id: str, kind: str = "TRIM_HORIZON", **more: Any) -> str:
        response = self.client.get_shard_iterator(
            StreamName=self.name, ShardId=shard_id, ShardIteratorType=kind, **more
        )
        return str(response["ShardIterator"])

    def read(self, shard_id: str, kind: str = "TRIM_HORIZON", **more: Any) -> ShardRead:
        """Read from a position to the tip, or to the end of a closed shard."""
        return self.read_on(self.iterator(shard_id, kind, **more))

    def read_on(self, iterator: str) -> ShardRead:
        """Read from an iterator to the tip, or to the end of a closed shard."""
        records: list[Mapping[str, Any]] = []
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            response = self.client.get_records(ShardIterator=iterator)
            records += response["Records"]
            if not response.get("NextShardIterator"):
                return ShardRead(records, has_ended=True, children=response.get("ChildShards", ()))
            if not response["Records"] and response["MillisBehindLatest"] == 0:
                return ShardRead(records, has_ended=False)
            iterator = response["NextShardIterator"]
        pytest.fail(f"neither tip nor end of a shard of {self.name} within {DEADLINE_S} s")

    def read_to_end(self, shard_id: str) -> ShardRead:
        """Read a closed shard to its end, with any number of empty responses before it."""
        read = eventually(lambda: _if_ended(self.read(shard_id)), f"{shard_id} ends")
        assert isinstance(read, ShardRead)
        return read


def connect(request: pytest.FixtureRequest, server: str) -> KinesisUnderTest:
    """The server of that name, with a client that does not validate parameters, so that the server has to."""
    fixture = request.getfixturevalue(server)
    url = fixture.endpoint_url if isinstance(fixture, LocalKinesis) else fixture.url
    return KinesisUnderTest(server, client_of(url))


@cache
def client_of(url: str) -> Any:
    """One client per server: creating one takes longer than most of the tests."""
    return aws_client("kinesis", url, parameter_validation=False)


class MakeStream(Protocol):
    """Creates a stream and waits until it is active. It is deleted when the test ends."""

    def __call__(self, shards: int = 1, **request: Any) -> Stream: ...


def _if_ended(read: ShardRead) -> ShardRead | None:
    return read if read.has_ended else None


def hash_range(shard: Mapping[str, Any]) -> tuple[int, int]:
    """First and last hash key of a shard."""
    keys = shard["HashKeyRange"]
    return int(keys["StartingHashKey"]), int(keys["EndingHashKey"])


def data_and_keys(read: ShardRead) -> list[tuple[str, bytes]]:
    return [(record["PartitionKey"], record["Data"]) for record in read.records]
