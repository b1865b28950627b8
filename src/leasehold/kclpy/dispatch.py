"""Turns messages of the MultiLang protocol into inputs of a record processor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from leasehold.kclpy import messages


class MalformedAction(Exception):  # noqa: N818 - the name in kclpy
    """A message has no action, or an unknown one."""


_INPUTS: Final[Mapping[str, Callable[[Mapping[str, Any]], object]]] = {
    "initialize": messages.InitializeInput,
    "processRecords": messages.ProcessRecordsInput,
    "checkpoint": messages.CheckpointInput,
    "record": messages.Record,
    "shutdownRequested": messages.ShutdownRequestedInput,
    "leaseLost": messages.LeaseLostInput,
    "shardEnded": messages.ShardEndedInput,
}


def message_decode(json_dict: Mapping[str, Any]) -> Any:
    """Return the input for a JSON object."""
    action = json_dict.get("action")
    make = _INPUTS.get(action) if isinstance(action, str) else None
    if make is None:
        raise MalformedAction(f"a message has the action {action!r}: expected one of {', '.join(_INPUTS)}")
    return make(json_dict)
