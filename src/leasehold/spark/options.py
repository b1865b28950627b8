"""What a query can be told: `.option(name, value)`, checked when the source is loaded.

Names are the ones that Spark users know from Databricks, Kafka, and the connectors of awslabs and Glue; case does not
matter. A name that nobody knows is an error with the nearest that exists, because a setting that is silently ignored is
worse than none. Values are text, as people write it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, Final

from leasehold.archive.columns import ALL_COLUMNS, ARCHIVE_COLUMNS, DEFAULT_COLUMNS
from leasehold.config import values
from leasehold.config.connection import ConnectionSettings
from leasehold.config.settings import FleetSettings, Mode, ReadSettings, milliseconds
from leasehold.core.exactly_once.query_offset import ReadStart, read_start_from_text
from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.core.initial_position import parse_initial_position
from leasehold.core.model import InitialPosition, ShardId
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON
from leasehold.core.records.deaggregation import DeaggregationSettings
from leasehold.errors import ConfigError, InvalidPositionError
from leasehold.spark.query_settings import OnLeasesBehind, QuerySettings

BATCH_BYTES_DEFAULT: Final = (
    64 * 1024 * 1024
)  # of a batch, over all shards: what tasks hold in memory together
_SIZE: Final = re.compile(r"\s*([0-9]+)\s*(b|kb|mb|gb)?\s*", re.IGNORECASE)
_SIZE_UNITS: Final = {"b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3}
_DEFAULT_START: Final = "default"


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One option: how its value is read, and what else it is called."""

    parse: Callable[[str], Any]
    aliases: tuple[str, ...] = ()


def size(text: str) -> int:
    """A number of bytes: "64mb", "512 kb", "1000000".

    >>> size("64mb"), size("1000")
    (67108864, 1000)
    """
    match = _SIZE.fullmatch(text)
    if match is None or int(match[1]) < 1:
        raise ConfigError("expected a size such as '64mb', or a number of bytes")
    return int(match[1]) * _SIZE_UNITS[(match[2] or "b").lower()]


def count(text: str) -> int:
    """A whole number above zero."""
    number = values.whole_number(text)
    if number < 1:
        raise ConfigError("expected a whole number above 0")
    return number


def column_names(text: str) -> tuple[str, ...]:
    """Columns by name, in any case; or `default`, `archive`, `all`."""
    sets = {"default": DEFAULT_COLUMNS, "archive": ARCHIVE_COLUMNS, "all": ALL_COLUMNS}
    if text.strip().lower() in sets:
        return sets[text.strip().lower()]
    known = {name.lower(): name for name in ALL_COLUMNS}
    wanted = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted or len(set(wanted)) < len(wanted):
        raise ConfigError(
            f"expected 'default', 'archive', 'all', or some of {', '.join(ALL_COLUMNS)}, each once"
        )
    return tuple(known[name] for name in wanted)


def timestamp(text: str) -> int:
    """A time with its zone, as milliseconds since 1970."""
    moment = parse_initial_position(text)
    if moment.timestamp_ms is None:
        raise ConfigError("expected a time with its zone such as '2026-11-15T12:00:00Z'")
    return moment.timestamp_ms


def parse_lease_store(text: str) -> str:
    """`dynamodb`, or a SQLite file."""
    place = text.strip()
    if place.lower() == "dynamodb":
        return "dynamodb"
    if place.startswith("sqlite:") and not place.startswith("sqlite:///"):
        return f"sqlite:///{place.removeprefix('sqlite:')}"
    return place


_on_leases_behind = values.choice(OnLeasesBehind)
_mode = values.choice(Mode)

