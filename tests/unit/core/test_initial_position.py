"""A start position has exactly one meaning, or is refused with the forms that are accepted."""

import json
from datetime import UTC, datetime

import pytest

from leasehold.core.initial_position import parse_initial_position, require_past
from leasehold.core.model import InitialPosition
from leasehold.core.position import AT_TIMESTAMP, LATEST, TRIM_HORIZON
from leasehold.core.time_text import parse_time_in_format
from leasehold.errors import ConfigError

NEW_YEAR_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z


@pytest.mark.parametrize(
    ("text", "sentinel"),
    [
        ("latest", LATEST),
        ("LATEST", LATEST),
        (" Latest ", LATEST),
        ("trim_horizon", TRIM_HORIZON),
        ("TRIM_HORIZON", TRIM_HORIZON),
        ("trim-horizon", TRIM_HORIZON),
        ("earliest", TRIM_HORIZON),
        ("EARLIEST", TRIM_HORIZON),
    ],
)
def test_names_of_positions(text: str, sentinel: object) -> None:
    """Case does not matter, as in the connectors of Databricks and awslabs."""
    assert parse_initial_position(text).sentinel == sentinel


@pytest.mark.parametrize(
    "value",
    [
        "2026-01-01T00:00:00Z",
        "2026-01-01T00:00:00.000Z",
        "2026-01-01 00:00:00+00:00",
        "2026-01-01T00:00Z",
        "2025-12-31T16:00:00-0800",
        "2025-12-31T16:00:00-08",
        "2025-12-31T16:00:00 PST",
        "AT_TIMESTAMP 2026-01-01T00:00:00Z",
        "at_timestamp 2026-01-01T01:00:00+01:00",
        '{"at_timestamp": "2026-01-01T00:00:00Z"}',
        '{"AT_TIMESTAMP": "2026-01-01T00:00:00Z"}',
        '{"at_timestamp": "12/31/2025 16:00:00 PST", "format": "MM/dd/yyyy HH:mm:ss ZZZ"}',
        '{"format": "yyyy-MM-dd XXX", "at_timestamp": "2026-01-01 Z"}',
        datetime(2026, 1, 1, tzinfo=UTC),
    ],
)
def test_times(value: object) -> None:
    """ISO 8601 as it is, after AT_TIMESTAMP as in awslabs' connector, and as JSON as in that of Databricks."""
    assert parse_initial_position(value) == InitialPosition(AT_TIMESTAMP, NEW_YEAR_MS)


@pytest.mark.parametrize(
    ("text", "pattern", "instant"),
    [
        ("06/25/2020 10:23:45 PDT", "MM/dd/yyyy HH:mm:ss ZZZ", "2020-06-25T17:23:45+00:00"),
        ("06/25/2020 10:23:45 -0700", "MM/dd/yyyy HH:mm:ss Z", "2020-06-25T17:23:45+00:00"),
        ("2020-06-25T10:23:45.678+02:00", "yyyy-MM-dd'T'HH:mm:ss.SSSXXX", "2020-06-25T08:23:45.678+00:00"),
        ("2020-06-25T10:23:45Z", "yyyy-MM-dd'T'HH:mm:ssXXX", "2020-06-25T10:23:45+00:00"),
        ("20200625 10 o'clock GMT+02:00", "yyyyMMdd HH 'o''clock' z", "2020-06-25T08:00:00+00:00"),
        ("'20200625' UTC", "''yyyyMMdd'' z", "2020-06-25T00:00:00+00:00"),
    ],
)
def test_java_date_patterns(text: str, pattern: str, instant: str) -> None:
    """The letters that the connectors document."""
    assert parse_time_in_format(text, pattern) == datetime.fromisoformat(instant).timestamp() * 1000


@pytest.mark.parametrize(
    ("text", "pattern", "reason"),
    [
        ("06/25/20 10:23 PDT", "MM/dd/yy HH:mm z", "contains 'yy': known are yyyy, MM"),
        ("06/25/2020 10:23 AM PDT", "MM/dd/yyyy hh:mm a z", "contains 'hh'"),
        ("2020-06-25", "yyyy-MM-dd", "has no zone: add ' XXX'"),
        ("06-25 10:23 Z", "MM-dd HH:mm X", "leaves out a part"),
        ("2020-06-25 23 Z", "yyyy-MM-dd mm X", "leaves out a part"),
        ("2020-06-25 2020 Z", "yyyy-MM-dd yyyy X", "has a field twice"),
        ("2020-06-25T00:00:00Z", "yyyy-MM-dd'THH:mm:ssX", "a quote without its end"),
        ("2020-06-25T00:00:00Z", "yyyy-MM-dd HH:mm:ssX", "does not have the format"),
        ("2020-13-25 Z", "yyyy-MM-dd X", "does not exist"),
        ("2020-06-25 CST", "yyyy-MM-dd z", "'CST' is unknown, or has several meanings: write Z for UTC"),
        ("2020-06-25 IST", "yyyy-MM-dd z", "has several meanings"),
        ("2020-06-25 America/Los_Angeles", "yyyy-MM-dd z", "write Z for UTC or an offset"),
        ("2020-06-25 +25:00", "yyyy-MM-dd XXX", "is unknown"),
        ("1969-06-25 Z", "yyyy-MM-dd X", "before 1970"),
    ],
)
def test_a_format_that_is_not_understood_is_refused(text: str, pattern: str, reason: str) -> None:
    """The sentence says what to write."""
    with pytest.raises(ConfigError) as refused:
        parse_initial_position(json.dumps({"at_timestamp": text, "format": pattern}))
    assert reason in str(refused.value)
    assert "expected 'trim_horizon', 'latest'" in str(refused.value)


@pytest.mark.parametrize(
    "value",
    [
        "", "yesterday", "at_timestamp", "AT_TIMESTAMP", "2026-01-01", "2026-01-01T00:00:00", "20260101", "1767225600",
        "1767225600000", "2026-01-01x00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z", "-1",
        "2026-01-01T00:00:00 CST", "at_timestamp latest", "latest 2026-01-01T00:00:00Z", '"latest"', "null", "[]",
        "{", "{}",
        '{"at_timestamp": 1767225600}', '{"at_timestamp": null}', '{"timestamp": "2026-01-01T00:00:00Z"}',
        '{"format": "yyyy"}', '{"at_timestamp": "2026-01-01T00:00:00Z", "zone": "UTC"}',
        '{"at_timestamp": "2026-01-01T00:00:00Z", "at_timestamp": "2027-01-01T00:00:00Z"}',
        '{"shardId-000000000000": "trim_horizon"}',
        "\u0662\u0660\u0662\u0666-01-01T00:00:00Z", 7, 1.5, None, True, b"latest",
        datetime(2026, 1, 1),  # noqa: DTZ001
    ],
)  # fmt: skip
def test_any_other_value_is_refused_with_the_forms(value: object) -> None:
    """None of them is taken for something else."""
    with pytest.raises(
        ConfigError, match=r"expected 'trim_horizon', 'latest', 'earliest', a time with its zone"
    ):
        parse_initial_position(value)


def test_a_time_in_the_future_is_refused_with_the_remedy() -> None:
    """Kinesis accepts none."""
    require_past(None, 1000)
    require_past(1000, 1000)
    with pytest.raises(ConfigError, match=r"2 s in the future.*write latest to start now"):
        require_past(2001, 1000)
