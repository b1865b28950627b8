"""`make chaos`: a chaos run on this machine, with its servers.

    python -m tests.chaos [--seed N] [--minutes M] [--kills N] [--pauses N] [--reshards N]
                          [--network-faults N]

The exit code is 1 if a record was lost or archived twice, or if another promise was broken.
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
from tests.chaos.run import ChaosRun
from tests.chaos.system import ChaosOptions, Servers
from tests.proxy import run_proxies
from tests.servers.catalog import DYNAMODB_LOCAL, MINISTACK
from tests.servers.running import Run


def main() -> int:
    """Run, print the report, and return the exit code. Keeps the logs if a promise was broken."""
    options = _parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # `finally` blocks end all processes
    folder = Path(tempfile.mkdtemp(prefix="leasehold-chaos-"))
    with _run_servers(folder) as servers, run_proxies() as proxies:
        report = ChaosRun(options, servers, proxies, folder, _show).run()
    _show(report.text())
    if report.problems:
        _show(f"logs are in {folder}")
        return 1
    shutil.rmtree(folder, ignore_errors=True)
    return 0


@contextmanager
def _run_servers(folder: Path) -> Iterator[Servers]:
    (folder / "servers").mkdir()
    run = Run(os.getpid(), folder / "servers")
    try:
        with LocalKinesis.in_process() as kinesis:
            yield Servers(kinesis, run.server(DYNAMODB_LOCAL), run.server(MINISTACK))
    finally:
        run.end()


def _parse_options() -> ChaosOptions:
    default, counts = ChaosOptions(seed=0), FaultCounts()
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--seed", type=int, default=secrets.randbelow(1_000_000), help="decides which faults are injected"
    )
    parser.add_argument("--minutes", type=float, default=default.minutes, help="duration of the run")
    for name in ("kills", "pauses", "reshards", "network_faults"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(counts, name))
    arguments = parser.parse_args()
    return ChaosOptions(
        seed=arguments.seed,
        minutes=arguments.minutes,
        counts=FaultCounts(
            kills=arguments.kills,
            pauses=arguments.pauses,
            reshards=arguments.reshards,
            network_faults=arguments.network_faults,
        ),
    )


def _show(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
