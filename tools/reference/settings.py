"""The settings of a consumer, group by group: name, type, default, meaning, the KCL's name."""

from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from datetime import timedelta
from enum import Enum
from types import NoneType
from typing import Any, Final, get_args, get_type_hints

from leasehold.core.model import InitialPosition
from leasehold.worker.options import OPTIONS, PREFIX
from leasehold.worker.settings import ManyStreams
from tools.reference.field_docs import FieldDoc, field_docs
from tools.reference.tables import code_list, markdown_table

GROUPS: Final = {option.group.__name__: option.group for option in OPTIONS.values()}
_TYPES: Final[dict[Any, str]] = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    timedelta: "duration",
    tuple[tuple[str, str], ...]: "names and values",
    InitialPosition: "position",
    ManyStreams: "names, or a function",
}
_UNITS: Final = ((timedelta(hours=1), "h"), (timedelta(minutes=1), "min"), (timedelta(seconds=1), "s"))
_MIB: Final = 1024 * 1024


def table(*groups: str) -> str:
    """The settings of some groups, in the order of the code."""
    rows = (row for group in groups for row in _rows(GROUPS[group]))
    return markdown_table(("setting", "type", "default", "meaning", "KCL"), rows)


def _rows(group: type) -> Iterator[tuple[str, ...]]:
    docs, hints = field_docs(group), get_type_hints(group)
    for field in fields(group):
        doc = docs.get(field.name)
        assert doc is not None, f"{group.__name__}.{field.name} needs a docstring below it"
        type_text = type_name(hints[field.name])
        yield (
            f"`{field.name}`<br>`{PREFIX}{field.name.upper()}`",
            f"{type_text}: {doc.unit}" if doc.unit else type_text,
            doc.default or default_text(default_of(field), doc),
            doc.text,
            code_list(doc.kcl),
        )


def default_of(field: Field[Any]) -> object:
    """The default of a field."""
    return field.default_factory() if field.default_factory is not MISSING else field.default


def type_name(hint: Any) -> str:
    """A type, as a reader of the settings sees it."""
    if hint not in _TYPES and NoneType in get_args(hint):
        parts = [part for part in get_args(hint) if part is not NoneType]
        return type_name(parts[0]) if len(parts) == 1 else "text, or a function"
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "one of " + code_list(str(member.value) for member in hint)
    return _TYPES[hint]


def default_text(value: object, doc: FieldDoc) -> str:
    """A default, as a reader writes it."""
    match value:
        case None | "" | ():
            return "none"
        case bool():
            return str(value).lower()
        case Enum(value=text):
            return f"`{text}`"
        case timedelta():
            return _duration_text(value)
        case int() if doc.unit == "bytes" and value % _MIB == 0:
            return f"{value // _MIB} MiB"
        case int() | float():
            return f"{value:,g}" if isinstance(value, float) else f"{value:,}"
        case _:
            return f"`{value}`"


def _duration_text(duration: timedelta) -> str:
    for size, name in _UNITS:
        if duration >= size and (duration % size == timedelta(0) or name == "s"):
            return f"{duration / size:g} {name}"
    return f"{duration / timedelta(milliseconds=1):g} ms"