OPTIONS: Final[Mapping[str, OptionSpec]] = {
    "streamName": OptionSpec(str, ("stream", "streamARN", "kinesis.streamName")),
    "applicationName": OptionSpec(str, ("application", "consumerGroup", "kinesis.applicationName")),
    "region": OptionSpec(str, ("regionName", "awsRegion", "kinesis.region", "kinesis.kinesisRegion")),
    "endpointUrl": OptionSpec(str, ("endpoint", "kinesisEndpointUrl", "kinesis.endpointUrl")),
    "dynamodbEndpointUrl": OptionSpec(str, ("dynamodbEndpoint", "kinesis.dynamodb.endpointUrl")),
    "profile": OptionSpec(str, ("awsProfile",)),
    "roleArn": OptionSpec(str, ("kinesis.stsRoleArn", "awsSTSRoleARN")),
    "roleExternalId": OptionSpec(str),
    "roleSessionName": OptionSpec(str, ("kinesis.stsSessionName", "awsSTSSessionName")),
    "leases": OptionSpec(parse_lease_store),
    "leaseTable": OptionSpec(str, ("leaseTableName", "kinesis.dynamodb.tableName")),
    "startingPosition": OptionSpec(str, ("initialPosition", "kinesis.startingPosition", "startingOffsets")),
    "startingTimestamp": OptionSpec(timestamp, ("kinesis.startingTimestamp",)),
    "endingTimestamp": OptionSpec(timestamp),
    "maxRecordsPerTrigger": OptionSpec(count, ("maxOffsetsPerTrigger", "maxRecordsPerBatch")),
    "maxBytesPerTrigger": OptionSpec(size),
    "maxArrivalSpanPerTrigger": OptionSpec(values.duration),
    "failOnDataLoss": OptionSpec(values.boolean, ("kinesis.failOnDataLoss",)),
    "onLeasesBehind": OptionSpec(_on_leases_behind),
    "columns": OptionSpec(column_names),
    "numPartitions": OptionSpec(count, ("maxPartitions", "minPartitions")),
    "pollInterval": OptionSpec(values.duration, ("minFetchPeriod", "kinesis.getRecords.fetchIntervalMs")),
    "maxFetchRate": OptionSpec(size),
    "maxRecordsPerFetch": OptionSpec(
        count, ("maxRecordPerRead", "kinesis.getRecords.numberOfRecordsPerFetch", "recordsPerCall")
    ),
    "mode": OptionSpec(_mode),
    "failoverAfter": OptionSpec(values.duration, ("failoverTime",)),
    "maxLeases": OptionSpec(count, ("maxLeasesForWorker",)),
}
_BATCH_ONLY: Final = ("endingTimestamp",)
# What other connectors call something that works by itself, or differently, here.
_ELSEWHERE: Final = {
    "awsaccesskey": "credentials come from the AWS SDK's chain (environment, profile, role); set profile or roleArn",
    "awsaccesskeyid": "credentials come from the AWS SDK's chain (environment, profile, role); set profile or roleArn",
    "awssecretkey": "credentials come from the AWS SDK's chain (environment, profile, role); set profile or roleArn",
    "kinesis.awsaccesskeyid": "credentials come from the AWS SDK's chain; set profile or roleArn",
    "kinesis.awssecretkey": "credentials come from the AWS SDK's chain; set profile or roleArn",
    "consumermode": "shards are polled; there is no other mode yet",
    "kinesis.consumertype": "shards are polled; there is no other mode yet",
    "avoidemptybatches": "an idle stream makes no batches; leave it out",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """Everything about one source. Travels to the driver's reader and to every task, so it holds values only."""

    stream: str
    application: str = ""
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    query: QuerySettings
    starting_ms: int | None = None  # of a batch read; None: the oldest record
    ending_ms: int | None = None  # of a batch read; None: now
    limits: BatchLimits = field(default_factory=BatchLimits)
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    partitions: int | None = None  # None: as many as this machine has cores
    fail_on_data_loss: bool = True
    fleet: FleetSettings = field(default_factory=FleetSettings)
    read: ReadSettings = field(default_factory=ReadSettings)
    deaggregation: DeaggregationSettings = field(default_factory=DeaggregationSettings)

    def require_application(self) -> None:
        """A stream that is read continuously needs a name for its leases."""
        if not self.application:
            raise ConfigError(
                "applicationName is missing: it names the leases of the query, and members with one name share the "
                "shards; .option('applicationName', 'billing')"
            )


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """Options as Spark passes them, checked."""
    parsed = _parsed(given)
    if not parsed.get("streamName"):
        raise ConfigError("streamName is missing: .option('streamName', 'orders')")
    initial, starting = _starts(parsed)
    poll_every = parsed.get("pollInterval", timedelta(seconds=1))
    failover = {"failover_after": parsed["failoverAfter"]} if "failoverAfter" in parsed else {}
    if failover:
        failover["refresh_every"] = min(FleetSettings().refresh_every, parsed["failoverAfter"] / 4)
    return SourceOptions(
        stream=parsed["streamName"],
        application=parsed.get("applicationName", ""),
        connection=ConnectionSettings(
            leases=parsed.get("leases", "dynamodb"),
            lease_table=parsed.get("leaseTable"),
            region=parsed.get("region"),
            profile=parsed.get("profile"),
            role_arn=parsed.get("roleArn"),
            role_external_id=parsed.get("roleExternalId"),
            role_session_name=parsed.get("roleSessionName"),
            kinesis_endpoint=parsed.get("endpointUrl"),
            dynamodb_endpoint=parsed.get("dynamodbEndpointUrl"),
        ),
        query=QuerySettings(
            initial=initial,
            starting=starting,
            poll_every=poll_every,
            on_leases_behind=parsed.get("onLeasesBehind", OnLeasesBehind.FAIL),
            max_leases=parsed.get("maxLeases"),
        ),
        starting_ms=parsed.get("startingTimestamp"),
        ending_ms=parsed.get("endingTimestamp"),
        limits=_limits(parsed),
        columns=parsed.get("columns", DEFAULT_COLUMNS),
        partitions=parsed.get("numPartitions"),
        fail_on_data_loss=parsed.get("failOnDataLoss", True),
        fleet=FleetSettings(
            max_leases=parsed.get("maxLeases"), mode=parsed.get("mode", FleetSettings().mode), **failover
        ),
        read=_read_settings(parsed, poll_every),
    )


def _parsed(given: Mapping[str, str]) -> dict[str, Any]:
    spelt = {alias.lower(): name for name, known in OPTIONS.items() for alias in (name, *known.aliases)}
    found: dict[str, Any] = {}
    for key, text in given.items():
        name = spelt.get(key.lower())
        if name is None:
            raise ConfigError(_unknown(key, list(spelt)))
        if name in found:
            raise ConfigError(f"option {name} is given twice, under two names")
        try:
            found[name] = OPTIONS[name].parse(text)
        except ConfigError as error:
            raise ConfigError(f"option {name}={text!r}: {error}") from error
    return found


def _unknown(key: str, known: list[str]) -> str:
    if key.lower() in _ELSEWHERE:
        return f"option {key}: {_ELSEWHERE[key.lower()]}"
    near = get_close_matches(key.lower(), known, n=1)
    names = {alias.lower(): alias for name, each in OPTIONS.items() for alias in (name, *each.aliases)}
    hint = f"; did you mean {names[near[0]]}?" if near else f"; known are {', '.join(OPTIONS)}"
    return f"unknown option {key}{hint}"


def _limits(parsed: Mapping[str, Any]) -> BatchLimits:
    span = parsed.get("maxArrivalSpanPerTrigger")
    return BatchLimits(
        records=parsed.get("maxRecordsPerTrigger"),
        size_bytes=parsed.get("maxBytesPerTrigger", BATCH_BYTES_DEFAULT),
        arrival_span_ms=None if span is None else milliseconds(span),
    )


def _read_settings(parsed: Mapping[str, Any], poll_every: timedelta) -> ReadSettings:
    chosen: dict[str, Any] = {"idle_poll_every": max(poll_every, timedelta(milliseconds=200))}
    if "maxFetchRate" in parsed:
        chosen["bytes_per_second"] = parsed["maxFetchRate"]
    if "maxRecordsPerFetch" in parsed:
        chosen["records_per_call"] = parsed["maxRecordsPerFetch"]
    return ReadSettings(**chosen)


def _starts(parsed: Mapping[str, Any]) -> tuple[InitialPosition, dict[ShardId, ReadStart]]:
    """Where a fleet without leases begins, and where single shards begin instead."""
    text = parsed.get(
        "startingPosition", "at_timestamp" if "startingTimestamp" in parsed else "latest"
    ).strip()
    try:
        if not text.startswith("{"):
            return _initial(text, parsed.get("startingTimestamp")), {}
        wanted = json.loads(text)
        starts = {str(shard): str(start) for shard, start in wanted.items()}
        initial = _initial(starts.pop(_DEFAULT_START, "latest"), parsed.get("startingTimestamp"))
        return initial, {ShardId(shard): _shard_start(start) for shard, start in starts.items()}
    except (ConfigError, InvalidPositionError, ValueError, AttributeError) as error:
        raise ConfigError(
            f"option startingPosition={text!r}: expected latest, trim_horizon, at_timestamp (with startingTimestamp), "
            "a time with its zone, or JSON that names sequence numbers to read after, such as "
            '{"shardId-000000000000": "4959...", "default": "trim_horizon"}'
        ) from error


def _initial(text: str, starting_ms: int | None) -> InitialPosition:
    word = text.strip().lower().replace("-", "_")
    if word == "at_timestamp":
        return InitialPosition(AT_TIMESTAMP, starting_ms)
    if word in {"latest", "earliest", "trim_horizon"}:
        return InitialPosition(LATEST if word == "latest" else TRIM_HORIZON)
    return parse_initial_position(text)


def _shard_start(text: str) -> ReadStart:
    word = text.strip().lower().replace("-", "_")
    if word in {"earliest", "trim_horizon"}:
        return ReadStart(TRIM_HORIZON)
    if text[:1].isdigit() and "-" not in text:
        return read_start_from_text(text)
    return ReadStart(AT_TIMESTAMP, timestamp(text))
