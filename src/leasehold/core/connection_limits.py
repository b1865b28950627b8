"""How many connections a server keeps, and which of them it closes if there are too many. Has no effects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

CONNECTIONS_MAX: Final = 1_024
UNREAD_BYTES_MAX: Final = 128 * 2**20
# The process also needs descriptors for the tables, the stream, a recording and its own files.
RESERVED_DESCRIPTORS: Final = 64
_CONNECTIONS_MIN: Final = 8


@dataclass(frozen=True, slots=True)
class ConnectionState:
    """One connection: since when its client has neither sent a request nor read a response, and what it must read.

    `stalled_since_s` is None while a response is made, or is an event stream without unread messages.
    """

    stalled_since_s: float | None
    unread_bytes: int = 0


def connections_max(descriptors: int) -> int:
    """How many connections a process with so many descriptors may keep."""
    return max(_CONNECTIONS_MIN, min(CONNECTIONS_MAX, descriptors - RESERVED_DESCRIPTORS))


def connections_to_close(states: Sequence[ConnectionState], limit: int) -> list[int]:
    """The numbers of the connections to close: those that have stalled longest.

    Closing these, and not refusing the newest, lets a browser through. A single response may be longer than the limit
    of unread bytes.
    """
    stalled = [(state.stalled_since_s, number) for number, state in enumerate(states)]
    oldest = [
        number for _, number in sorted((since, number) for since, number in stalled if since is not None)
    ]
    surplus = len(states) - limit
    unread = sum(state.unread_bytes for state in states)
    closed: list[int] = []
    for number in oldest:
        bytes_here = states[number].unread_bytes
        is_too_long = unread > UNREAD_BYTES_MAX and bytes_here > 0 and number != oldest[-1]
        if len(closed) < surplus or is_too_long:
            closed.append(number)
            unread -= bytes_here
    return closed
