"""Rows in DynamoDB's JSON format, in which bytes are base64: the wire format of DynamoDB, also used in SQLite."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

import orjson

from leasehold.core.leases.row_writes import Row


def row_to_json(fields: Mapping[str, Any]) -> bytes:
    """A row, or a request that contains rows, as JSON."""
    return orjson.dumps(fields, default=_bytes_to_text, option=orjson.OPT_SORT_KEYS)


def row_from_json_object(fields: Any) -> Row:
    """The row in a parsed JSON object. Raises ValueError if it is not a row."""
    try:
        return {name: _attribute(value) for name, value in fields.items()}
    except (AttributeError, TypeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _bytes_to_text(value: object) -> str:
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode("ascii")
    raise TypeError(f"{type(value).__name__} is not an attribute value")


def _attribute(value: dict[str, Any]) -> dict[str, Any]:
    ((kind, content),) = value.items()
    match kind:
        case "S" | "N" if not isinstance(content, str):
            raise TypeError(f"{kind} holds {type(content).__name__}")
        case "SS" | "NS" if not isinstance(content, list) or not all(
            isinstance(item, str) for item in content
        ):
            raise TypeError(f"{kind} holds something other than strings")
        case "B":
            return {"B": base64.b64decode(content, validate=True)}
        case "BS":
            return {"BS": [base64.b64decode(item, validate=True) for item in content]}
        case "M":
            return {"M": {name: _attribute(item) for name, item in content.items()}}
        case "L":
            return {"L": [_attribute(item) for item in content]}
        case _:
            return {kind: content}
