"""Every key of a KCL properties file has a setting, or a sentence that says why not."""

import tomllib
from pathlib import Path

import pytest

from leasehold.config.java_properties import parse_properties
from leasehold.errors import ConfigError
from leasehold.multilang import property_keys
from leasehold.multilang.daemon import DaemonOptions, make_daemon, read_properties
from leasehold.multilang.kcl_properties import KclProperties, consumer_options, translate_properties
from leasehold.multilang.toml_export import to_toml
from leasehold.worker.options import OPTIONS, consumer_settings

REQUIRED = "executableName = app.py\napplicationName = billing\nstreamName = orders\n"
JAVA_PAGE = Path(__file__).parents[3] / "docs" / "java.md"


def translate(text: str = "", required: str = REQUIRED) -> KclProperties:
    return translate_properties(parse_properties((required + text).encode()))


def notes(text: str) -> str:
    return "\n".join(map(str, translate(text).notes))


def test_the_defaults_are_those_of_the_kcl() -> None:
    """It begins at LATEST, subscribes, and publishes all metrics."""
    result = translate()
    assert result.settings == {
        "application": "billing",
        "stream": "orders",
        "initial_position": "latest",
        "retrieval": "fan_out",
        "cloudwatch_metrics": "detailed",
    }
    assert (result.command, result.timeout_s, result.with_empty_batches) == (("app.py",), None, False)
    assert consumer_options(result)["max_records"] == 10_000


@pytest.mark.parametrize(
    ("given", "dimensions"),
    [
        ("ALL", None),
        ("ShardId, WorkerIdentifier", "Operation,ShardId,WorkerIdentifier"),
        ("Operation", "Operation"),
    ],
)
def test_the_dimensions_of_metrics_are_chosen(given: str, dimensions: str | None) -> None:
    """The KCL always keeps the operation."""
    settings = translate(f"metricsEnabledDimensions = {given}\n").settings
    assert settings.get("metrics_dimensions") == dimensions


def test_every_setting_exists() -> None:
    """The names in the table are those of a consumer."""
    assert {name for name, _ in property_keys.SETTINGS.values()} <= OPTIONS.keys()


@pytest.mark.parametrize("key", sorted(property_keys.KNOWN - property_keys.REFUSED.keys()))
def test_a_known_key_is_not_reported_as_unknown(key: str) -> None:
    """Each key of the KCL is translated, or its note gives a reason."""
    value = {"initialPositionInStream": "LATEST", "retrievalMode": "FANOUT", "metricsLevel": "NONE"}.get(
        key, "1"
    )
    value = "CLIENT_VERSION_CONFIG_3X" if key == "clientVersionConfig" else value
    value = "DefaultCredentialsProvider" if key.startswith("AwsCredentialsProvider") else value
    text = f"{key} = {value}\n" + (
        "AwsCredentialsProvider = DefaultCredentialsProvider" if "Aws" in key else ""
    )
    assert "is not a property" not in notes(text)


@pytest.mark.parametrize(
    ("line", "setting", "value"),
    [
        ("failoverTimeMillis = 20000", "failover_after", "20s"),
        ("failoverTimeMillis = 3000", "refresh_every", "750ms"),
        ("cleanupLeasesUponShardCompletion = false", "clean_up", False),
        ("disableWorkerMetrics = y", "measure_load", False),
        ("maxRecords = 100", "max_records", 100),
        ("maxRecords = 100", "retrieval", "polling"),
        ("retryGetRecordsInSeconds = 5", "retrieval", "polling"),
        ("maxRecords = 100\nretrievalMode = FanOut", "retrieval", "fan_out"),
        ("pollingConfig.idleTimeBetweenReadsInMillis = 50", "idle_poll_every", "200ms"),
        ("retrievalMode = FANOUT\nfanoutConfig.consumerName = me", "consumer_name", "me"),
        ("initialPositionInStream = trim_horizon", "initial_position", "trim_horizon"),
        ("initialPositionInStreamExtended = 1636609142", "initial_position", "2021-11-11T05:39:02Z"),
        (
            "streamArn = arn:aws:kinesis:eu-west-1:1:stream/o",
            "stream",
            "arn:aws:kinesis:eu-west-1:1:stream/o",
        ),
        ("varianceBalancingFrequency = 3", "balance_every", "60s"),
        ("clientVersionConfig = CLIENT_VERSION_CONFIG_COMPATIBLE_WITH_2X_PHASE1", "mode", "peer"),
        ("kinesisClient.region = eu-west-1", "region", "eu-west-1"),
        ("shutdownGraceMillis = 5000", "grace", "5s"),
        ("shutdownGraceMillis = 0", "grace", "1ms"),
        ("AwsCredentialsProvider = ProfileCredentialsProvider|ops", "profile", "ops"),
        ("AWSCredentialsProvider = DefaultAWSCredentialsProviderChain", "retrieval", "fan_out"),
        ("workerId = a\\u0062c", "worker_id", "abc"),
    ],
)
def test_a_key_becomes_a_setting(line: str, setting: str, value: object) -> None:
    """In the units of settings."""
    options = consumer_options(translate(line))
    assert options[setting] == value
    consumer_settings(options, {})


