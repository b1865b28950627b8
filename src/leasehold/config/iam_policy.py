"""The permissions that a worker, a Spark query, a viewer and the creator of the tables need, as an IAM policy.

Each statement allows only calls that the code makes, on the tables and streams of one application. A test compares the
actions with the requests of running members.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from leasehold.errors import ConfigError

# A name with * or ? would allow more than the things that have this name, and ${ } is a variable of IAM. Only a stream
# may end in *, for streams that are found by their prefix.
_S3_URL: Final = re.compile(r"s3://(?P<bucket>[a-z0-9.-]{3,63})(?:/(?P<prefix>[^*?${}]*))?")
_TABLE: Final = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_STREAM: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}\*?")
_STREAM_ARN: Final = re.compile(r"arn:[a-z-]+:kinesis:[a-z0-9-]+:[0-9]{12}:stream/[A-Za-z0-9_.-]{1,128}\*?")
# What stands before the names of resources in an ARN, and how to write it.
_PLACES: Final = {
    "region": (re.compile(r"\*|[a-z]{2,}(-[a-z0-9]+)+"), "a region such as eu-central-1, or * for all"),
    "account": (re.compile(r"\*|[0-9]{12}"), "an account of 12 digits, or * for all"),
    "partition": (re.compile(r"aws(-[a-z]+)*"), "aws, aws-cn or aws-us-gov"),
}
# The names of the separate tables of KCL 3.0 to 3.4.
_TABLE_SUFFIXES: Final = ("", "-CoordinatorState", "-WorkerMetricStats")

_READ_TABLE: Final = ("DescribeTable", "GetItem", "Query", "Scan")
_WRITE_TABLE: Final = ("DeleteItem", "PutItem", "UpdateItem")
_CREATE_TABLE: Final = (
    "CreateTable",
    "DescribeTable",
    "TagResource",
    "UpdateContinuousBackups",
    "UpdateTable",
)
_READ_STREAM: Final = ("DescribeStreamSummary", "GetRecords", "GetShardIterator", "ListShards")
_FIND_STREAMS: Final = ("ListStreams", "ListTagsForStream")
_REGISTER_CONSUMER: Final = ("DescribeStreamConsumer", "ListStreamConsumers", "RegisterStreamConsumer")
_USE_CONSUMER: Final = ("DescribeStreamConsumer", "SubscribeToShard")


class IamRole(Enum):
    """Who gets the policy."""

    WORKER = "worker"
    SPARK = "spark"
    VIEWER = "viewer"
    BOOTSTRAP = "bootstrap"


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyScope:
    """What the policy is for. `archive` is an S3 URL; with `discover` streams are found by listing them."""

    application: str
    streams: tuple[str, ...]
    region: str = "*"
    account: str = "*"
    partition: str = "aws"
    fan_out: bool = False
    cloudwatch: bool = False
    discover: bool = False
    archive: str | None = None

    def __post_init__(self) -> None:
        if not _TABLE.fullmatch(self.application):
            raise ConfigError(
                f"application {self.application!r}: expected the name of a table, 3 to 255 letters, digits, _ . and -"
            )
        for name in self.streams:
            if not (_STREAM_ARN if name.startswith("arn:") else _STREAM).fullmatch(name):
                raise ConfigError(
                    f"stream {name!r}: expected the name or the ARN of a stream; * is allowed at the end, for a prefix"
                )
        for name, (pattern, expected) in _PLACES.items():
            if not pattern.fullmatch(value := getattr(self, name)):
                raise ConfigError(f"{name} {value!r}: expected {expected}")

    @property
    def tables(self) -> list[str]:
        """The ARNs of the lease table and of the separate tables of KCL 3.0 to 3.4."""
        prefix = f"arn:{self.partition}:dynamodb:{self.region}:{self.account}:table/"
        return [f"{prefix}{self.application}{suffix}" for suffix in _TABLE_SUFFIXES]

    @property
    def indexes(self) -> list[str]:
        """The ARN of the index of owners."""
        return [f"{self.tables[0]}/index/*"]

    @property
    def stream_arns(self) -> list[str]:
        """The ARNs of the streams."""
        return [
            name
            if name.startswith("arn:")
            else f"arn:{self.partition}:kinesis:{self.region}:{self.account}:stream/{name}"
            for name in self.streams
        ]

    @property
    def consumer_arns(self) -> list[str]:
        """The ARNs of all consumers of the streams."""
        return [f"{arn}/consumer/*" for arn in self.stream_arns]


def iam_policy(role: IamRole, scope: PolicyScope) -> Mapping[str, Any]:
    """The policy as JSON values, with one statement for each service and set of resources."""
    statements = {
        IamRole.WORKER: _member_statements,
        IamRole.SPARK: _member_statements,
        IamRole.VIEWER: _viewer_statements,
        IamRole.BOOTSTRAP: _bootstrap_statements,
    }[role](scope)
    return {"Version": "2012-10-17", "Statement": statements}


def _member_statements(scope: PolicyScope) -> list[Mapping[str, Any]]:
    found = [
        _allow("Leases", "dynamodb", (*_READ_TABLE, *_WRITE_TABLE), [*scope.tables, *scope.indexes]),
        _allow("ReadStreams", "kinesis", _READ_STREAM, scope.stream_arns),
    ]
    if scope.fan_out:
        found.append(_allow("UseConsumers", "kinesis", _USE_CONSUMER, scope.consumer_arns))
    if scope.discover:
        found.append(_allow("FindStreams", "kinesis", _FIND_STREAMS, ["*"]))
    if scope.cloudwatch:
        only = {"StringEquals": {"cloudwatch:namespace": scope.application}}
        found.append({**_allow("Metrics", "cloudwatch", ("PutMetricData",), ["*"]), "Condition": only})
    if scope.archive is not None:
        found += _archive_statements(scope.partition, scope.archive, ("GetObject", "PutObject"))
    return found


def _viewer_statements(scope: PolicyScope) -> list[Mapping[str, Any]]:
    found = [
        _allow("SeeLeases", "dynamodb", _READ_TABLE, [*scope.tables, *scope.indexes]),
        _allow("MeasureLag", "kinesis", _READ_STREAM, scope.stream_arns),
    ]
    if scope.archive is not None:
        found += _archive_statements(scope.partition, scope.archive, ("GetObject",))
    return found


def _bootstrap_statements(scope: PolicyScope) -> list[Mapping[str, Any]]:
    found = [_allow("CreateTables", "dynamodb", _CREATE_TABLE, [*scope.tables, *scope.indexes])]
    if scope.fan_out:
        arns = [*scope.stream_arns, *scope.consumer_arns]
        found.append(_allow("RegisterConsumers", "kinesis", _REGISTER_CONSUMER, arns))
    return found


def _archive_statements(partition: str, url: str, actions: Sequence[str]) -> list[Mapping[str, Any]]:
    match = _S3_URL.fullmatch(url)
    if match is None:
        raise ConfigError(f"archive {url!r}: expected s3://bucket/prefix; other stores have no IAM policy")
    bucket = f"arn:{partition}:s3:::{match['bucket']}"
    prefix = (match["prefix"] or "").strip("/")
    return [
        _allow("Archive", "s3", actions, [f"{bucket}/{prefix}/*" if prefix else f"{bucket}/*"]),
        _allow("ListArchive", "s3", ("ListBucket",), [bucket]),
    ]


def _allow(
    statement: str, service: str, actions: Sequence[str], resources: Sequence[str]
) -> Mapping[str, Any]:
    return {
        "Sid": statement,
        "Effect": "Allow",
        "Action": [f"{service}:{action}" for action in sorted(actions)],
        "Resource": list(resources),
    }
