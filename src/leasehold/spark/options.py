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

from leasehold.archive.columns import ALL_COLUMNS, ARCHIVE_COLUMNS, DEFAULT_COLUMNS, SLICE
from leasehold.config import values
from leasehold.config.connection import DYNAMODB, ConnectionSettings, KinesisProtocol
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
from leasehold.core.initial_position import position_name, require_past
from leasehold.core.model import InitialPosition
from leasehold.core.position import LATEST
from leasehold.core.records.deaggregation import DeaggregationSettings
from leasehold.core.stream_lists import StreamSettings, parse_stream_list, require_distinct, stream_name
from leasehold.core.time_text import parse_time
from leasehold.errors import ConfigError
from leasehold.spark.query_settings import OnLeasesBehind, QuerySettings
from leasehold.spark.starting_positions import ARCHIVE, StartingPositions, parse_starting_positions

# Of a batch over all shards: the tasks of a batch hold that much in memory together.
BATCH_BYTES_DEFAULT: Final = 64 * 1024 * 1024
TRIGGER_DELAY_DEFAULT: Final = timedelta(minutes=15)  # as in Kafka's source
# A batch read waits for an end that is no further in the future than clocks differ.
CLOCK_ERROR_MS: Final = 5_000
_SIZE: Final = re.compile(r"\s*([0-9]+)\s*(b|kb|mb|gb)?\s*", re.IGNORECASE)
_SIZE_UNITS: Final = {"b": 1, "kb": 1024, "mb": 1024**2, "gb": 1024**3}


