"""Parses the options of the source, `.option(name, value)`, when Spark loads it.

The names are those of Databricks, Kafka, and the connectors of awslabs and Glue. Case does not matter. An unknown name
is an error that suggests the closest known name: a silently ignored option is worse than none. Values are text.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Final

from leasehold.archive.columns import ALL_COLUMNS, ARCHIVE_COLUMNS, DEFAULT_COLUMNS
from leasehold.config import values
from leasehold.config.connection import DYNAMODB, ConnectionSettings
from leasehold.config.did_you_mean import did_you_mean
from leasehold.config.settings import (
    BalanceBy,
    FanOutSettings,
    FleetSettings,
    Mode,
    OnRecreatedStream,
    ReadSettings,
    Retrieval,
    milliseconds,
)
from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.core.initial_position import require_past
from leasehold.core.position import LATEST
from leasehold.core.records.deaggregation import DeaggregationSettings
from leasehold.core.time_text import parse_time
from leasehold.errors import ConfigError
from leasehold.spark.query_settings import OnLeasesBehind, QuerySettings
from leasehold.spark.starting_positions import StartingPositions, parse_starting_positions

# Of a batch over all shards: the tasks of a batch hold that much in memory together.
BATCH_BYTES_DEFAULT: Final = 64 * 1024 * 1024
TRIGGER_DELAY_DEFAULT: Final = timedelta(minutes=15)  # as in Kafka's source
# A batch read waits for an end that is no further in the future than clocks differ.
CLOCK_ERROR_MS: Final = 5_000
_SIZE: Final = re.compile(r"\s*([0-9]+)\s*(b|kb|mb|gb)?\s*", re.IGNORECASE)
_SIZE_UNITS: Final = {"b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3}


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One option: its parser and its other names."""

    parse: Callable[[str], Any]
    aliases: tuple[str, ...] = ()


def parse_size(text: str) -> int:
    """Parse a number of bytes: "64mb", "512 kb", "1000000".

    >>> parse_size("64mb"), parse_size("1000")
    (67108864, 1000)
    """
    match = _SIZE.fullmatch(text)
    if match is None or int(match[1]) < 1:
        raise ConfigError("expected a size such as '64mb', or a number of bytes")
    return int(match[1]) * _SIZE_UNITS[(match[2] or "b").lower()]


def parse_count(text: str) -> int:
    """Parse a whole number above zero."""
    number = values.whole_number(text)
    if number < 1:
        raise ConfigError("expected a whole number above 0")
    return number


