"""The options of the Spark source: name, other names, type, default, meaning."""

from collections.abc import Callable, Iterator
from typing import Any, Final

from leasehold.config import values
from leasehold.core.time_text import parse_time
from leasehold.spark.options import OPTIONS, OptionSpec, parse_consumer_mode, parse_count, parse_size
from tools.reference.tables import code_list, markdown_table

_TYPES: Final[dict[Callable[..., Any], str]] = {
    str: "text",
    parse_count: "whole number above 0",
    parse_size: "bytes, or a size such as `64mb`",
    parse_time: "[time](docs/spark.md#times)",
    values.boolean: "true or false",
    values.duration: "duration",
    values.pairs: "names and values",
    values.real_number: "number",
}


def table() -> str:
    """All options, in the order of the code."""
    return markdown_table(("option", "also called", "type", "default", "meaning"), _rows())


def _rows() -> Iterator[tuple[str, ...]]:
    for name, spec in OPTIONS.items():
        yield f"`{name}`", code_list(spec.aliases), type_name(spec), spec.default, spec.text


def type_name(spec: OptionSpec) -> str:
    """The type of an option. The text of a choice lists its values."""
    is_choice = spec.parse is parse_consumer_mode or spec.parse.__qualname__.startswith("choice.")
    return _TYPES.get(spec.parse, "a choice" if is_choice else "text")
