"""What the stream contract tests speak: a Kinesis server under test, one stream on it, and how a shard is read.

Everything goes through boto3 and says nothing about who answers. Where a server is known to differ from AWS, its
difference is declared in `KNOWN_DEVIATIONS` with the reason, and asserted like a promise: the day it changes, a
test says so.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
from botocore.exceptions import ClientError

HASH_KEY_MAX = 2**128 - 1
DEADLINE_S = 60.0

# A value outside a declared range: the documentation says InvalidArgument, the service's front door often says
# Validation. Both are "you sent something wrong", and no client can rely on more.
BAD_VALUE = ("InvalidArgumentException", "ValidationException")


class Deviation(NamedTuple):
    """What a server does instead of what AWS documents, and the likely cause as seen from outside."""

    instead: Any
    because: str


ACCEPTED = "accepted"  # a deviation: no error where AWS has one
CRASHED = "500"  # a deviation: the server failed over the request, and says only that

KNOWN_DEVIATIONS: Mapping[str, Mapping[str, Deviation]] = {
    "kinesis_local": {
        "a filter on the second page": Deviation(
            "every shard after the first page", "its token forgets the filter"
        ),
        "a hash key that is no number": Deviation(CRASHED, "it parses before it checks"),
        "a made-up iterator": Deviation(CRASHED, "it decodes before it checks"),
        "a missing value": Deviation(("SerializationException",), "its decoder needs every member"),
        "a page size of 0": Deviation(CRASHED, "the minimum is not checked"),
        "a page size of 10001": Deviation(ACCEPTED, "it gives at most 100 anyway"),
        "a position that is no record": Deviation(
            "ResourceNotFoundException", "it looks the number up instead of comparing it"
        ),
        "a refused deletion": Deviation("deleted", "it says that consumers exist, and deletes all the same"),
        "a second split": Deviation("ResourceInUseException", "it calls a closed shard not active"),
        "a split at the start": Deviation(ACCEPTED, "a child without a range is not noticed"),
        "a stream of no shards": Deviation("LimitExceededException", "it treats the minimum as a quota"),
        "an error in CBOR": Deviation((500, "None", ""), "it decodes the iterator before it checks"),
        "an unknown enum value": Deviation("SerializationException", "its decoder meets the value first"),
        "an unknown operation": Deviation(
            (400, "AccessDeniedException"), "it takes it for a question of rights"
        ),
        "AT_TRIM_HORIZON": Deviation("every shard", "it takes the filter for FROM_TRIM_HORIZON"),
        "data in CBOR": Deviation("base64", "it writes JSON's form into CBOR; the Java SDK accepts both"),
        "data that is no base64": Deviation((500, ""), "it decodes before it checks"),
        "more than 500 records": Deviation(ACCEPTED, "the number of records is not checked"),
        "scaling an on-demand stream": Deviation(ACCEPTED, "the mode is not looked at"),
        "splitting an on-demand stream": Deviation(ACCEPTED, "the mode is not looked at"),
        "the ending number of a closed shard": Deviation(2**63 - 1, "it shows its internal mark for the end"),
        "uniform scaling": Deviation("splits every shard in two", "it looks at the count, not at the ranges"),
    },
    "ministack": {},
}


def eventually(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """The first truthy answer of `condition`; fails when there is none before the deadline."""
    deadline = time.monotonic() + deadline_s
    while not (answer := condition()):
        if time.monotonic() > deadline:
            pytest.fail(f"not within {deadline_s} s: {what}")
        time.sleep(0.02)
    return answer


@contextmanager
def refused(*codes: str) -> Iterator[None]:
    """The calls inside are refused with one of these error codes."""
    with pytest.raises(ClientError) as caught:
        yield
    assert caught.value.response["Error"]["Code"] in codes, caught.value


def hash_key_of(partition_key: str) -> int:
    """Where the service puts a partition key in the hash range."""
    return int.from_bytes(hashlib.md5(partition_key.encode()).digest(), "big")


@dataclass(frozen=True, slots=True)
class KinesisUnderTest:
    """One Kinesis server, by name, through boto3."""

    name: str
    client: Any

    def expects(self, behaviour: str, documented: Any) -> Any:
        """What this server should do: as documented, unless a deviation of it is declared."""
        deviation = KNOWN_DEVIATIONS.get(self.name, {}).get(behaviour)
        return documented if deviation is None else deviation.instead

    @contextmanager
    def refuses(self, behaviour: str, *documented: str) -> Iterator[None]:
        """The call inside is refused with one of the documented codes, or as declared for this server."""
        expected = self.expects(behaviour, documented)
        if expected == ACCEPTED:
            yield
        else:
            with refused(*([expected] if isinstance(expected, str) else expected)):
                yield


@dataclass(frozen=True, slots=True)
class ShardRead:
    """A shard as it was read: what it held, and whether and how it ended."""

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
    """One stream of the server under test. Every change of it is waited for."""

    kinesis: KinesisUnderTest
    name: str
    arn: str = field(default="")

    @property
    def client(self) -> Any:
        return self.kinesis.client

    def summary(self) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = self.client.describe_stream_summary(StreamName=self.name)
        described: Mapping[str, Any] = answer["StreamDescriptionSummary"]
        return described

    def wait_until_active(self) -> None:
        eventually(lambda: self.summary()["StreamStatus"] == "ACTIVE", f"{self.name} becomes ACTIVE")

    # Writing

    def put(self, data: bytes = b"x", key: str = "k", **more: Any) -> Mapping[str, Any]:
        answer: Mapping[str, Any] = self.client.put_record(
            StreamName=self.name, Data=data, PartitionKey=key, **more
        )
        return answer

    def put_many(self, entries: Sequence[tuple[str, bytes]]) -> list[Mapping[str, Any]]:
        answer = self.client.put_records(
            StreamName=self.name, Records=[{"PartitionKey": key, "Data": data} for key, data in entries]
        )
        assert answer["FailedRecordCount"] == 0
        return list(answer["Records"])

    # Shards

    def shards(self, **request: Any) -> list[dict[str, Any]]:
        """Every page of ListShards: the name on the first call, the token alone on the others, as AWS wants it."""
        answer = self.client.list_shards(StreamName=self.name, **request)
        found = list(answer["Shards"])
        while answer.get("NextToken"):
            answer = self.client.list_shards(NextToken=answer["NextToken"])
            found += answer["Shards"]
        return found

    def shard_ids(self, **request: Any) -> list[str]:
        return [shard["ShardId"] for shard in self.shards(**request)]

    def open_shards(self) -> list[dict[str, Any]]:
        shards = [
            shard for shard in self.shards() if "EndingSequenceNumber" not in shard["SequenceNumberRange"]
        ]
        return sorted(shards, key=lambda shard: int(shard["HashKeyRange"]["StartingHashKey"]))

    def split(self, shard_id: str, at: int | None = None) -> list[str]:
        """Splits a shard, in the middle unless told where; returns the children, the lower range first."""
        shard = next(shard for shard in self.shards() if shard["ShardId"] == shard_id)
        first, last = hash_range(shard)
        middle = (first + last + 1) // 2 if at is None else at
        self.client.split_shard(StreamName=self.name, ShardToSplit=shard_id, NewStartingHashKey=str(middle))
        self.wait_until_active()
        return self.children_of(shard_id)

    def merge(self, shard_id: str, adjacent_id: str) -> str:
        """Merges two adjacent shards; returns their child."""
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
        answer = self.client.get_shard_iterator(
            StreamName=self.name, ShardId=shard_id, ShardIteratorType=kind, **more
        )
        return str(answer["ShardIterator"])

    def read(self, shard_id: str, kind: str = "TRIM_HORIZON", **more: Any) -> ShardRead:
        """Reads from a position to the tip, or to the end of a closed shard."""
        return self.read_on(self.iterator(shard_id, kind, **more))

    def read_on(self, iterator: str) -> ShardRead:
        """Reads from an iterator to the tip, or to the end of a closed shard."""
        records: list[Mapping[str, Any]] = []
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            answer = self.client.get_records(ShardIterator=iterator)
            records += answer["Records"]
            if not answer.get("NextShardIterator"):
                return ShardRead(records, has_ended=True, children=answer.get("ChildShards", ()))
            if not answer["Records"] and answer["MillisBehindLatest"] == 0:
                return ShardRead(records, has_ended=False)
            iterator = answer["NextShardIterator"]
        pytest.fail(f"neither tip nor end of a shard of {self.name} within {DEADLINE_S} s")

    def read_to_end(self, shard_id: str) -> ShardRead:
        """Reads a closed shard to its end, however many empty answers stand before it."""
        read = eventually(lambda: _if_ended(self.read(shard_id)), f"{shard_id} ends")
        assert isinstance(read, ShardRead)
        return read


def _if_ended(read: ShardRead) -> ShardRead | None:
    return read if read.has_ended else None


def hash_range(shard: Mapping[str, Any]) -> tuple[int, int]:
    """First and last hash key of a shard."""
    keys = shard["HashKeyRange"]
    return int(keys["StartingHashKey"]), int(keys["EndingHashKey"])


def data_and_keys(read: ShardRead) -> list[tuple[str, bytes]]:
    return [(record["PartitionKey"], record["Data"]) for record in read.records]
