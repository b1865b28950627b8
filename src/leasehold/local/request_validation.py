"""Validates a request's body against botocore's model of the service: required members, types, lengths, patterns.

The result has bytes for blobs and milliseconds for times, in both encodings.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from botocore.loaders import Loader
from botocore.model import ServiceModel

from leasehold.kinesis_model.api_errors import KinesisApiError, validation_error
from leasehold.local.encodings import Encoding, MalformedBodyError

_PYTHON_TYPES: Final[dict[str, type]] = {
    "string": str,
    "integer": int,
    "long": int,
    "boolean": bool,
    "list": list,
    "map": dict,
    "structure": dict,
}


class RequestValidator:
    """Validates the input of each operation."""

    def __init__(self) -> None:
        self._service = ServiceModel(Loader().load_service_model("kinesis", "service-2"))
        self._operations = frozenset(self._service.operation_names)

    def validate(self, operation: str, body: object, encoding: Encoding) -> dict[str, Any]:
        """Return the members of a request. Anything that the model forbids is a ValidationException."""
        if operation not in self._operations:
            raise validation_error(f"the installed botocore does not know {operation}: upgrade boto3.")
        shape = self._service.operation_model(operation).input_shape
        members: dict[str, Any] = _convert(shape, body, "", encoding) if shape is not None else {}
        if members.get("DryRun"):
            raise validation_error("DryRun is not supported: this server would execute the call.")
        return members


def _convert(shape: Any, value: Any, path: str, encoding: Encoding) -> Any:
    kind = shape.type_name
    if kind == "timestamp":
        return encoding.decode_time(value)
    if kind == "blob":
        return encoding.decode_blob(value)
    if not _has_type(kind, value):
        raise MalformedBodyError(f"{path or 'the body'} is not a {kind}")
    if kind == "structure":
        return _convert_members(shape, value, path, encoding)
    _require_constraints(shape, value, path)
    if kind == "list":
        return [_convert(shape.member, item, f"{path}.member", encoding) for item in value]
    if kind == "map":
        return {
            _convert(shape.key, key, f"{path}.key", encoding): _convert(
                shape.value, item, f"{path}.value", encoding
            )
            for key, item in value.items()
        }
    return value


def _has_type(kind: str, value: object) -> bool:
    # Not isinstance, because True is an instance of int.
    return type(value) is _PYTHON_TYPES[kind]


def _convert_members(shape: Any, value: dict[Any, Any], path: str, encoding: Encoding) -> dict[str, Any]:
    prefix = f"{path}." if path else ""
    for name in shape.required_members:
        if value.get(name) is None:
            raise violation_error(prefix + name, None, "Member must not be null")
    # An explicit null means that the member is absent. Unknown members are ignored, as in the service.
    return {
        name: _convert(member, value[name], prefix + name, encoding)
        for name, member in shape.members.items()
        if value.get(name) is not None
    }


def _require_constraints(shape: Any, value: Any, path: str) -> None:
    metadata = shape.metadata
    is_number = isinstance(value, int)
    measured = value if is_number else len(value)
    noun = "value" if is_number else "length"
    if "enum" in metadata and value not in metadata["enum"]:
        raise violation_error(
            path, value, f"Member must satisfy enum value set: [{', '.join(metadata['enum'])}]"
        )
    if "min" in metadata and measured < metadata["min"]:
        raise violation_error(
            path, value, f"Member must have {noun} greater than or equal to {metadata['min']}"
        )
    if "max" in metadata and measured > metadata["max"]:
        raise violation_error(path, value, f"Member must have {noun} less than or equal to {metadata['max']}")
    if "pattern" in metadata and not _pattern(metadata["pattern"]).fullmatch(value):
        raise violation_error(
            path, value, f"Member must satisfy regular expression pattern: {metadata['pattern']}"
        )


def violation_error(path: str, value: object, constraint: str) -> KinesisApiError:
    """Return an error in the wording of the service. Long values are truncated, because they may be a record."""
    shown = "null" if value is None else f"'{value}'" if isinstance(value, int) else f"'{str(value)[:128]}'"
    member = path[:1].lower() + path[1:]
    return validation_error(
        f"1 validation error detected: Value {shown} at '{member}' failed to satisfy constraint: {constraint}"
    )


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)