def parse_columns(text: str) -> tuple[str, ...]:
    """Parse a list of column names in any case, or `default`, `archive`, `all`."""
    sets = {"default": DEFAULT_COLUMNS, "archive": ARCHIVE_COLUMNS, "all": ALL_COLUMNS}
    if text.strip().lower() in sets:
        return sets[text.strip().lower()]
    known = {name.lower(): name for name in ALL_COLUMNS}
    wanted = [name.strip().lower() for name in text.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted or len(set(wanted)) < len(wanted):
        raise ConfigError(
            f"expected 'default', 'archive', 'all', or a list of {', '.join(ALL_COLUMNS)}, each once"
        )
    return tuple(known[name] for name in wanted)


def parse_lease_store(text: str) -> str:
    """Parse `dynamodb` in any case, or the URL of a SQLite file."""
    store = text.strip()
    return DYNAMODB if store.lower() == DYNAMODB else store


def parse_consumer_mode(text: str) -> Retrieval:
    """Parse how shards are read, in the words of Databricks and of awslabs."""
    modes = {
        "polling": Retrieval.POLLING,
        "getrecords": Retrieval.POLLING,
        "efo": Retrieval.FAN_OUT,
        "subscribetoshard": Retrieval.FAN_OUT,
        "fan_out": Retrieval.FAN_OUT,
        "auto": Retrieval.AUTO,
    }
    mode = modes.get(text.strip().lower())
    if mode is None:
        raise ConfigError(
            "expected polling (or GetRecords), efo (or SubscribeToShard), or auto: efo where it is possible"
        )
    return mode


_on_leases_behind = values.choice(OnLeasesBehind)
_on_recreated_stream = values.choice(OnRecreatedStream)
_mode = values.choice(Mode)
_balance_by = values.choice(BalanceBy)

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
    "coordinatorTable": OptionSpec(str),
    "workerMetricsTable": OptionSpec(str),
    "tableReadCapacity": OptionSpec(parse_count, ("initialLeaseTableReadCapacity",)),
    "tableWriteCapacity": OptionSpec(parse_count, ("initialLeaseTableWriteCapacity",)),
    "tableDeletionProtection": OptionSpec(values.boolean, ("leaseTableDeletionProtectionEnabled",)),
    "tablePointInTimeRecovery": OptionSpec(values.boolean, ("leaseTablePitrEnabled",)),
    "tableTags": OptionSpec(values.pairs),
    "startingPosition": OptionSpec(str, ("initialPosition", "kinesis.startingPosition", "startingOffsets")),
    "startingTimestamp": OptionSpec(parse_time, ("kinesis.startingTimestamp",)),
    "endingTimestamp": OptionSpec(parse_time),
    "maxRecordsPerTrigger": OptionSpec(parse_count, ("maxOffsetsPerTrigger", "maxRecordsPerBatch")),
    "minRecordsPerTrigger": OptionSpec(parse_count, ("minOffsetsPerTrigger",)),
    "maxTriggerDelay": OptionSpec(values.duration),
    "maxBytesPerTrigger": OptionSpec(parse_size),
    "maxArrivalSpanPerTrigger": OptionSpec(values.duration),
    "failOnDataLoss": OptionSpec(values.boolean, ("kinesis.failOnDataLoss",)),
    "onLeasesBehind": OptionSpec(_on_leases_behind),
    "onRecreatedStream": OptionSpec(_on_recreated_stream),
    "columns": OptionSpec(parse_columns),
    "numPartitions": OptionSpec(parse_count, ("maxPartitions",)),
    "consumerMode": OptionSpec(parse_consumer_mode, ("kinesis.consumerType",)),
    "consumerName": OptionSpec(str, ("kinesis.consumerName",)),
    "consumerARN": OptionSpec(str),
    "http2": OptionSpec(values.boolean),
    "pollInterval": OptionSpec(values.duration, ("minFetchPeriod", "kinesis.getRecords.fetchIntervalMs")),
    "maxFetchRate": OptionSpec(parse_size),
    "maxRecordsPerFetch": OptionSpec(
        parse_count, ("maxRecordPerRead", "kinesis.getRecords.numberOfRecordsPerFetch", "recordsPerCall")
    ),
    "mode": OptionSpec(_mode),
    "failoverAfter": OptionSpec(values.duration, ("failoverTime",)),
    "maxLeases": OptionSpec(parse_count, ("maxLeasesForWorker",)),
    "maxUtilisation": OptionSpec(parse_count, ("maxUtilization",)),
    "maxKbps": OptionSpec(parse_count, ("maxThroughputPerHostKBps",)),
    "balanceBy": OptionSpec(_balance_by),
    "balanceThreshold": OptionSpec(values.real_number, ("reBalanceThresholdPercentage",)),
    "balanceStep": OptionSpec(values.real_number, ("dampeningPercentage",)),
    "balanceEvery": OptionSpec(values.duration),
    "balanceOvershoot": OptionSpec(values.boolean, ("allowThroughputOvershoot",)),
    "newestReportWeight": OptionSpec(values.real_number, ("workerMetricsEMAAlpha",)),
}
# Options with which a query takes part in its fleet, or leads it, and the settings of the same meaning.
_FLEET_SETTINGS: Final = {
    "mode": "mode",
    "maxLeases": "max_leases",
    "onRecreatedStream": "on_recreated_stream",
    "maxUtilisation": "max_utilisation",
    "maxKbps": "max_kbps",
    "balanceBy": "balance_by",
    "balanceThreshold": "balance_threshold",
    "balanceStep": "balance_step",
    "balanceEvery": "balance_every",
    "balanceOvershoot": "balance_overshoot",
    "newestReportWeight": "newest_report_weight",
}
_BATCH_ONLY: Final = ("endingTimestamp",)
# Options of other connectors that this source does not need, or handles in another way.
_OTHER_CONNECTORS: Final = {
    "awsaccesskey": "credentials come from the AWS SDK's chain (environment, profile, role); set profile or roleArn",
    "awsaccesskeyid": "credentials come from the AWS SDK's chain (environment, profile, role); set profile or roleArn",
    "awssecretkey": "credentials come from the AWS SDK's chain (environment, profile, role); set profile or roleArn",
    "kinesis.awsaccesskeyid": "credentials come from the AWS SDK's chain; set profile or roleArn",
    "kinesis.awssecretkey": "credentials come from the AWS SDK's chain; set profile or roleArn",
    "minpartitions": "a shard is read by one task, so a batch cannot have more tasks than shards; set "
    "numPartitions, the most tasks of a batch",
    "avoidemptybatches": "an idle stream causes no batches; leave it out",
}


