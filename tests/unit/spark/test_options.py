"""The options of the source."""

from datetime import timedelta

import pytest

from leasehold.archive.columns import ALL_COLUMNS, DEFAULT_COLUMNS
from leasehold.config.settings import BalanceBy, FanOutSettings, FleetSettings, OnRecreatedStream, Retrieval
from leasehold.core.exactly_once.query_offset import ReadStart
from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.core.model import InitialPosition, ShardId
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Position
from leasehold.errors import ConfigError
from leasehold.spark.options import BATCH_BYTES_DEFAULT, OPTIONS, SourceOptions, source_options
from leasehold.spark.query_settings import OnLeasesBehind

NEEDED = {"streamName": "orders", "applicationName": "billing"}
NUMBER = "49590338271490256608559692538361571095921575989136588898"
NEW_YEAR_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


def options(**given: str) -> SourceOptions:
    return source_options(NEEDED | given)


def test_the_reaction_to_a_recreated_stream() -> None:
    """The query fails by default."""
    assert options().fleet.on_recreated_stream is OnRecreatedStream.FAIL
    assert options(onRecreatedStream="start_over").fleet.on_recreated_stream is OnRecreatedStream.START_OVER


def test_how_the_lease_table_is_created() -> None:
    """Capacity, protection, recovery and tags, under our names and the KCL's."""
    connection = options(
        initialLeaseTableReadCapacity="5",
        tableWriteCapacity="6",
        tableDeletionProtection="true",
        leaseTablePitrEnabled="true",
        tableTags="team=billing,stage=prod",
    ).connection
    assert (connection.table_read_capacity, connection.table_write_capacity) == (5, 6)
    assert connection.table_deletion_protection
    assert connection.table_point_in_time_recovery
    assert connection.table_tags == (("team", "billing"), ("stage", "prod"))
    with pytest.raises(ConfigError, match="set both"):
        options(tableReadCapacity="5")


def test_the_tables_of_a_fleet_can_be_named() -> None:
    """The lease table, and the two more tables of a KCL 3.0 to 3.4."""
    connection = options(leaseTable="leases", coordinatorTable="locks", workerMetricsTable="loads").connection
    assert connection.lease_table == "leases"
    assert connection.coordinator_table == "locks"
    assert connection.worker_metrics_table == "loads"


def test_the_defaults() -> None:
    """Start at the tip, fail on data loss, limit the batch size, and keep leases in DynamoDB."""
    chosen = options()
    assert chosen.query.initial == InitialPosition(LATEST)
    assert chosen.fail_on_data_loss
    assert chosen.limits == BatchLimits(size_bytes=BATCH_BYTES_DEFAULT)
    assert chosen.connection.leases == "dynamodb"
    assert chosen.columns == DEFAULT_COLUMNS
    assert chosen.query.on_leases_behind is OnLeasesBehind.FAIL


CAPACITY = ("tableReadCapacity", "tableWriteCapacity")


@pytest.mark.parametrize(
    "name", [alias for known in OPTIONS.values() for alias in known.aliases] + list(OPTIONS)
)
def test_every_name_is_accepted_in_any_case(name: str) -> None:
    """Spark passes options in lower case. No two options share a name."""
    values = (
        "10",
        "orders",
        "2026-11-15T12:00:00Z",
        "latest",
        "false",
        "1s",
        "all",
        "fail",
        "dynamodb",
        "auto",
        "polling",
        "count",
        "0.5",
        "team=billing",
    )
    given = {key: value for key, value in NEEDED.items() if name not in _names_of(key)}
    if name == "streams":
        del given["streamName"]  # one of the two is given
    if name == "maxTriggerDelay":
        given["minRecordsPerTrigger"] = "1"  # without it, the delay would have no effect
    for one, other in (CAPACITY, CAPACITY[::-1]):
        if name in _names_of(one):
            given[other] = "7"  # the two are set together
    errors = []
    for value in values:
        try:
            source_options(given | {name.lower(): value})
        except ConfigError as error:
            errors.append(str(error))
    assert len(errors) < len(values), errors