@pytest.mark.parametrize(
    ("value", "command"),
    [
        ("python  my app.py", ("python", "my", "app.py")),
        ('"/opt/my app/run" --debug', ("/opt/my app/run", "--debug")),
        ("node sample_kcl_app.js", ("node", "sample_kcl_app.js")),
        ("run --name it's --json={\"a\":1} 'x'", ("run", "--name", "it's", '--json={"a":1}', "'x'")),
        ("run --folder='/my data' it's Bob's", ("run", "--folder=/my data", "it's", "Bob's")),
        ("'app", ("'app",)),
    ],
)
def test_a_command_is_split_at_spaces_and_quotes_only_count_around_spaces(
    value: str, command: tuple[str, ...]
) -> None:
    """Java knows no quotes."""
    assert translate(f"executableName = {value}").command == command


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "failOverTimeMilis = 1",
            "failOverTimeMilis: this is not a property of the KCL: it is ignored; did you mean fail",
        ),
        ("colour = blue", "colour: this is not a property of the KCL: it is ignored, as in Java"),
        ("MetricsLevel = NONE", "read as metricsLevel; Java ignores a key in another case"),
        ("maxRecords = 5\nmaxRecords = 6", "maxRecords: given more than once; line 5 counts"),
        ("failoverTimeMillis = 0", "failoverTimeMillis: 0 means the default"),
        ("maxActiveThreads = 4", "there is no thread pool"),
        (
            "AwsCredentialsProvider = my.Own,DefaultCredentialsProvider",
            "Own is left out: a Java class of your own",
        ),
        (
            "AwsCredentialsProvider = SystemPropertyCredentialsProvider,ProfileCredentialsProvider",
            "no Java system",
        ),
        ("workerId =", "workerId: it is empty, and means the default"),
        ("retrievalMode = POLLING\nfanoutConfig.consumerName = me", "a consumer has no effect with polling"),
    ],
)
def test_what_differs_is_reported(line: str, text: str) -> None:
    """One sentence for each key."""
    assert text in notes(line)


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("failoverTimeMillis = ten", "failoverTimeMillis='ten': expected a whole number"),
        ("failoverTimeMillis = -1", "expected 0 or more"),
        ("callProcessRecordsEvenForEmptyRecordList = maybe", "expected true or false"),
        ("timeoutInSeconds = 0", "Java would halt at once"),
        ("initialPositionInStream = AT_TIMESTAMP", "set initialPositionInStreamExtended"),
        ("initialPositionInStreamExtended = 1636609142000000", "not a millisecond"),
        ("maxRecords = 20000", "at most 10,000"),
        ("retrievalMode = PUSH", "expected DEFAULT, FANOUT or POLLING"),
        ("metricsLevel = ALL", "expected NONE, SUMMARY or DETAILED"),
        ("shardPrioritization = x", "it has no text form"),
        ("kinesisClient.retries = 3", "only region and endpointOverride have a setting"),
        ("regionName = a\ndynamoDbClient.region = b", "there is one region for all services"),
        ("AwsCredentialsProviderDynamoDB = ProfileCredentialsProvider|x", "one set of credentials"),
        ("AwsCredentialsProvider = my.Own", "none of these can be used here"),
        ("clientVersionConfig = 3", "expected one of CLIENT_VERSION_CONFIG_3X"),
        ("executableName = a\\u0000b", "a character that cannot be printed"),
        ("workerId = \\ud83d", "half of a character"),
    ],
)
def test_what_cannot_be_applied_is_refused(line: str, text: str) -> None:
    """Java takes 0 for a number that it cannot read, and goes on."""
    with pytest.raises(ConfigError) as raised:
        translate(line)
    assert text in str(raised.value)


def test_a_key_in_another_case_does_not_replace_the_right_one() -> None:
    """Java ignores it, so the file means the other stream."""
    result = translate("streamname = returns\nk\\u0001 = 1")
    assert result.settings["stream"] == "orders"
    assert "streamname: it is ignored, because streamName is given as well" in "\n".join(
        map(str, result.notes)
    )
    tomllib.loads(to_toml(result, "x.properties"))


@pytest.mark.parametrize("missing", ["executableName", "applicationName", "streamName"])
def test_what_is_missing_is_named(missing: str) -> None:
    """Each of the three is required."""
    required = "\n".join(line for line in REQUIRED.splitlines() if not line.startswith(missing))
    with pytest.raises(ConfigError, match=f"{missing}.* is missing"):
        translate(required=required)


def test_a_role_with_its_arguments() -> None:
    """Session name and external id; the endpoint of STS is boto3's."""
    line = "AwsCredentialsProvider = StsAssumeRoleCredentialsProvider|arn:r|kcl|externalId=x|endpointRegion=us-east-1"
    result = translate(line)
    assert result.settings["role_arn"] == "arn:r"
    assert result.settings["role_session_name"] == "kcl"
    assert result.settings["role_external_id"] == "x"
    assert "endpointRegion=us-east-1 is left out" in notes(line)


def test_the_toml_file_has_the_same_settings_and_the_notes() -> None:
    """`leasehold run` reads it."""
    text = (
        "failoverTimeMillis = 20000\nmaxActiveThreads = 4\ncallProcessRecordsEvenForEmptyRecordList = true\n"
    )
    result = translate(text + 'workerId = with "quotes" \\u00e4\ntimeoutInSeconds = 5')
    written = to_toml(result, "app.properties")
    parsed = tomllib.loads(written)
    assert parsed["consumer"] == consumer_options(result)
    assert parsed["run"] == {"processor": "app:RecordProcessor", "empty_batches": True}
    assert "# maxActiveThreads: there is no thread pool" in written
    assert "# timeoutInSeconds = 5: a thread cannot be killed." in written


def test_a_file_that_does_not_exist_and_a_program_that_does_not_exist(tmp_path: Path) -> None:
    """One sentence each, before any lease is taken."""
    with pytest.raises(ConfigError, match="nowhere: No such file"):
        read_properties(tmp_path / "nowhere")
    file = tmp_path / "app.properties"
    file.write_text(REQUIRED)
    with pytest.raises(ConfigError, match=r"app\.py is not a program on the PATH"):
        make_daemon(read_properties(file), DaemonOptions())
