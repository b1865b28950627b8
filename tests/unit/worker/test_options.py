"""Every setting has one name in three places with a fixed precedence, and unknown names are refused."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, get_type_hints

import pytest

from leasehold.config.settings import MetricsLevel
from leasehold.config.values import duration
from leasehold.core.initial_position import parse_initial_position
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON, Position
from leasehold.core.records.deaggregation import OutOfRange
from leasehold.errors import ConfigError
from leasehold.worker.options import (
    OPTIONS,
    ConsumerOptions,
    HandlingOptions,
    consumer_settings,
    handling_settings,
)
from leasehold.worker.settings import Checkpointing, ConsumerSettings, HandlingSettings, OnPoison

NAMED = {"stream": "orders", "application": "billing"}
ROOT = Path(__file__).parents[3]


def settings(environment: dict[str, str] | None = None, **keywords: Any) -> ConsumerSettings:
    return consumer_settings(NAMED | keywords, environment or {})


def test_keywords_override_the_environment_and_that_overrides_the_file(tmp_path: Path) -> None:
    """The same three settings in all three places."""
    file = tmp_path / "worker.toml"
    file.write_text("[consumer]\nmax_records = 1\nretries = 1\nmax_leases = 1\n")
    found = settings({"LEASEHOLD_MAX_RECORDS": "2", "LEASEHOLD_RETRIES": "2"}, config=file, max_records=3)
    assert found.handling.batch.max_records == 3
    assert found.handling.errors.retries == 2
    assert found.fleet.max_leases == 1


def test_the_environment_may_name_a_file_with_two_tables(tmp_path: Path) -> None:
    """[leasehold] and [consumer] are read alike, and [run] is left to `leasehold run`."""
    file = tmp_path / "app.toml"
    file.write_text(
        '[leasehold]\nstream = "orders"\napplication = "billing"\n'
        '[consumer]\nmax_wait = "250ms"\ninitial_position = 2026-11-15T12:00:00Z\n[run]\nhandler = "a:b"\n'
    )
    found = consumer_settings({}, {"LEASEHOLD_CONFIG": str(file)})
    assert found.identity.stream == "orders"
    assert found.handling.batch.max_wait == timedelta(milliseconds=250)
    assert found.identity.initial_position.timestamp_ms == 1_794_744_000_000


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("[run]\nhandler = 'a:b'\n", "expected a table \\[leasehold\\] or \\[consumer\\]"),
        (
            "[leasehold]\n[consumr]\nretries = 1\n",
            r"\[consumr\] is not a table .* did you mean \[consumer\]\?",
        ),
        ("[consumer]\n[rum]\nhandler = 'a:b'\n", r"\[rum\] is not a table .* did you mean \[run\]\?"),
        (
            "[consumer]\n[other]\nx = 1\n",
            r"\[other\] is not a table .* expected \[leasehold\] or \[consumer\]",
        ),
        ("retrys = 1\n[consumer]\n", r"retrys is not a setting: did you mean retries\?"),
        ("retries = 1\n[consumer]\n", r"retries is outside of a table: put it below \[leasehold\]"),
        ("[leasehold]\n[[consumer]]\nretries = 1\n", r"consumer must be a table, \[consumer\]"),
        ("[consumer]\nmax_record = 1\n", "max_record is not a setting: did you mean max_records"),
        ("[consumer]\nmax_records = 'many'\n", "max_records='many': expected a whole number"),
        ("[leasehold]\nstream='a'\n[consumer]\nstream='b'\n", "stream is in more than one table"),
        ("[consumer\n", "is not TOML"),
    ],
)
def test_a_file_with_a_mistake_is_refused_with_the_remedy(tmp_path: Path, content: str, problem: str) -> None:
    """The message names the file, the key and the expected value."""
    file = tmp_path / "worker.toml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=problem) as caught:
        settings(config=file)
    assert str(file) in str(caught.value)


def test_a_missing_file_is_an_error() -> None:
    """It is not treated as an empty file."""
    with pytest.raises(ConfigError, match=r"nowhere\.toml: No such file"):
        settings(config="nowhere.toml")


@pytest.mark.parametrize(
    ("environment", "keywords", "nearest"),
    [
        ({"LEASEHOLD_MAX_RECORD": "1"}, {}, "LEASEHOLD_MAX_RECORDS"),
        ({"LEASEHOLD_STATU_PORT": "80"}, {}, "LEASEHOLD_STATUS_PORT"),
        ({}, {"initial_positon": "latest"}, "initial_position"),
        ({}, {"deadletters": "x"}, "dead_letters"),
    ],
)
def test_an_unknown_name_is_an_error_that_suggests_a_known_name(
    environment: dict[str, str], keywords: dict[str, Any], nearest: str
) -> None:
    """A typing error is found at the start."""
    with pytest.raises(ConfigError, match=f"did you mean {nearest}\\?"):
        settings(environment, **keywords)


def test_kubernetes_variables_of_a_service_named_leasehold_are_ignored() -> None:
    """They have the same prefix as settings."""
    found = settings(
        {
            "LEASEHOLD_SERVICE_HOST": "10.0.0.1",
            "LEASEHOLD_SERVICE_PORT_HTTP": "80",
            "LEASEHOLD_PORT": "tcp://10.0.0.1:80",
            "LEASEHOLD_WORKER_PORT_80_TCP_ADDR": "10.0.0.1",
            "LEASEHOLD_STATUS_PORT": "8080",
            "PATH": "/bin",
        }
    )
    assert found.observe.status_port == 8080


@pytest.mark.parametrize("missing", ["stream", "application"])
def test_a_consumer_needs_a_stream_and_an_application(missing: str) -> None:
    """The message names all three ways to set it."""
    given = {name: value for name, value in NAMED.items() if name != missing}
    with pytest.raises(ConfigError, match=rf"Consumer\({missing}=.*LEASEHOLD_{missing.upper()}"):
        consumer_settings(given, {})


@pytest.mark.parametrize(
    ("given", "starts"),
    [
        (["orders", "returns"], [TRIM_HORIZON, TRIM_HORIZON]),
        (("orders", "returns"), [TRIM_HORIZON, TRIM_HORIZON]),
        ({"orders": None, "returns": "latest"}, [TRIM_HORIZON, LATEST]),
        ("orders, returns=latest", [TRIM_HORIZON, LATEST]),
        ([" orders", "returns "], [TRIM_HORIZON, TRIM_HORIZON]),
    ],
)
def test_several_streams_are_a_list_or_a_mapping_to_initial_positions(
    given: object, starts: list[Position]
) -> None:
    """A stream without its own position has the common one."""
    found = consumer_settings({"streams": given, "application": "billing"}, {}).identity.initial_positions
    assert list(found) == ["orders", "returns"]
    assert [position.sentinel for position in found.values()] == starts


def test_several_streams_from_environment_and_file(tmp_path: Path) -> None:
    """The variable has names separated by commas; the file has a list or a table."""
    found = consumer_settings({"application": "billing"}, {"LEASEHOLD_STREAMS": "orders,returns"})
    assert list(found.identity.initial_positions) == ["orders", "returns"]
    file = tmp_path / "billing.toml"
    file.write_text('[consumer]\napplication = "billing"\n[consumer.streams]\norders = "latest"\n')
    assert consumer_settings({"config": file}, {}).identity.initial_positions["orders"].sentinel == LATEST


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"streams": ["orders", "orders"]}, "listed twice"),
        ({"streams": ["1:orders:17", "2:orders:17"]}, "orders is listed twice"),
        ({"streams": "orders,orders=latest"}, "listed twice"),
        ({"streams": {"orders": None, " orders": "latest"}}, "listed twice"),
        ({"streams": ["orders"], "stream": "returns"}, "give one of the two"),
        ({"streams": 5}, "expected a list of streams"),
        ({"streams": "orders,,"}, "has no name"),
        ({"streams": [5]}, "has no name"),
        ({"streams": {"orders": "yesterday"}}, "expected 'trim_horizon', 'latest'"),
        ({"streams": []}, "stream is missing"),
    ],
)
def test_invalid_streams_are_refused(given: dict[str, object], message: str) -> None:
    """The message says what is wrong with them."""
    with pytest.raises(ConfigError, match=message):
        consumer_settings({"application": "billing", **given}, {})


@pytest.mark.parametrize("worker_id", ["host\n1", "h" * 2049, "host\ud800"])
def test_a_worker_id_that_cannot_be_read_back_is_refused(worker_id: str) -> None:
    """It becomes the owner of leases, whose rows could not be parsed."""
    with pytest.raises(ConfigError, match="at most 2048 characters and no control characters"):
        consumer_settings({"application": "billing", "stream": "orders", "worker_id": worker_id}, {})


def test_every_kind_of_value_is_parsed_from_text() -> None:
    """The environment contains only text."""
    found = settings(
        {
            "LEASEHOLD_BISECT": "off",
            "LEASEHOLD_CALLS_PER_SECOND": "2.5",
            "LEASEHOLD_CHECKPOINT": "Manual",
            "LEASEHOLD_CHECKPOINT_RECORDS": "none",
            "LEASEHOLD_CLOUDWATCH_METRICS": "summary",
            "LEASEHOLD_EXPANDED_BYTES_MAX": "1_000",
            "LEASEHOLD_GRACE": "1.5m",
            "LEASEHOLD_INITIAL_POSITION": "latest",
            "LEASEHOLD_LEASES": "sqlite:///leases.sqlite",
            "LEASEHOLD_ON_POISON": "stop-worker",
            "LEASEHOLD_OUT_OF_RANGE": "drop_record",
        }
    )
    assert found.handling.errors.bisect is False
    assert found.read.calls_per_second == 2.5
    assert found.handling.checkpoints.checkpoint is Checkpointing.MANUAL
    assert found.handling.checkpoints.checkpoint_records is None
    assert found.observe.cloudwatch_metrics is MetricsLevel.SUMMARY
    assert found.deaggregation.expanded_bytes_max == 1000
    assert found.process.grace == timedelta(seconds=90)
    assert found.identity.initial_position.sentinel == LATEST
    assert found.connection.leases == "sqlite:///leases.sqlite"
    assert found.handling.errors.poison is OnPoison.STOP_WORKER
    assert found.deaggregation.out_of_range is OutOfRange.DROP_RECORD


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("1s", 1000), ("500ms", 500), ("2m", 120_000), ("1h", 3_600_000), ("1d", 86_400_000), ("1.5", 1500)],
)
def test_durations_are_parsed(text: str, milliseconds: int) -> None:
    """A number without a unit is seconds, in text and in Python."""
    assert duration(text) == timedelta(milliseconds=milliseconds)
    assert duration(milliseconds / 1000) == timedelta(milliseconds=milliseconds)


@pytest.mark.parametrize(
    "value", ["", "1 fortnight", "-1s", "1s2", -1, True, None, float("nan"), float("inf")]
)
def test_an_invalid_duration_is_refused(value: object) -> None:
    """No value is guessed."""
    with pytest.raises(ConfigError, match="expected a duration"):
        duration(value)


def test_initial_positions_are_parsed() -> None:
    """The default is the oldest record, so that no record is missed."""
    assert settings().identity.initial_position.sentinel == TRIM_HORIZON
    assert parse_initial_position("TRIM_HORIZON").sentinel == TRIM_HORIZON
    moment = parse_initial_position(datetime(2026, 1, 1, 0, 0, 0, 5000, tzinfo=UTC))
    assert (moment.sentinel, moment.timestamp_ms) == (AT_TIMESTAMP, 1_767_225_600_005)


@pytest.mark.parametrize("value", ["yesterday", "2026-01-01T00:00:00", datetime(2026, 1, 1), 7])  # noqa: DTZ001
def test_a_time_without_its_zone_is_refused(value: object) -> None:
    """The meaning of a time must not depend on the zone of a worker."""
    with pytest.raises(ConfigError, match="a time with its zone"):
        parse_initial_position(value)


def test_the_decorator_overrides_the_consumer() -> None:
    """Only the settings that it names change."""
    base = settings(max_records=7, retries=9).handling
    found = handling_settings(base, {"max_records": 8})
    assert found.batch.max_records == 8
    assert found.errors.retries == 9
    assert handling_settings(base, {}) == base


def test_the_decorator_takes_only_settings_of_a_handler() -> None:
    """Any other setting is unknown there, and the closest one of a handler is suggested."""
    with pytest.raises(ConfigError, match="max_leases is not a setting"):
        handling_settings(HandlingSettings(), {"max_leases": 1})


def test_the_typed_keywords_are_exactly_the_settings() -> None:
    """So editors and type checkers suggest exactly the settings that exist."""
    assert get_type_hints(ConsumerOptions).keys() | NAMED.keys() | {"streams"} == OPTIONS.keys()
    handling = {
        name for name, option in OPTIONS.items() if option.group.__name__ in {
            "BatchSettings", "ErrorSettings", "CheckpointSettings", "RecordSettings",
        }
    }  # fmt: skip
    assert get_type_hints(HandlingOptions).keys() == handling


@pytest.mark.parametrize(
    "keywords",
    [
        {"max_records": 0},
        {"max_bytes": 0},
        {"retries": -1},
        {"retry_initial_wait": 0},
        {"retry_initial_wait": "2m", "retry_max_wait": "1m"},
        {"checkpoint_records": 0},
        {"grace": 0},
        {"max_handlers": 0},
        {"leases": "postgres://x"},
        {"leases": "sqlite://x"},
    ],
)
def test_invalid_values_are_refused(keywords: dict[str, Any]) -> None:
    """The message names the setting and its value."""
    name, value = next(iter(keywords.items()))
    with pytest.raises(ConfigError, match=f"{name}="):
        settings(**keywords)
    assert value is not None


HOSTILE: tuple[object, ...] = (
    *("", "x", "nan", "1e400", "99999999999d", "9" * 400, "\ud800", "\0", "=", "a" * 100_000),
    *(-1, 2**63, 10**400, float("inf"), float("nan"), True, None, [[]], {"a": []}, b"x"),
    *(timedelta.max, timedelta.min, timedelta(microseconds=1), datetime.max.replace(tzinfo=UTC), object()),
)


@pytest.mark.parametrize("name", sorted(ConsumerOptions.__optional_keys__))
def test_a_value_of_any_kind_is_accepted_or_refused_in_one_sentence(name: str) -> None:
    """No other error occurs."""
    given: list[tuple[dict[str, object], dict[str, str]]] = [({name: value}, {}) for value in HOSTILE]
    given += [({}, {f"LEASEHOLD_{name.upper()}": value}) for value in HOSTILE if isinstance(value, str)]
    for options, environment in given:
        with suppress(ConfigError):
            consumer_settings(NAMED | options, environment)


def test_a_long_value_is_not_repeated_in_full() -> None:
    """The error is one line that can be read."""
    with pytest.raises(ConfigError, match="max_records") as refused:
        settings(max_records="9" * 100_000)
    assert len(str(refused.value)) < 400


def test_a_heartbeat_may_not_wait_for_longer_than_its_lease_is_valid() -> None:
    """The lease would be lost while the request waits."""
    with pytest.raises(ConfigError, match=r"dynamodb_timeout=0:00:20 with failover_after=0:00:10"):
        settings(dynamodb_timeout="20s")
    assert settings(failover_after="2s", refresh_every="500ms").fleet.failover_after.total_seconds() == 2