def _names_of(option: str) -> tuple[str, ...]:
    return (option, *OPTIONS[option].aliases)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"maxRecordsPerTriger": "5"}, "did you mean maxRecordsPerTrigger?"),
        ({"qwertz": "5"}, "known are streamName, streams, applicationName"),
        ({"awsAccessKey": "AKIA"}, "credentials come from the AWS SDK's chain"),
        ({"initialPosition": "latest", "startingPosition": "latest"}, "startingPosition is given twice"),
        ({"maxRecordsPerTrigger": "0"}, "maxRecordsPerTrigger='0': expected a whole number above 0"),
        ({"maxBytesPerTrigger": "5 furlongs"}, "expected a size such as '64mb'"),
        ({"columns": "data,data"}, "each once"),
        ({"columns": "date"}, "partitionKey, data, stream"),
        ({"startingPosition": "archive"}, "set archive to the URL"),
        ({"archive": "s3://bucket/orders", "consumerMode": "efo"}, "history is read by polling"),
        ({"startingPosition": "yesterday"}, "expected 'trim_horizon', 'latest'"),
        ({"startingPosition": "{"}, "it is not valid JSON; expected 'trim_horizon', 'latest'"),
        ({"startingPosition": "{}"}, "it names no shard; expected"),
        (
            {"startingPosition": '{"at_time": "2026-01-01T00:00:00Z"}'},
            "'at_time' is not the id of a shard; expected",
        ),
        ({"startingPosition": '{"shardId-1": "trim_horizon"}'}, "'shardId-1' is not the id of a shard"),
        ({"startingPosition": '{"shardId-000000000000": "12x"}'}, "it is not a time with its zone"),
        (
            {"startingPosition": '{"shardId-000000000000": "1767225600"}'},
            "is not a sequence number of Kinesis",
        ),
        ({"startingPosition": '{"shardId-000000000000": 7}'}, "must be text in quotes"),
        ({"startingPosition": '{"shardId-000000000000": "latest"}'}, "it is not a time"),
        ({"startingPosition": "at_timestamp"}, "at_timestamp has no time: set startingTimestamp"),
        (
            {"startingPosition": "trim_horizon", "startingTimestamp": "2026-01-01T00:00:00Z"},
            "startingTimestamp is given too",
        ),
        ({"startingTimestamp": "noon"}, "a time with its zone"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss='perhaps'"),
        ({"onLeasesBehind": "ignore"}, "onLeasesBehind='ignore'"),
        ({"pollInterval": "soon"}, "pollInterval='soon'"),
    ],
)
def test_an_invalid_option_is_an_error_with_a_remedy(given: dict[str, str], sentence: str) -> None:
    """The error names the option."""
    with pytest.raises(ConfigError) as raised:
        options(**given)
    assert sentence in str(raised.value)


def test_errors_never_contain_credentials() -> None:
    """The value of an unknown option may be a secret."""
    with pytest.raises(ConfigError) as raised:
        options(awsSecretKey="hush")
    assert "hush" not in str(raised.value)


def test_a_stream_is_required_and_an_application_for_streaming() -> None:
    """The error names the missing option."""
    with pytest.raises(ConfigError, match="streamName is missing"):
        source_options({"applicationName": "billing"})
    with pytest.raises(ConfigError, match="applicationName is missing"):
        source_options({"streamName": "orders"}).require_application()


SEVERAL = {"streamName": "orders, returns=latest", "startingPosition": "trim_horizon"}


def test_several_streams() -> None:
    """In the words of Databricks and of a worker. A list of one has the lease keys of several, too."""
    for given in (SEVERAL, {"streams": SEVERAL["streamName"], "startingPosition": "trim_horizon"}):
        found = source_options(given)
        assert found.is_multi_stream
        assert found.initial_positions == {
            "orders": InitialPosition(TRIM_HORIZON),
            "returns": InitialPosition(LATEST),
        }
    assert source_options({"streams": "orders"}).is_multi_stream
    one = source_options({"streamName": "orders"})
    assert (one.is_multi_stream, one.names) == (False, ("orders",))


