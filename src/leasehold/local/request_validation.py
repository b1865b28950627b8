"""A request's body checked against the service's own model (as botocore carries it): required members, types,
lengths, patterns. What comes out holds bytes for blobs and milliseconds for times, in either encoding.
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
    """What each operation takes."""

    def __init__(self) -> None:
        self._service = ServiceModel(Loader().load_service_model("kinesis", "service-2"))
        self._operations = frozenset(self._service.operation_names)

    def checked(self, operation: str, body: object, wire: Encoding) -> dict[str, Any]:
        """The members of a request; anything that the model forbids is a ValidationException."""
        if operation not in self._operations:
            raise validation_error(
                f"{operation} is unknown to the botocore that is installed: upgrade boto3."
            )
        shape = self._service.operation_model(operation).input_shape
        checked: dict[str, Any] = _checked(shape, body, "", wire) if shape is not None else {}
        if checked.get("DryRun"):
            raise validation_error("DryRun is not served here: the call would have been carried out.")
        return checked


def _checked(shape: Any, value: Any, path: str, wire: Encoding) -> Any:
    kind = shape.type_name
    if kind == "timestamp":
        return wire.decode_time(value)
    if kind == "blob":
        return wire.decode_blob(value)
    if not _is_a(kind, value):
        raise MalformedBodyError(f"{path or 'the body'} is not a {kind}")
    if kind == "structure":
        return _checked_members(shape, value, path, wire)
    _check_constraints(shape, value, path)
    if kind == "list":
        return [_checked(shape.member, item, f"{path}.member", wire) for item in value]
    if kind == "map":
        return {
            _checked(shape.key, key, f"{path}.key", wire): _checked(shape.value, item, f"{path}.value", wire)
            for key, item in value.items()
        }
    return value


def _is_a(kind: str, value: object) -> bool:
    # Not isinstance: True is no integer here.
    return type(value) is _PYTHON_TYPES[kind]


def _checked_members(shape: Any, value: dict[Any, Any], path: str, wire: Encoding) -> dict[str, Any]:
    prefix = f"{path}." if path else ""
    for name in shape.required_members:
        if value.get(name) is None:
            raise violation_error(prefix + name, None, "Member must not be null")
    # An explicit null is the same as nothing; unknown members are ignored, as the service does.
    return {
        name: _checked(member, value[name], prefix + name, wire)
        for name, member in shape.members.items()
        if value.get(name) is not None
    }


def _check_constraints(shape: Any, value: Any, path: str) -> None:
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
    """The service's own wording. Long values are not repeated: they may be a record."""
    shown = "null" if value is None else f"'{value}'" if isinstance(value, int) else f"'{str(value)[:128]}'"
    member = path[:1].lower() + path[1:]
    return validation_error(
        f"1 validation error detected: Value {shown} at '{member}' failed to satisfy constraint: {constraint}"
    )


@cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text)