@dataclass(frozen=True, slots=True)
class OptionSpec:
    """One option: its parser, and for docs/reference/spark-options.md what it means, its other names and its default.

    A default in backquotes is a value that can be given; any other is a description.
    """

    parse: Callable[[str], Any]
    text: str
    aliases: tuple[str, ...] = ()
    default: str = "none"


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
    "streamName": OptionSpec(
        str,
        "The name or the ARN of the stream. A list with commas names [several streams](docs/spark.md#several-streams).",
        aliases=("stream", "streamARN", "kinesis.streamName"),
        default="required",
    ),
    "streams": OptionSpec(
        parse_stream_list,
        "Instead of `streamName`: a list of [several streams](docs/spark.md#several-streams), or of one whose leases "
        "have the keys of several, as in `orders,returns=latest`.",
    ),
    "applicationName": OptionSpec(
        str,
        "The name of the lease table, as in the KCL. Queries and workers with one name share the shards.",
        aliases=("application", "consumerGroup", "kinesis.applicationName"),
        default="required for `readStream`",
    ),
    "region": OptionSpec(
        str,
        "The AWS region.",
        aliases=("regionName", "awsRegion", "kinesis.region", "kinesis.kinesisRegion"),
        default="as the AWS SDK finds it",
    ),
    "endpointUrl": OptionSpec(
        str,
        "Another endpoint of Kinesis.",
        aliases=("endpoint", "kinesisEndpointUrl", "kinesis.endpointUrl"),
        default="AWS",
    ),
    "kinesisProtocol": OptionSpec(
        values.choice(KinesisProtocol),
        "In which encoding GetRecords is requested: `auto`, `json` or `cbor`, as "
        "[in the worker](docs/worker.md#the-native-decoder).",
        default="auto",
    ),
    "dynamodbEndpointUrl": OptionSpec(
        str,
        "Another endpoint of DynamoDB.",
        aliases=("dynamodbEndpoint", "kinesis.dynamodb.endpointUrl"),
        default="AWS",
    ),
    "profile": OptionSpec(
        str,
        "The profile of the credentials, which come from the SDK's chain.",
        aliases=("awsProfile",),
        default="as the AWS SDK finds it",
    ),
    "roleArn": OptionSpec(
        str,
        "A role to assume.",
        aliases=("kinesis.stsRoleArn", "awsSTSRoleARN"),
    ),
    "roleExternalId": OptionSpec(
        str,
        "The external id of the role.",
    ),
    "roleSessionName": OptionSpec(
        str,
        "The name of the role's session.",
        aliases=("kinesis.stsSessionName", "awsSTSSessionName"),
        default="leasehold",
    ),
    "leases": OptionSpec(
        parse_lease_store,
        "`dynamodb`, or `sqlite:///leases.sqlite` for one machine (an absolute path starts with four "
        "slashes); one file for each application.",
        default="`dynamodb`",
    ),
    "leaseTable": OptionSpec(
        str,
        "The name of the lease table, if it is not that of the application.",
        aliases=("leaseTableName", "kinesis.dynamodb.tableName"),
        default="the application",
    ),
    "coordinatorTable": OptionSpec(
        str,
        "The coordinator table of a [KCL 3.0 to 3.4](docs/java.md#joining), if it has a name of its own.",
        default="application`-CoordinatorState`",
    ),
    "workerMetricsTable": OptionSpec(
        str,
        "Its table of worker reports, likewise.",
        default="application`-WorkerMetricStats`",
    ),
    "tableReadCapacity": OptionSpec(
        parse_count,
        "The provisioned read capacity of a lease table that the query creates.",
        aliases=("initialLeaseTableReadCapacity",),
        default="on demand",
    ),
    "tableWriteCapacity": OptionSpec(
        parse_count,
        "Its provisioned write capacity; both or neither.",
        aliases=("initialLeaseTableWriteCapacity",),
        default="on demand",
    ),
    "tableDeletionProtection": OptionSpec(
        values.boolean,
        "Deletion protection of a lease table that the query creates.",
        aliases=("leaseTableDeletionProtectionEnabled",),
        default="`false`",
    ),
    "tablePointInTimeRecovery": OptionSpec(
        values.boolean,
        "Point-in-time recovery, switched on at every start.",
        aliases=("leaseTablePitrEnabled",),
        default="`false`",
    ),
    "tableTags": OptionSpec(
        values.pairs,
        "The tags of a lease table that the query creates: `team=billing,stage=prod`.",
    ),
    "startingPosition": OptionSpec(
        str,
        "Where shards without a lease begin: `latest`, `trim_horizon` or `earliest`, a "
        '[time](docs/spark.md#times), or JSON with starts of single shards: `{"shardId-000000000000": '
        '"4959...", "default": "trim_horizon"}` reads after that record, and all other shards from '
        "`default` (`latest` if it is left out). `archive`: the oldest record of the "
        "[archive](docs/archive.md#history-then-the-stream), or the time of `startingTimestamp`. Existing "
        "leases win: a query continues where a KCL application of the same name stopped.",
        aliases=("initialPosition", "kinesis.startingPosition", "startingOffsets"),
        default="`latest`; for `spark.read` the oldest record",
    ),
    "startingTimestamp": OptionSpec(
        parse_time,
        "The time for `startingPosition=at_timestamp`, which may then be left out.",
        aliases=("kinesis.startingTimestamp",),
    ),
    "endingTimestamp": OptionSpec(
        parse_time,
        "The end of a batch read (`spark.read`): a time with its zone. An end in the future is refused.",
        default="now",
    ),
    "archive": OptionSpec(
        str,
        "The URL of the [stream's archive](docs/archive.md#history-then-the-stream): records that the "
        "stream no longer holds are read there. Not with `consumerMode=efo`.",
    ),
    "archivePrefix": OptionSpec(
        str,
        "The prefix of the archive below its URL.",
    ),
    "s3Endpoint": OptionSpec(
        str,
        "An S3 server for the archive that is not AWS.",
        default="AWS",
    ),
    "maxRecordsPerTrigger": OptionSpec(
        parse_count,
        "The most records of a batch, divided equally among its shards, at least one record each.",
        aliases=("maxOffsetsPerTrigger", "maxRecordsPerBatch"),
        default="no limit",
    ),
    "minRecordsPerTrigger": OptionSpec(
        parse_count,
        "Delay a batch until so many records wait in all shards of the query, as in Kafka's source; an "
        "aggregate counts as one. The driver reads records to count them, and tasks read them again, so "
        "this suits streams with little traffic. The first batch of a run, and runs with "
        "`Trigger.AvailableNow` or `once`, do not wait.",
        aliases=("minOffsetsPerTrigger",),
    ),
    "maxTriggerDelay": OptionSpec(
        values.duration,
        "The longest time after the last batch for which `minRecordsPerTrigger` delays a batch.",
        default="`15m`",
    ),
    "maxBytesPerTrigger": OptionSpec(
        parse_size,
        "The most bytes of a batch, because tasks hold a slice in memory until it is pinned; at least 256 "
        "kB a shard.",
        default="`64mb`",
    ),
    "maxArrivalSpanPerTrigger": OptionSpec(
        values.duration,
        "The longest time between the first and last arrival in a shard's slice, such as `5m`.",
        default="no limit",
    ),
    "failOnDataLoss": OptionSpec(
        values.boolean,
        "Stop when records were trimmed before they were read. With `false`, continue with the next "
        "available record.",
        aliases=("kinesis.failOnDataLoss",),
        default="`true`",
    ),
    "onLeasesBehind": OptionSpec(
        _on_leases_behind,
        "What to do [when the lease table was lost or "
        "restored](docs/spark.md#when-the-lease-table-is-lost): `fail`, `offsets`, `leases`.",
        default="`fail`",
    ),
    "onRecreatedStream": OptionSpec(
        _on_recreated_stream,
        "What to do when the stream was [deleted and created "
        "again](docs/worker.md#a-stream-that-was-deleted-and-created-again): `fail` or `start_over`.",
        default="`fail`",
    ),
    "columns": OptionSpec(
        parse_columns,
        "The [columns](docs/spark.md#columns): `default`, `archive`, `all`, or names.",
        default="`default`",
    ),
    "numPartitions": OptionSpec(
        parse_count,
        "The most tasks of a batch: set it to the cluster's task slots. A shard is read by one task, so a "
        "batch has no more tasks than shards, and Kafka's `minPartitions` is refused.",
        aliases=("maxPartitions",),
        default="the cores of the driver",
    ),
    "consumerMode": OptionSpec(
        parse_consumer_mode,
        "How shards are read: `polling` or `GetRecords`; `efo` or `SubscribeToShard`, [enhanced "
        "fan-out](docs/spark.md#enhanced-fan-out); `auto`: `efo`, or polling where Kinesis refuses it.",
        aliases=("kinesis.consumerType",),
        default="`polling`",
    ),
    "consumerName": OptionSpec(
        str,
        "The registered consumer for fan-out. It is registered if it does not exist.",
        aliases=("kinesis.consumerName",),
        default="the application",
    ),
    "consumerARN": OptionSpec(
        str,
        "A registered consumer that exists, instead of a name.",
    ),
    "http2": OptionSpec(
        values.boolean,
        "Whether to subscribe over HTTP/2: [fewer connections, more processor "
        "time](docs/worker.md#enhanced-fan-out). Needs the extra `http2` on the driver and the executors.",
        default="`false`",
    ),
    "pollInterval": OptionSpec(
        values.duration,
        "How often a quiet shard is polled: one call for one record. After records it is polled every 250 "
        "ms at first, and more rarely the longer it is quiet.",
        aliases=("minFetchPeriod", "kinesis.getRecords.fetchIntervalMs"),
        default="`1s`",
    ),
    "maxFetchRate": OptionSpec(
        parse_size,
        "The most bytes a second and shard.",
        default="`2000000`",
    ),
    "maxRecordsPerFetch": OptionSpec(
        parse_count,
        "The most records of one call, up to 10,000.",
        aliases=("maxRecordPerRead", "kinesis.getRecords.numberOfRecordsPerFetch", "recordsPerCall"),
        default="`10000`",
    ),
    "mode": OptionSpec(
        _mode,
        "How leases are assigned: `auto` joins the existing fleet and gives a new fleet a leader; "
        "`leader`; `peer`.",
        default="`auto`",
    ),
    "failoverAfter": OptionSpec(
        values.duration,
        "The failover time; the same for all members.",
        aliases=("failoverTime",),
        default="`10s`",
    ),
    "maxLeases": OptionSpec(
        parse_count,
        "The most leases of this query.",
        aliases=("maxLeasesForWorker",),
        default="no limit",
    ),
    "maxUtilisation": OptionSpec(
        parse_count,
        "Percent of its time that this query wants to spend in batches; above it, a leader gives some of "
        "its shards to others. 100 is no limit.",
        aliases=("maxUtilization",),
        default="`100`",
    ),
    "maxKbps": OptionSpec(
        parse_count,
        "As a leader: the most throughput of a member, in kB a second. This and the next ones are the "
        "[settings of balancing](docs/reference/settings.md#fleet).",
        aliases=("maxThroughputPerHostKBps",),
        default="no limit",
    ),
    "balanceBy": OptionSpec(
        _balance_by,
        "As a leader: what is evened out, `load` or `count`.",
        default="`load`",
    ),
    "balanceThreshold": OptionSpec(
        values.real_number,
        "As a leader: how far a load is from the mean when balancing starts, in percent.",
        aliases=("reBalanceThresholdPercentage",),
        default="`10`",
    ),
    "balanceStep": OptionSpec(
        values.real_number,
        "As a leader: percent of a member's excess load that one round moves.",
        aliases=("dampeningPercentage",),
        default="`100`",
    ),
    "balanceEvery": OptionSpec(
        values.duration,
        "As a leader: the least time between two rounds.",
        default="`1s`",
    ),
    "balanceOvershoot": OptionSpec(
        values.boolean,
        "As a leader: whether a lease larger than the excess may move.",
        aliases=("allowThroughputOvershoot",),
        default="`true`",
    ),
    "newestReportWeight": OptionSpec(
        values.real_number,
        "As a leader: the weight of a member's newest report.",
        aliases=("workerMetricsEMAAlpha",),
        default="`0.5`",
    ),
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

    stream: str = ""
    streams: tuple[StreamSettings, ...] = ()  # instead of `stream`: several, whose leases share a table
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

    @property
    def is_multi_stream(self) -> bool:
        """Whether lease keys contain the stream, as in the KCL's multi-stream mode."""
        return bool(self.streams)

    @property
    def names(self) -> tuple[str, ...]:
        """The streams, as the options name them."""
        return tuple(each.name for each in self.streams) or (self.stream,)

    @property
    def initial_positions(self) -> Mapping[str, InitialPosition]:
        """The start of each stream, by its name in the options."""
        starts = {each.name: each.initial_position or self.query.initial for each in self.streams}
        return starts or {self.stream: self.query.initial}

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
    stream, streams = _streams(parsed)
    positions = parse_starting_positions(parsed.get("startingPosition"), parsed.get("startingTimestamp"))
    _check_archive(parsed)
    if streams:
        _check_several(parsed, streams, positions)
    poll_every = parsed.get("pollInterval", timedelta(seconds=1))
    return SourceOptions(
        stream=stream,
        streams=streams,
        application=parsed.get("applicationName", ""),
        connection=_connection(parsed),
        query=QuerySettings(
            initial=positions.initial,
            starting=positions.shards,
            poll_every=poll_every,
            on_leases_behind=parsed.get("onLeasesBehind", OnLeasesBehind.FAIL),
            max_leases=parsed.get("maxLeases"),
        ),
        time_range=_time_range(parsed, positions, streams),
        limits=_limits(parsed),
        columns=parsed.get("columns", DEFAULT_COLUMNS),
        partitions=parsed.get("numPartitions"),
        fail_on_data_loss=parsed.get("failOnDataLoss", True),
        fleet=_fleet_settings(parsed),
        read=_read_settings(parsed, poll_every),
        fan_out=_fan_out_settings(parsed),
    )


