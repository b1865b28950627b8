"""How fan-out misbehaves on demand. A test plans a fault, and the next subscription that it fits takes it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from leasehold.config.did_you_mean import did_you_mean
from leasehold.errors import ConfigError
from leasehold.local.control_arguments import optional_text, require_known, whole_number


class FanOutFault(StrEnum):
    """What goes wrong."""

    # At the start of a subscription
    IN_USE = "in_use"  # it is refused with ResourceInUseException
    NO_INITIAL_RESPONSE = "no_initial_response"  # it begins with an event
    OUT_OF_ORDER = "out_of_order"  # its first event has the records before the starting position
    # At any time; an open subscription takes it at once
    SILENCE = "silence"  # it sends nothing more, and stays open
    CUT = "cut"  # the connection is closed in the middle of an event
    GARBAGE = "garbage"  # bytes that are no message, instead of the rest
    WRONG_CRC = "wrong_crc"  # an event with a wrong checksum, instead of the rest
    EARLY_END = "early_end"  # it ends before its time, without an error


FAULTS_OF_OPEN_SUBSCRIPTIONS: Final = frozenset(
    {
        FanOutFault.SILENCE,
        FanOutFault.CUT,
        FanOutFault.GARBAGE,
        FanOutFault.WRONG_CRC,
        FanOutFault.EARLY_END,
    }
)


@dataclass(slots=True)
class _PlannedFault:
    kind: FanOutFault
    stream: str | None
    shard: str | None
    times: int


@dataclass(slots=True)
class FanOutFaults:
    """The faults that no subscription has taken yet."""

    _planned: list[_PlannedFault] = field(default_factory=list)

    def plan(self, arguments: dict[str, Any]) -> None:
        """Plan a fault: its kind, how many times it happens, and optionally the stream and shard that it is for."""
        require_known(arguments, ("fault", "times", "stream", "shard"))
        times = whole_number(arguments, "times", default=1)
        if times < 1:
            raise ConfigError(f"times={times}: expected 1 or higher")
        kind = _fault(optional_text(arguments, "fault") or "")
        stream, shard = optional_text(arguments, "stream"), optional_text(arguments, "shard")
        self._planned.append(_PlannedFault(kind, stream, shard, times))

    def take(self, kinds: Collection[FanOutFault], stream: str, shard: str) -> FanOutFault | None:
        """The oldest planned fault of one of these kinds that fits a subscription, if there is one."""
        for planned in self._planned:
            if planned.kind in kinds and planned.stream in {None, stream} and planned.shard in {None, shard}:
                planned.times -= 1
                if planned.times == 0:
                    self._planned.remove(planned)
                return planned.kind
        return None

    def clear(self) -> None:
        self._planned.clear()


def _fault(name: str) -> FanOutFault:
    try:
        return FanOutFault(name)
    except ValueError:
        known = [str(each) for each in FanOutFault]
        hint = did_you_mean(name, known, otherwise=f"known faults are {', '.join(known)}")
        raise ConfigError(f"unknown fault {name!r}: {hint}") from None
