"""One sample of every event, built from the types of its fields, so that a new event has a sample automatically."""

from dataclasses import fields
from typing import Any, get_args, get_type_hints

from leasehold.core import events
from leasehold.core.events import CallCount, Event
from leasehold.core.finding import Finding, Severity
from leasehold.core.model import ShardId, StreamIdentifier
from leasehold.core.position import Position
from leasehold.core.records.iterators import Gap, IteratorKind, IteratorStart

EVENT_TYPES: tuple[type[Event], ...] = get_args(Event)
_FINDING = Finding(code="stuck", severity=Severity.PROBLEM, text="text", remedy="remedy")

_VALUES: dict[object, object] = {
    str: "text",
    int: 7,
    int | None: 7,
    str | None: "text",
    Position: Position("100"),
    Position | None: Position("100"),
    bool: True,
    Gap: Gap(Position("100"), "117", 1_700_000_000_000),
    IteratorStart: IteratorStart(IteratorKind.AT_SEQUENCE_NUMBER, "100"),
    tuple[str, ...]: ("text",),
    Finding: _FINDING,
    tuple[Finding, ...]: (_FINDING,),
    tuple[CallCount, ...]: (CallCount("GetRecords", 7, 2, 1),),
    tuple[ShardId, ...]: (ShardId("shard-1"),),
    StreamIdentifier | None: None,  # as in a member of one stream, where the lease key is the shard id
}


def sample(kind: type[Event], **given: Any) -> Event:
    """An event of this type. Fields that are not given get a value by their type."""
    hints = get_type_hints(kind, vars(events))
    if "shard" in given:
        given = {"key": given["shard"], **given}
    values = {field.name: given.get(field.name, _value(hints[field.name])) for field in fields(kind)}
    return kind(**values)


def _value(hint: Any) -> object:
    if hint in _VALUES:
        return _VALUES[hint]
    kind = (
        hint.__args__[0] if hint.__class__.__name__ in {"UnionType", "Union", "_UnionGenericAlias"} else hint
    )
    assert kind.__supertype__ is str, f"no sample value for {hint}: add one"  # ids are NewTypes of str
    return "text"
