"""The settings, the clock and the address of the local server."""

import pytest

from leasehold.errors import ConfigError
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.local.clock import AdjustableClock
from leasehold.local.control_endpoint import settings_with_changes
from leasehold.local.server import ServerOptions


def test_settings_are_changed_by_name() -> None:
    """Settings that are not named stay as they are."""
    before = ServiceSettings(status_delay_ms=7)
    assert settings_with_changes(before, {"enforce_limits": True}) == ServiceSettings(
        status_delay_ms=7, enforce_limits=True
    )


def test_an_unknown_setting_is_refused_with_a_suggestion() -> None:
    """A misspelled name is not ignored."""
    with pytest.raises(ConfigError, match="did you mean enforce_limits"):
        settings_with_changes(ServiceSettings(), {"enforce_limit": True})
    with pytest.raises(ConfigError, match="known settings are"):
        settings_with_changes(ServiceSettings(), {"qqq": 1})


def test_the_clock_goes_forward_only() -> None:
    """Setting the clock back is refused."""
    clock = AdjustableClock()
    before_ms = clock.now_ms()
    clock.advance(3_600_000)
    assert clock.now_ms() >= before_ms + 3_600_000
    with pytest.raises(ConfigError, match="cannot go back"):
        clock.advance(-1)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_other_addresses_than_loopback_are_refused(host: str) -> None:
    """The error names the reason and the remedy."""
    with pytest.raises(ConfigError, match=r"not a loopback address.*Use 127.0.0.1"):
        ServerOptions(host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_every_loopback_address_is_accepted(host: str) -> None:
    """IPv4 and IPv6."""
    assert ServerOptions(host=host).host == host