@dataclass(frozen=True, slots=True)
class TimeRange:
    """The time range of a batch read, in milliseconds since 1970."""

    start_ms: int | None = None  # None: from the oldest record
    end_ms: int | None = None  # None: until now
    problem: str | None = None  # why the options are not those of a batch read

    def require_readable(self, now_ms: int) -> None:
        """Raise ConfigError if a batch read cannot read this range."""
        if self.problem is not None:
            raise ConfigError(self.problem)
        require_past(self.start_ms, now_ms)
        if self.end_ms is not None and self.end_ms <= (self.start_ms or 0):
            raise ConfigError("endingTimestamp is not after the start: the range has no records")
        if self.end_ms is not None and self.end_ms > now_ms + CLOCK_ERROR_MS:
            seconds = -(-(self.end_ms - now_ms) // 1000)
            raise ConfigError(
                f"endingTimestamp is {seconds} s in the future: a batch read (spark.read) reads what has arrived; "
                "leave it out to read until now, read later, or check the zone of the time and this machine's clock"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The parsed options of one source. Spark pickles them for the driver's reader and for each task.

    It has more than 12 attributes because each group of settings is one.
    """

    stream: str
    application: str = ""
    connection: ConnectionSettings = field(default_factory=ConnectionSettings)
    query: QuerySettings
    time_range: TimeRange = TimeRange()
    limits: BatchLimits = field(default_factory=BatchLimits)
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    partitions: int | None = None  # None: the number of CPU cores of this machine
    fail_on_data_loss: bool = True
    fleet: FleetSettings = field(default_factory=FleetSettings)
    read: ReadSettings = field(default_factory=ReadSettings)
    fan_out: FanOutSettings = field(default_factory=FanOutSettings)
    deaggregation: DeaggregationSettings = field(default_factory=DeaggregationSettings)

    def require_application(self) -> None:
        """Raise ConfigError without an application name, which a streaming query needs for its leases."""
        if not self.application:
            raise ConfigError(
                "applicationName is missing: it names the lease table of the query, and members with the same name "
                "share the shards; .option('applicationName', 'billing')"
            )


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """Parse options as Spark passes them. Raises ConfigError if one is unknown, invalid or missing."""
    parsed = _parse_all(given)
    if not parsed.get("streamName"):
        raise ConfigError("streamName is missing: .option('streamName', 'orders')")
    positions = parse_starting_positions(parsed.get("startingPosition"), parsed.get("startingTimestamp"))
    poll_every = parsed.get("pollInterval", timedelta(seconds=1))
    return SourceOptions(
        stream=parsed["streamName"],
        application=parsed.get("applicationName", ""),
        connection=_connection(parsed),
        query=QuerySettings(
            initial=positions.initial,
            starting=positions.shards,
            poll_every=poll_every,
            on_leases_behind=parsed.get("onLeasesBehind", OnLeasesBehind.FAIL),
            max_leases=parsed.get("maxLeases"),
        ),
        time_range=_time_range(parsed, positions),
        limits=_limits(parsed),
        columns=parsed.get("columns", DEFAULT_COLUMNS),
        partitions=parsed.get("numPartitions"),
        fail_on_data_loss=parsed.get("failOnDataLoss", True),
        fleet=_fleet_settings(parsed),
        read=_read_settings(parsed, poll_every),
        fan_out=_fan_out_settings(parsed),
    )


def _time_range(parsed: Mapping[str, Any], positions: StartingPositions) -> TimeRange:
    problem = None
    if positions.shards or ("startingPosition" in parsed and positions.initial.sentinel == LATEST):
        problem = (
            f"option startingPosition={parsed['startingPosition']!r}: a batch read (spark.read) begins at the oldest "
            "record or at a time, for all shards; set startingTimestamp, or startingPosition=trim_horizon"
        )
    return TimeRange(positions.initial.timestamp_ms, parsed.get("endingTimestamp"), problem)


def _connection(parsed: Mapping[str, Any]) -> ConnectionSettings:
    return ConnectionSettings(
        leases=parsed.get("leases", DYNAMODB),
        lease_table=parsed.get("leaseTable"),
        coordinator_table=parsed.get("coordinatorTable"),
        worker_metrics_table=parsed.get("workerMetricsTable"),
        table_read_capacity=parsed.get("tableReadCapacity"),
        table_write_capacity=parsed.get("tableWriteCapacity"),
        table_deletion_protection=parsed.get("tableDeletionProtection", False),
        table_point_in_time_recovery=parsed.get("tablePointInTimeRecovery", False),
        table_tags=parsed.get("tableTags", ()),
        region=parsed.get("region"),
        profile=parsed.get("profile"),
        role_arn=parsed.get("roleArn"),
        role_external_id=parsed.get("roleExternalId"),
        role_session_name=parsed.get("roleSessionName"),
        kinesis_endpoint=parsed.get("endpointUrl"),
        dynamodb_endpoint=parsed.get("dynamodbEndpointUrl"),
    )


def _fleet_settings(parsed: Mapping[str, Any]) -> FleetSettings:
    default = FleetSettings()
    chosen = {setting: parsed[option] for option, setting in _FLEET_SETTINGS.items() if option in parsed}
    settings = FleetSettings(**chosen)
    if "failoverAfter" not in parsed:
        return settings
    failover_after = parsed["failoverAfter"]
    return replace(
        settings,
        failover_after=failover_after,
        refresh_every=min(default.refresh_every, failover_after / 4),
    )


def _parse_all(given: Mapping[str, str]) -> dict[str, Any]:
    names = {alias.lower(): name for name, spec in OPTIONS.items() for alias in (name, *spec.aliases)}
    found: dict[str, Any] = {}
    for key, text in given.items():
        name = names.get(key.lower())
        if name is None:
            raise ConfigError(_unknown(key))
        if name in found:
            raise ConfigError(f"option {name} is given twice, under two names")
        try:
            found[name] = OPTIONS[name].parse(text)
        except ConfigError as error:
            raise ConfigError(f"option {name}={text!r:.200}: {error}") from error
    return found


def _unknown(key: str) -> str:
    if key.lower() in _OTHER_CONNECTORS:
        return f"option {key}: {_OTHER_CONNECTORS[key.lower()]}"
    known = [alias for name, spec in OPTIONS.items() for alias in (name, *spec.aliases)]
    hint = did_you_mean(key, known, otherwise=f"known are {', '.join(OPTIONS)}")
    return f"unknown option {key}; {hint}"


def _limits(parsed: Mapping[str, Any]) -> BatchLimits:
    span, records_min = parsed.get("maxArrivalSpanPerTrigger"), _records_min(parsed)
    delay = parsed.get("maxTriggerDelay", TRIGGER_DELAY_DEFAULT)
    return BatchLimits(
        records=parsed.get("maxRecordsPerTrigger"),
        size_bytes=parsed.get("maxBytesPerTrigger", BATCH_BYTES_DEFAULT),
        arrival_span_ms=None if span is None else milliseconds(span),
        records_min=records_min,
        delay_ms_max=0 if records_min is None else milliseconds(delay),
    )


def _records_min(parsed: Mapping[str, Any]) -> int | None:
    least: int | None = parsed.get("minRecordsPerTrigger")
    most: int | None = parsed.get("maxRecordsPerTrigger")
    if least is None and "maxTriggerDelay" in parsed:
        raise ConfigError("option maxTriggerDelay needs minRecordsPerTrigger, for which a batch is delayed")
    if least is not None and most is not None and least > most:
        raise ConfigError(
            f"option minRecordsPerTrigger={least} is more than maxRecordsPerTrigger={most}: no batch could have it"
        )
    return least


def _fan_out_settings(parsed: Mapping[str, Any]) -> FanOutSettings:
    retrieval = parsed.get("consumerMode", Retrieval.POLLING)
    if retrieval is Retrieval.POLLING:
        # A query that is migrated, or switched to polling, may keep the options of its consumer.
        return FanOutSettings()
    return FanOutSettings(
        retrieval=retrieval,
        consumer_name=parsed.get("consumerName"),
        consumer_arn=parsed.get("consumerARN"),
        http2=parsed.get("http2", False),
    )


def _read_settings(parsed: Mapping[str, Any], poll_every: timedelta) -> ReadSettings:
    chosen: dict[str, Any] = {"idle_poll_every": max(poll_every, timedelta(milliseconds=200))}
    if "maxFetchRate" in parsed:
        chosen["bytes_per_second"] = parsed["maxFetchRate"]
    if "maxRecordsPerFetch" in parsed:
        chosen["records_per_call"] = parsed["maxRecordsPerFetch"]
    return ReadSettings(**chosen)
