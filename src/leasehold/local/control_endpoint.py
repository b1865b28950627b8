"""The control endpoint: changes that tests can make and Kinesis clients cannot. It uses the same loopback port.

GET  /_leasehold/           the clock and the settings
POST /_leasehold/clock      {"advance_ms": 60000}
POST /_leasehold/settings   {"enforce_limits": true, ...}: see `ServiceSettings`
POST /_leasehold/trim       {"stream": "orders"}: remove all its records now; without a name, those of all streams
POST /_leasehold/fan-out    {"fault": "cut", "times": 1}: let subscriptions misbehave, see `FanOutFault`
POST /_leasehold/reset      {}: remove all streams, restore the initial settings and the system's time
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any, Final

import orjson

from leasehold.errors import ConfigError
from leasehold.kinesis_model.api_errors import KinesisApiError
from leasehold.kinesis_model.settings import ServiceSettings
from leasehold.local.asgi import Scope, Send, send_response
from leasehold.local.control_arguments import optional_text, parse_arguments, require_known, whole_number
from leasehold.local.state import ServerState

CONTROL_PREFIX: Final = "/_leasehold/"
log = logging.getLogger("leasehold.local")

_JSON_HEADERS: Final = [(b"content-type", b"application/json")]


async def serve_control(state: ServerState, scope: Scope, body: bytes, send: Send) -> None:
    """Execute a control request. The response contains the clock and the settings."""
    method, path = scope["method"], scope["path"]
    if any(name == b"origin" for name, _ in scope["headers"]):
        # Any web page in a browser on this machine can send such a request.
        await _send_json(send, 403, {"error": "requests from web pages are refused"})
        return
    action = _ACTIONS.get((method, path.removeprefix(CONTROL_PREFIX)))
    if action is None:
        await _send_json(
            send,
            404,
            {"error": f"{method} {path[:80]} is unknown: POST to clock, settings, trim, fan-out or reset"},
        )
        return
    try:
        action(state, parse_arguments(body))
    except (ConfigError, KinesisApiError) as error:
        await _send_json(send, 400, {"error": str(error)})
        return
    except Exception as error:  # noqa: BLE001 - the client gets a response in any case
        log.error("%.80s failed inside the server: %s", path, type(error).__name__)  # noqa: TRY400 - no payloads
        await _send_json(send, 500, {"error": f"the server failed ({type(error).__name__})"})
        return
    state.on_change()
    await _send_json(send, 200, {"now_ms": state.clock.now_ms(), "settings": asdict(state.service.settings)})


def settings_with_changes(settings: ServiceSettings, changes: dict[str, Any]) -> ServiceSettings:
    """Return settings with some values replaced. An unknown name is an error that suggests the nearest known one."""
    require_known(changes, [item.name for item in fields(ServiceSettings)], "setting")
    return replace(settings, **changes)


def _do_nothing(_state: ServerState, arguments: dict[str, Any]) -> None:
    """Change nothing. The response to every request contains the clock and the settings."""
    require_known(arguments, ())


def _advance_clock(state: ServerState, arguments: dict[str, Any]) -> None:
    require_known(arguments, ("advance_ms",))
    state.clock.advance(whole_number(arguments, "advance_ms"))


def _change_settings(state: ServerState, arguments: dict[str, Any]) -> None:
    state.service.settings = settings_with_changes(state.service.settings, arguments)


def _trim(state: ServerState, arguments: dict[str, Any]) -> None:
    require_known(arguments, ("stream",))
    now_ms = state.clock.now_ms()
    name = optional_text(arguments, "stream")
    for stream_name in [name] if name else state.service.stream_names(now_ms):
        state.service.stream(now_ms, stream_name).trim_all_records()


def _plan_fault(state: ServerState, arguments: dict[str, Any]) -> None:
    state.faults.plan(arguments)


def _reset(state: ServerState, arguments: dict[str, Any]) -> None:
    require_known(arguments, ())
    state.reset()


async def _send_json(send: Send, status: int, members: dict[str, Any]) -> None:
    await send_response(send, status, _JSON_HEADERS, orjson.dumps(members))


_ACTIONS: Final[dict[tuple[str, str], Callable[[ServerState, dict[str, Any]], None]]] = {
    ("GET", ""): _do_nothing,
    ("POST", "clock"): _advance_clock,
    ("POST", "settings"): _change_settings,
    ("POST", "trim"): _trim,
    ("POST", "fan-out"): _plan_fault,
    ("POST", "reset"): _reset,
}
