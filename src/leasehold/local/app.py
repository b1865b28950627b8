"""The server as an ASGI application: finds the operation, serves it, shapes answers and errors as AWS does.

Signatures are not checked, and any credentials will do. Payloads and keys are never logged.
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
        self._inputs = RequestValidator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        assert scope["type"] == "http", "neither lifespan nor websockets are switched on"
        try:
            body = await read_body(receive)
        except DisconnectedError:
            return
        except BodyTooLargeError:
            await send_response(send, 413, [(b"connection", b"close")], b"")
            return
        if not _is_for_this_machine(scope):
            await send_response(
                send, 403, [], b"this server answers to localhost and loopback addresses only"
            )
        elif scope["path"].startswith(CONTROL_PREFIX):
            await serve_control(self.state, scope, body, send)
        else:
            await self._serve_kinesis(scope, body, receive, send)

    async def _serve_kinesis(self, scope: Scope, body: bytes, receive: Receive, send: Send) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        wire = encoding_for(headers.get("content-type", "")) or JSON
        target = headers.get("x-amz-target", "")
        try:
            operation = _operation(target)
            call = self._call(operation, body, wire)
            if operation == "SubscribeToShard":
                await subscribe_to_shard(self.state, call, _answer_headers(), receive, send)
                return
            answer = self._answer(operation, call)
        except KinesisApiError as refused:
            await _send_error(send, wire, refused.error_type, refused.message)
        except MalformedBodyError as malformed:
            await _send_error(send, wire, "SerializationException", str(malformed))
        except _UnknownOperationError as unknown:
            await _send_error(send, wire, "UnknownOperationException", str(unknown))
        except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer
            # Its type only: the text of an unforeseen error may hold a payload.
            log.error("%.80s failed inside the server: %s", target, type(error).__name__)  # noqa: TRY400
            await _send_error(send, wire, "InternalFailureException", "The server failed.", status=500)
        else:
            await _send(send, wire, answer)

    def _call(self, operation: str, body: bytes, wire: Encoding) -> Call:
        members = self._inputs.checked(operation, wire.decode(body) if body else {}, wire)
        return Call(self.state.service, members, self.state.clock.now_ms(), wire)

    def _answer(self, operation: str, call: Call) -> dict[str, Any] | None:
        answer = OPERATIONS[operation](call)
        if operation in {"PutRecord", "PutRecords"}:
            assert answer is not None
            self.state.on_records_written(call.stream_name, written_shards(answer))
        elif not operation.startswith(("Get", "List", "Describe")):
            self.state.on_change()
        return answer


class _UnknownOperationError(Exception):
    """The request names nothing that this server does."""


def _operation(target: str) -> str:
    prefix, operation = target[: len(_TARGET_PREFIX)], target[len(_TARGET_PREFIX) :]
    if prefix != _TARGET_PREFIX or (operation not in OPERATIONS and operation != "SubscribeToShard"):
        raise _UnknownOperationError(
            f"X-Amz-Target {target[:80]!r} is not served here. This is a Kinesis server on one machine: see "
            "docs/local-kinesis.md for its operations."
        )
    return operation


def _answer_headers() -> list[tuple[bytes, bytes]]:
    return [(b"x-amzn-requestid", str(uuid4()).encode())]


async def _send(send: Send, wire: Encoding, answer: dict[str, Any] | None) -> None:
    """An operation that has nothing to say answers with an empty body."""
    body = b"" if answer is None else wire.encode(answer)
    headers = [*_answer_headers(), (b"content-type", wire.content_type.encode())]
    await send_response(send, 200, headers, body)


async def _send_error(send: Send, wire: Encoding, error_type: str, message: str, status: int = 400) -> None:
    headers = [
        *_answer_headers(),
        (b"content-type", wire.content_type.encode()),
        (b"x-amzn-errortype", error_type.encode()),
    ]
    body = wire.encode({"__type": str(error_type), "message": message})
    await send_response(send, status, headers, body)


def _is_for_this_machine(scope: Scope) -> bool:
    """Whether the request names this machine. A page that makes its own name point here must not read what is here."""
    hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
    return all(is_allowed_host(host, _LOOPBACK) for host in hosts)
