"""Settings that cannot work are refused where they are made, with what to do instead."""

from datetime import timedelta
from typing import Any

import pytest

from leasehold.config.settings import FleetSettings, ReadSettings
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
def test_reading_cannot_be_set_beyond_what_kinesis_allows(wrong: dict[str, Any], remedy: str) -> None:
    """Each limit of the service is named in the error."""
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
def test_a_member_cannot_be_told_to_hurry_for_ever(wrong: dict[str, Any]) -> None:
    """A pause of nothing would be a loop without one; the setting is named."""
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        FleetSettings(**wrong)


def test_we_stop_before_others_begin() -> None:
    """A lease is proven to ourselves for less time than others wait, and a heartbeat leaves time for a second try."""
    settings = FleetSettings()
    assert 1.5 * settings.renew_every < settings.lease_valid_for < settings.failover_after