ARNS = ",".join(f"arn:aws:kinesis:us-east-1:{account}:stream/orders" for account in (1, 2))


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"streams": "a", "streamName": "b"}, "both given"),
        ({"streamName": "orders,"}, "one of them has no name"),
        ({"streamName": "orders,returns,orders"}, "orders is listed twice"),
        # An identifier stands for its name, whichever account it contains.
        ({"streamName": "orders,999999999999:orders:1"}, "orders is listed twice"),
        ({"streamName": "a,b", "startingPosition": f'{{"shardId-000000000000": "{NUMBER}"}}'}, "same ids"),
        ({"streamName": "a,b", "archive": "s3://b/x"}, "run a query for each stream"),
        ({"streamName": "a,b", "startingPosition": "archive", "archive": "x"}, "run a query for each stream"),
        ({"streamName": "a,b", "consumerMode": "efo", "consumerARN": "arn:x"}, "give consumerName"),
        ({"streamName": ARNS, "columns": "archive"}, "archive them with two queries"),
    ],
)
def test_what_several_streams_cannot_have(given: dict[str, str], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        source_options(given)


def test_a_batch_read_of_several_streams_has_one_start() -> None:
    source_options({"streamName": "a,b"}).time_range.require_readable(0)
    with pytest.raises(ConfigError, match="has a start of its own"):
        source_options({"streamName": "a,b=trim_horizon"}).time_range.require_readable(0)


def test_starting_positions() -> None:
    """One position for all shards, a time, or positions for single shards and a default."""
    assert options(startingPosition="EARLIEST").query.initial == InitialPosition(TRIM_HORIZON)
    assert options(startingTimestamp="1970-01-01T00:00:01Z").query.initial.timestamp_ms == 1000
    history = {"startingPosition": "archive", "archive": "s3://bucket/orders"}
    assert options(**history).query.initial == InitialPosition(TRIM_HORIZON)
    at_time = options(**history, startingTimestamp="1970-01-01T00:00:01Z")
    assert at_time.query.initial == InitialPosition(AT_TIMESTAMP, 1000)
    assert at_time.connection.archive == "s3://bucket/orders"
    mixed = options(
        startingPosition=f'{{"shardId-000000000000": "{NUMBER}/3", "shardId-000000000001": "trim_horizon", '
        '"shardId-000000000002": "1970-01-01T00:00:01Z", "default": "latest"}'
    ).query
    assert mixed.initial == InitialPosition(LATEST)
    assert mixed.starting == {
        ShardId("shardId-000000000000"): ReadStart(Position(NUMBER, 3)),
        ShardId("shardId-000000000001"): ReadStart(TRIM_HORIZON),
        ShardId("shardId-000000000002"): ReadStart(AT_TIMESTAMP, 1000),
    }


@pytest.mark.parametrize(
    "text",
    [
        '{"at_timestamp": "06/25/2020 10:23:45 PDT", "format": "MM/dd/yyyy HH:mm:ss ZZZ"}',
        '{"at_timestamp": "2020-06-25T17:23:45Z"}',
        "AT_TIMESTAMP 2020-06-25T17:23:45Z",
        "2020-06-25T10:23:45-07:00",
    ],
)
def test_starting_times_of_other_connectors(text: str) -> None:
    """The forms that Databricks and awslabs document. None of them is taken for a list of shards."""
    chosen = options(initialPosition=text)
    assert chosen.query.initial == InitialPosition(AT_TIMESTAMP, 1_593_105_825_000)
    assert not chosen.query.starting
    assert chosen.time_range.start_ms == 1_593_105_825_000


def test_a_start_in_the_future_is_refused() -> None:
    """For all shards, for one shard, and for a batch read."""
    ahead = options(startingTimestamp="2026-01-01T00:00:01Z")
    shard = options(startingPosition='{"shardId-000000000000": "2026-01-01T00:00:01Z"}')
    for future in (ahead, shard):
        with pytest.raises(ConfigError, match=r"1 s in the future.*write latest"):
            future.query.require_past_start(NEW_YEAR_MS)
        future.query.require_past_start(NEW_YEAR_MS + 1000)
    with pytest.raises(ConfigError, match="1 s in the future"):
        ahead.time_range.require_readable(NEW_YEAR_MS)
    ahead.time_range.require_readable(NEW_YEAR_MS + 1000)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"startingPosition": "latest"}, "begins at the oldest record or at a time"),
        ({"startingPosition": '{"shardId-000000000000": "trim_horizon"}'}, "for all shards"),
        (
            {"startingTimestamp": "2025-01-01T00:00:00Z", "endingTimestamp": "2025-01-01T00:00:00Z"},
            "endingTimestamp is not after the start",
        ),
        ({"endingTimestamp": "2026-01-01T00:01:00Z"}, "endingTimestamp is 60 s in the future"),
    ],
)
def test_a_batch_read_refuses_starts_that_it_cannot_use(given: dict[str, str], sentence: str) -> None:
    """It would otherwise read from the oldest record."""
    with pytest.raises(ConfigError, match=sentence):
        options(**given).time_range.require_readable(NEW_YEAR_MS)
    options().time_range.require_readable(NEW_YEAR_MS)
    options(startingPosition="earliest").time_range.require_readable(NEW_YEAR_MS)


def test_a_batch_read_waits_no_longer_than_clocks_differ() -> None:
    """An end that another machine calls "now" may be a moment ahead."""
    options(endingTimestamp="2026-01-01T00:00:03Z").time_range.require_readable(NEW_YEAR_MS)


