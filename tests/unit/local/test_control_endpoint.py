"""The settings, the clock and the address of the local server."""

import asyncio
from typing import Any

import orjson
import pytest

from leasehold.errors import ConfigError
from leasehold.kinesis_model.service import KinesisModel
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.kinesis_model.writing import PutRequest
from leasehold.local.clock import LATEST_MS, AdjustableClock
from leasehold.local.control_endpoint import serve_control, settings_with_changes
from leasehold.local.fan_out_faults import FanOutFault
from leasehold.local.server import ServerOptions
from leasehold.local.state import ServerState


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


def test_the_clock_stays_within_the_times_of_sequence_numbers() -> None:
    """A refused request changes nothing."""
    clock = AdjustableClock()
    for by_ms in (2**44, 2**63, 2**64):
        with pytest.raises(ConfigError, match="2500"):
            clock.advance(by_ms)
    assert clock.offset_ms == 0
    clock.advance(LATEST_MS - clock.now_ms() - 60_000)
    assert clock.now_ms() < 2**44


def control(state: ServerState, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
    """The status and the body of the response to a control request."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"method": "POST", "path": f"/_leasehold/{path}", "headers": []}
    asyncio.run(serve_control(state, scope, body, send))
    return sent[0]["status"], orjson.loads(sent[1]["body"])


@pytest.mark.parametrize(
    ("path", "body", "problem"),
    [
        ("clock", b'{"advance_ms": 9223372036854775808}', "2500"),
        ("clock", b'{"advance_ms": true}', "whole number"),
        ("clock", b'{"advance": 5}', "did you mean advance_ms"),
        ("clock", b"{}", "advance_ms=None"),
        ("trim", b'{"stream": ["orders"]}', "expected a text"),
        ("trim", b'{"stream": {}}', "expected a text"),
        ("trim", b'{"streem": "orders"}', "did you mean stream"),
        ("trim", b'{"stream": "nosuch"}', "not found"),
        ("settings", b'{"heartbeat_ms": 9223372036854775808}', "from 0 to"),
        ("settings", b'{"heartbeat_ms": [1]}', "expected int"),
        ("fan-out", b'{"fault": ["cut"]}', "expected a text"),
        ("fan-out", b'{"fault": "cut", "stream": ["orders"]}', "expected a text"),
        ("fan-out", b'{"fault": "cut", "shard": {"a": 1}}', "expected a text"),
        ("fan-out", b'{"fault": "cut", "times": 0}', "1 or higher"),
        ("fan-out", b"{}", "unknown fault"),
        ("reset", b'{"stream": "orders"}', "takes no arguments"),
        ("reset", b"[]", "not a JSON object"),
    ],
)
def test_arguments_of_any_type_are_checked_before_anything_changes(
    path: str, body: bytes, problem: str
) -> None:
    """A misspelled stream does not mean all streams, and no value makes later requests fail."""
    state = ServerState(KinesisModel())
    state.service.create_stream(state.clock.now_ms(), "orders", shard_count=1)
    state.service.put_record(state.clock.now_ms(), "orders", PutRequest("k", b"data"))
    status, response = control(state, path, body)
    assert status == 400
    assert problem in response["error"]
    (shard,) = state.service.streams["orders"].shards.values()
    assert len(shard.log) == 1
    assert state.service.settings == ServiceSettings()
    assert state.clock.offset_ms == 0
    assert state.faults.take(list(FanOutFault), "orders", shard.id) is None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", ""])
def test_other_addresses_than_loopback_are_refused(host: str) -> None:
    """The error names the reason and the remedy."""
    with pytest.raises(ConfigError, match=r"not a loopback address.*Use 127.0.0.1"):
        ServerOptions(host=host)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1", "localhost"])
def test_every_loopback_address_is_accepted(host: str) -> None:
    """IPv4 and IPv6."""
    assert ServerOptions(host=host).host == host
