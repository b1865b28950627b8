"""The server as an ASGI application: finds the operation, calls it, and formats responses and errors as AWS does.

Signatures are not verified, so any credentials are accepted. Payloads and partition keys are never logged.
"""

from __future__ import annotations

import logging
from typing import Any, Final
from uuid import uuid4

from leasehold.adapters.status_server import is_allowed_host
from leasehold.kinesis_model.api_errors import KinesisApiError
from leasehold.local.asgi import (
    BodyTooLargeError,
    DisconnectedError,
    Receive,
    Scope,
    Send,
    read_body,
    send_response,
)
from leasehold.local.control_endpoint import CONTROL_PREFIX, serve_control
from leasehold.local.encodings import JSON, Encoding, MalformedBodyError, encoding_for
from leasehold.local.fan_out import subscribe_to_shard
from leasehold.local.operations import OPERATIONS, Call
from leasehold.local.operations.records import written_shards
from leasehold.local.request_validation import RequestValidator
from leasehold.local.state import ServerState

_TARGET_PREFIX: Final = "Kinesis_20131202."
_LOOPBACK: Final = "127.0.0.1"

log = logging.getLogger("leasehold.local")


class LocalApp:
    """Serves one `ServerState` over HTTP."""

    def __init__(self, state: ServerState) -> None:
        self.state = state
        self._validator = RequestValidator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "lifespan and websockets are disabled"
        try:
            body = await read_body(receive)
        except DisconnectedError:
            return
        except BodyTooLargeError:
            await send_response(send, 413, [(b"connection", b"close")], b"")
            return
        if not _is_for_this_machine(scope):
            await send_response(
                send, 403, [], b"this server accepts only localhost and loopback addresses in the Host header"
            )
        elif scope["path"].startswith(CONTROL_PREFIX):
            await serve_control(self.state, scope, body, send)
        else:
            await self._serve_kinesis(scope, body, receive, send)

    async def _serve_kinesis(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        encoding = encoding_for(headers.get("content-type", "")) or JSON
        target = headers.get("x-amz-target", "")
        try:
            operation = _parse_operation(target)
            call = self._call(operation, body, encoding)
            if operation == "SubscribeToShard":
                await subscribe_to_shard(self.state, call, _response_headers(), receive, send)
                return
            response = self._execute(operation, call)
        except KinesisApiError as error:
            await _send_error(send, encoding, error.error_type, error.message)
        except MalformedBodyError as error:
            await _send_error(send, encoding, "SerializationException", str(error))
        except _UnknownOperationError as error:
            await _send_error(send, encoding, "UnknownOperationException", str(error))
        except Exception as error:  # noqa: BLE001 - the client gets a response in any case
            # Only the type is logged: the text of an unexpected error may contain a payload.
            log.error("%.80s failed inside the server: %s", target, type(error).__name__)  # noqa: TRY400
            await _send_error(send, encoding, "InternalFailureException", "The server failed.", status=500)
        else:
            await _send(send, encoding, response)

    def _call(self, operation: str, body: bytes, encoding: Encoding) -> Call:
        members = self._validator.validate(operation, encoding.decode(body) if body else {}, encoding)
        return Call(self.state.service, members, self.state.clock.now_ms(), encoding)

    def _execute(self, operation: str, call: Call) -> dict[str, Any] | None:
        response = OPERATIONS[operation](call)
        if operation in {"PutRecord", "PutRecords"}:
            assert response is not None
            self.state.on_records_written(call.stream_name, written_shards(response))
        elif not operation.startswith(("Get", "List", "Describe")):
            self.state.on_change()
        return response


class _UnknownOperationError(Exception):
    """The request names an operation that this server does not implement."""


def _parse_operation(target: str) -> str:
    prefix, operation = target[: len(_TARGET_PREFIX)], target[len(_TARGET_PREFIX) :]
    if prefix != _TARGET_PREFIX or (operation not in OPERATIONS and operation != "SubscribeToShard"):
        raise _UnknownOperationError(
            f"X-Amz-Target {target[:80]!r} is not an operation of this local Kinesis server. docs/local-kinesis.md "
            "lists its operations."
        )
    return operation


def _response_headers() -> list[tuple[bytes, bytes]]:
    return [(b"x-amzn-requestid", str(uuid4()).encode())]


async def _send(send: Send, encoding: Encoding, response: dict[str, Any] | None) -> None:
    """Send a response. An operation without output sends an empty body."""
    body = b"" if response is None else encoding.encode(response)
    headers = [*_response_headers(), (b"content-type", encoding.content_type.encode())]
    await send_response(send, 200, headers, body)


async def _send_error(
    send: Send, encoding: Encoding, error_type: str, message: str, status: int = 400
) -> None:
    headers = [
        *_response_headers(),
        (b"content-type", encoding.content_type.encode()),
        (b"x-amzn-errortype", error_type.encode()),
    ]
    body = encoding.encode({"__type": str(error_type), "message": message})
    await send_response(send, status, headers, body)


def _is_for_this_machine(scope: Scope) -> bool:
    """True if the request names this machine as its host. Refusing others protects against DNS rebinding."""
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    return bool(hosts) and all(is_allowed_host(host, _LOOPBACK) for host in hosts)
