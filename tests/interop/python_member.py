"""A Python member, as in `tests/fleet`, which can also report a given load and use shorter intervals.

Run as a module with two arguments: the consumer's settings as JSON, and the folder for the log. Two of the settings are
ours: `load`, in percent, and `hurry`, how many times as fast the clocks of the KCL's migrations run.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leasehold.core.coordinator import table_move, upgrade
from leasehold.fleet import member
from leasehold.ports import LoadMeter
from leasehold.worker import connect
from tests.fleet import worker_program


@dataclass(frozen=True, slots=True)
class FixedLoad(LoadMeter):
    """Reports a given load: on one machine all members have the same load, so a leader would have nothing to
    balance.
    """

    load: float

    async def percent(self) -> float:
        """The load that the test set."""
        return self.load


def hurry(times: int) -> None:
    """Shorten the intervals that are fixed because Java's are."""
    for module, name in (
        (upgrade, "CHECK_EVERY_MS"),
        (upgrade, "READY_FOR_MS"),
        (member, "MODE_CHECK_EVERY_MS"),
        (table_move, "STABLE_FOR_MS"),
        (table_move, "JAVA_FIRST_MS"),
        (table_move, "GIVE_WAY_EVERY_MS"),
    ):
        setattr(module, name, getattr(module, name) // times)


def main(options: dict[str, Any], folder: Path) -> None:
    """Consume until SIGTERM."""
    hurry(options.pop("hurry", 1))
    load = options.pop("load", None)
    if load is not None:
        # Users cannot replace the load meter, so the test patches it.
        setattr(connect, "detect_load_meter", lambda _environment: FixedLoad(load))  # noqa: B010 a name that is not exported
    worker_program.main(options, folder)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
