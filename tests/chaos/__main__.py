"""`make chaos`: a run with everything that it needs, on this machine.

    python -m tests.chaos [--seed N] [--minutes M] [--kills N] [--pauses N] [--reshards N] [--troubles N]

Exit code 1 if a record was lost, is in the archive twice, or another promise was broken.
"""

import argparse
import os
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from leasehold.local import LocalKinesis
from tests.chaos.fault_plan import FaultCounts
from tests.chaos.run import ChaosOptions, ChaosRun, Servers
from tests.proxy import run_proxies
from tests.servers.catalog import DYNAMODB_LOCAL, MINISTACK
from tests.servers.running import Run


def main() -> int:
    """Run, report, and say by the exit code whether all is well. A folder is kept if it is not."""
    options = _options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that everything is ended on the way out
    folder = Path(tempfile.mkdtemp(prefix="leasehold-chaos-"))
    with _servers(folder) as servers, run_proxies() as running:
        report = ChaosRun(options, servers, running, folder, _tell).run()
    _tell(report.text())
    if report.problems:
        _tell(f"logs are in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


@contextmanager
def _servers(folder: Path) -> Iterator[Servers]:
    (folder / "servers").mkdir()
    run = Run(os.getpid(), folder / "servers")
    try:
        with LocalKinesis.in_process() as kinesis:
            yield Servers(kinesis, run.server(DYNAMODB_LOCAL), run.server(MINISTACK))
    finally:
        run.end()


def _options() -> ChaosOptions:
    usual, counts = ChaosOptions(seed=0), FaultCounts()
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(1_000_000), help="decides on the faults"
    )
    parser.add_argument("--minutes", type=float, default=usual.minutes, help="how long it all may take")
    for name in ("kills", "pauses", "reshards", "troubles"):
        parser.add_argument(f"--{name}", type=int, default=getattr(counts, name))
    given = parser.parse_args()
    return ChaosOptions(
        seed=given.seed,
        minutes=given.minutes,
        counts=FaultCounts(
            kills=given.kills,
            pauses=given.pauses,
            reshards=given.reshards,
            network_faults=given.network_faults,
        ),
    )


def _tell(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
