"""A Python member, as in `tests/fleet`, which can also say how busy it is as a test wants it.

Run as a module with two arguments: the consumer's settings as JSON (`load` among them, in percent, is ours), and the
folder for the log.
"""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from leasehold.ports import LoadMeter
from leasehold.worker import connecting
from tests.fleet import worker_program


@dataclass(frozen=True, slots=True)
class FixedLoad(LoadMeter):
    """On one machine all members are equally busy in truth, and no leader has anything to even out."""

    load: float

    async def percent(self) -> float:
        """What the test said."""
        return self.load


def main(options: dict[str, Any], folder: Path) -> None:
    """Consume until told to stop."""
    load = options.pop("load", None)
    if load is not None:
        # The one seam that a user does not have: nobody wants to lie about the load of a machine.
        setattr(connecting, "load_meter", lambda _environment: FixedLoad(load))  # noqa: B010 a name that is not exported
    worker_program.main(options, folder)


if __name__ == "__main__":
    main(json.loads(sys.argv[1]), Path(sys.argv[2]))
