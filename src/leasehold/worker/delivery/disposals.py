"""What is pinned in a lease before records are stored as dead letters.

If the worker ends before the checkpoint passes these records, the next owner finds the pin, and stores the letters
again instead of calling the handler. Otherwise a record could be a dead letter and also have its effect. This module
has no effects.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Final

_MARK: Final = "leasehold.dead-letter"
_NAME_LENGTH_MAX: Final = 200
# A state that a user wrote may be of any size. Ours is smaller than this.
_STATE_BYTES_MAX: Final = 2_048
_MESSAGE_OF_INTERRUPTED: Final = (
    "unknown: the worker that got this error ended before the checkpoint passed the record"
)


@dataclass(frozen=True, slots=True)
class Disposal:
    """Why records become dead letters."""

    error_type: str
    error_message: str
    attempts: int


def disposal_to_state(disposal: Disposal) -> bytes:
    """Encode a disposal as the state of a pin. The message stays out of the table, because it may contain a payload."""
    fields = {
        "mark": _MARK,
        "error": disposal.error_type[:_NAME_LENGTH_MAX],
        "attempts": disposal.attempts,
    }
    return json.dumps(fields, separators=(",", ":")).encode("ascii")


def disposal_from_state(state: bytes | None) -> Disposal | None:
    """Decode the state of a pin. Returns None for a state that a user wrote.

    >>> disposal_from_state(disposal_to_state(Disposal("ValueError", "no", 3))).attempts
    3
    >>> disposal_from_state(b"object-17") is None
    True
    """
    if state is None or len(state) > _STATE_BYTES_MAX:
        return None
    try:
        fields = json.loads(state)
    except (ValueError, RecursionError):
        return None
    if not isinstance(fields, dict) or fields.get("mark") != _MARK:
        return None
    error, attempts = fields.get("error"), fields.get("attempts")
    if not isinstance(error, str) or type(attempts) is not int:
        return None
    return Disposal(error, _MESSAGE_OF_INTERRUPTED, attempts)