@pytest.mark.parametrize(
    "given",
    [{"consumerMode": "polling"}, {"kinesis.consumerType": "GetRecords"}, {"consumermode": "Polling"}],
)
def test_polling_is_accepted_in_the_words_of_other_connectors(given: dict[str, str]) -> None:
    """A migrated query need not leave it out."""
    assert options(**given) == options()


def test_the_least_number_of_records_of_a_batch() -> None:
    """By the names of Kafka's source, and with its default delay."""
    given = options(minOffsetsPerTrigger="100").limits
    assert (given.records_min, given.delay_ms_max) == (100, 15 * 60_000)
    assert options(minRecordsPerTrigger="100", maxTriggerDelay="30s").limits.delay_ms_max == 30_000
    assert options().limits.records_min is None
    with pytest.raises(ConfigError, match="maxTriggerDelay needs minRecordsPerTrigger"):
        options(maxTriggerDelay="30s")
    with pytest.raises(ConfigError, match="no batch could have it"):
        options(minRecordsPerTrigger="100", maxRecordsPerTrigger="99")


@pytest.mark.parametrize(
    "given",
    [
        {"consumerMode": "efo", "consumerName": "spark"},
        {"kinesis.consumerType": "SubscribeToShard", "kinesis.consumerName": "spark"},
    ],
)
def test_fan_out_is_accepted_in_the_words_of_other_connectors(given: dict[str, str]) -> None:
    assert options(**given).fan_out == FanOutSettings(retrieval=Retrieval.FAN_OUT, consumer_name="spark")


def test_http2_has_the_name_and_the_meaning_of_the_setting_of_a_worker() -> None:
    """The driver and the tasks open fan-out with it."""
    given = options(consumerMode="efo", http2="true")
    assert given.fan_out == FanOutSettings(retrieval=Retrieval.FAN_OUT, http2=True)
    assert options(consumerMode="efo").fan_out.http2 is False
    with pytest.raises(ConfigError, match="http2"):
        options(consumerMode="efo", http2="sometimes")


def test_an_unknown_consumer_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected polling .*efo"):
        options(consumerMode="push")


def test_a_query_that_polls_may_keep_the_name_of_its_consumer() -> None:
    """Awslabs' option is common in migrated queries."""
    assert options(**{"kinesis.consumerName": "spark"}) == options()
    assert options(consumerMode="polling", http2="true") == options()


def test_a_minimum_of_partitions_is_refused() -> None:
    """A shard is not divided among tasks, so it cannot be kept. It must not be taken for a maximum."""
    with pytest.raises(ConfigError, match=r"minPartitions: a shard is read by one task.*numPartitions"):
        options(minPartitions="8")


def test_the_shards_of_a_starting_position_must_exist() -> None:
    """A misspelt shard would otherwise begin at the default."""
    named = options(startingPosition='{"shardId-000000000007": "trim_horizon"}').query
    named.require_known_shards({ShardId("shardId-000000000007")})
    with pytest.raises(
        ConfigError, match="names shardId-000000000007, but the stream has shardId-000000000000"
    ):
        named.require_known_shards({ShardId("shardId-000000000000")})


def test_sizes_durations_and_columns_are_parsed() -> None:
    chosen = options(
        maxBytesPerTrigger="8 MB",
        maxArrivalSpanPerTrigger="5m",
        pollInterval="500ms",
        columns="all",
        failoverAfter="4s",
        leases="sqlite:leases.db",
        maxLeases="3",
    )
    assert chosen.limits == BatchLimits(None, 8 * 1024**2, 300_000)
    assert chosen.query.poll_every == timedelta(milliseconds=500)
    assert chosen.columns == ALL_COLUMNS
    assert chosen.fleet.failover_after == timedelta(seconds=4)
    assert chosen.connection.lease_file == "leases.db"
    assert chosen.fleet.max_leases == chosen.query.max_leases == 3


def test_a_query_takes_part_in_balancing_by_its_options() -> None:
    """A query may lead its fleet: each option is a setting of its member."""
    chosen = options(
        maxUtilization="80",
        maxKbps="700",
        balanceBy="count",
        balanceThreshold="20",
        balanceStep="60",
        balanceEvery="1m",
        balanceOvershoot="false",
        newestReportWeight="0.25",
    )
    assert chosen.fleet == FleetSettings(
        max_utilisation=80,
        max_kbps=700,
        balance_by=BalanceBy.COUNT,
        balance_threshold=20,
        balance_step=60,
        balance_every=timedelta(minutes=1),
        balance_overshoot=False,
        newest_report_weight=0.25,
    )
