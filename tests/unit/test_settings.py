"""Settings that cannot work are refused where they are made, with what to do instead."""

from datetime import timedelta
from typing import Any

import pytest

from leasehold.errors import ConfigError
from leasehold.settings import FleetSettings, ReadSettings


@pytest.mark.parametrize(
    ("wrong", "remedy"),
    [
        ({"records_per_call": 0}, "1 to 10,000"),
        ({"records_per_call": 10_001}, "1 to 10,000"),
        ({"calls_per_second": 0}, "5 a shard"),
        ({"calls_per_second": 6}, "5 a shard"),
        ({"bytes_per_second": 0}, "2,000,000"),
        ({"buffer_bytes": 1000}, "1 MiB"),
        ({"idle_poll_every": timedelta(milliseconds=100)}, "5 calls a second"),
    ],
)
def test_reading_cannot_be_set_beyond_what_kinesis_allows(wrong: dict[str, Any], remedy: str) -> None:
    """Each limit of the service is named in the error."""
    with pytest.raises(ConfigError, match=remedy):
        ReadSettings(**wrong)


def test_we_stop_before_others_begin() -> None:
    """A lease is proven to ourselves for less time than others wait, and renewed several times within it."""
    settings = FleetSettings()
    assert 2 * settings.renew_every < settings.proven_for < settings.failover_after