def _streams(parsed: Mapping[str, Any]) -> tuple[str, tuple[StreamSettings, ...]]:
    """The only stream, or several streams. A list of one is a list: its leases have the keys of several streams."""
    name, streams = parsed.get("streamName", "").strip(), parsed.get("streams", ())
    if name and streams:
        raise ConfigError("streamName and streams are both given: give one of the two")
    if not name and not streams:
        raise ConfigError("streamName is missing: .option('streamName', 'orders')")
    if "," not in name:
        return name, streams
    try:
        return "", parse_stream_list(name)
    except ConfigError as error:
        raise ConfigError(f"option streamName={name!r:.200}: {error}") from error


def _check_several(
    parsed: Mapping[str, Any], streams: tuple[StreamSettings, ...], positions: StartingPositions
) -> None:
    require_distinct(streams)
    if "archive" in parsed:
        raise ConfigError(
            "option archive with several streams: an archive has one stream; run a query for each stream"
        )
    if positions.shards:
        raise ConfigError(
            f"option startingPosition={parsed['startingPosition']!r:.200} with several streams: they have shards of "
            "the same ids; give a start to a stream, as in streamName='orders,returns=latest'"
        )
    is_polling = parsed.get("consumerMode", Retrieval.POLLING) is Retrieval.POLLING
    if "consumerARN" in parsed and not is_polling:
        raise ConfigError(
            "option consumerARN with several streams: it belongs to one of them; give consumerName, which is "
            "registered for each stream"
        )
    names = [stream_name(each.name) for each in streams]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice and SLICE in parsed.get("columns", ()):
        raise ConfigError(
            f"two streams have the name {twice[0]}, and the archive names the folder of a stream after it: archive "
            "them with two queries, or name a stream only once"
        )


def _check_archive(parsed: Mapping[str, Any]) -> None:
    if "archive" not in parsed and position_name(parsed.get("startingPosition", "")) == ARCHIVE:
        raise ConfigError(
            "option startingPosition=archive: set archive to the URL of the stream's archive, such as 's3://bucket/orders'"
        )
    if "archive" in parsed and parsed.get("consumerMode", Retrieval.POLLING) is not Retrieval.POLLING:
        raise ConfigError(
            "option archive with consumerMode=efo: history is read by polling; set consumerMode=polling, and start the "
            "query again with efo when the archive was read"
        )


def _time_range(
    parsed: Mapping[str, Any], positions: StartingPositions, streams: tuple[StreamSettings, ...]
) -> TimeRange:
    problem = None
    if any(each.initial_position is not None for each in streams):
        problem = (
            "a stream has a start of its own: a batch read (spark.read) begins at the oldest record or at a time, for "
            "all streams; set startingTimestamp"
        )
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
        s3_endpoint=parsed.get("s3Endpoint"),
        archive=parsed.get("archive"),
        archive_prefix=parsed.get("archivePrefix", ""),
        kinesis_protocol=parsed.get("kinesisProtocol", KinesisProtocol.AUTO),
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
