"""Invalid settings are refused when they are made, and the error says what to change."""

from datetime import timedelta
from typing import Any

import pytest

from leasehold.config.settings import FanOutSettings, FleetSettings, ReadSettings, Retrieval
from leasehold.errors import ConfigError


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ({"records_per_call": 0}, "1 to 10,000"),
        ({"records_per_call": 10_001}, "1 to 10,000"),
        ({"calls_per_second": 0}, "5 per shard"),
        ({"calls_per_second": 6}, "5 per shard"),
        ({"bytes_per_second": 0}, "2,000,000"),
        ({"buffer_bytes": 1000}, "1 MiB"),
        ({"idle_poll_every": timedelta(milliseconds=100)}, "5 calls per second"),
    ],
)
def test_read_settings_beyond_the_limits_of_kinesis_are_refused(wrong: dict[str, Any], remedy: str) -> None:
    """The error names the limit."""
    with pytest.raises(ConfigError, match=remedy):
        ReadSettings(**wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        *(
            {name: timedelta(0)}
            for name in ("refresh_every", "stalled_after", "check_parents_every", "handoff_timeout")
        ),
        *({name: timedelta(0)} for name in ("first_audit_after", "audit_every", "clean_up_every")),
        {"audit_confirmations": 0},
        {"cooldown_after_failure": timedelta(seconds=-1)},
    ],
    ids=str,
)
def test_an_interval_of_zero_is_refused(wrong: dict[str, Any]) -> None:
    """It would be a loop without a pause. The error names the setting."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        FleetSettings(**wrong)


def test_an_owner_stops_before_others_may_take_its_lease() -> None:
    """A lease is valid for less than the failover time, and a failed heartbeat can be retried in time."""
    settings = FleetSettings()
    assert 1.5 * settings.renew_every < settings.lease_valid_for < settings.failover_after


@pytest.mark.parametrize(
    "wrong",
    [
        *({name: value} for name in ("balance_threshold", "balance_step") for value in (0, 101)),
        {"balance_every": timedelta(0)},
        *({"newest_report_weight": value} for value in (0, 1.5)),
        *({"max_utilisation": value} for value in (0, 101)),
    ],
    ids=str,
)
def test_a_share_outside_of_its_range_is_refused(wrong: dict[str, Any]) -> None:
    """The error names the setting and what is expected."""
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}=.*expected"):
        FleetSettings(**wrong)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"consumer_name": "billing"}, "consumer_name='billing' has no effect with retrieval='polling'"),
        ({"consumer_arn": "arn"}, "no effect"),
        ({"http2": True}, "http2=True has no effect"),
        ({"retrieval": Retrieval.AUTO, "consumer_name": "a", "consumer_arn": "b"}, "give one of the two"),
        ({"retrieval": Retrieval.FAN_OUT, "consumer_name": "no spaces"}, "1 to 128 letters"),
        ({"retrieval": Retrieval.FAN_OUT, "consumer_arn": "arn:aws:kinesis:eu"}, "consumer/NAME:TIME"),
    ],
    ids=str,
)
def test_settings_of_fan_out_that_cannot_work_are_refused(given: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        FanOutSettings(**given)
