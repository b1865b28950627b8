"""One chaos run: start the system, inject faults, wait for recovery, stop, and account for every record."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from leasehold.errors import UnavailableError
from tests.chaos.accounting import UNEXPLAINED, ArchiveAccount, explain_repeats
from tests.chaos.fault_injector import FaultInjector
from tests.chaos.fault_plan import Fault, Group, Victim, draw_faults
from tests.chaos.logs import find_logged_bugs, find_lost_leases
from tests.chaos.report import Report, count_by_kind
from tests.chaos.system import ChaosOptions, ChaosSystem, Servers
from tests.fleet.checkpoint_monitor import CheckpointMonitor
from tests.fleet.options import FAILOVER_S
from tests.fleet.run_check import check_run, read_logs
from tests.proxy import Proxies

TICK_S = 0.1
PROGRESS_EVERY_S = 10.0
START_DEADLINE_S = 300.0
# The time at the end of a run for recovery, stop and verification. At most a quarter of the run is kept free for it.
RECOVERY_S = 100.0
RECOVERY_DEADLINE_S = 400.0
CHECKPOINTS_EVERY_S = 2.0


class ChaosRun:
    """Runs the system through all phases. `show` gets lines about the progress."""

    def __init__(
        self,
        options: ChaosOptions,
        servers: Servers,
        proxies: Proxies,
        folder: Path,
        show: Callable[[str], None],
    ) -> None:
        self._options = options
        self._show = show
        self._began = time.monotonic()
        self._shown = self._began
        self._system = ChaosSystem(options, servers, proxies, folder)
        self._injector = FaultInjector(self._system)
        self._account = ArchiveAccount(self._system.open_archive())
        self._monitors = [
            CheckpointMonitor(table, CHECKPOINTS_EVERY_S) for table in self._system.lease_tables()
        ]
        self._problems: list[str] = []
        self._worker_failures: list[str] = []

    def run(self) -> Report:
        """Run all phases."""
        monitoring = [threading.Thread(target=monitor.run, daemon=True) for monitor in self._monitors]
        try:
            self._start()
            for thread in monitoring:
                thread.start()
            not_injected = self._inject(draw_faults(self._options.seed, self._options.counts, FAILOVER_S))
            self._wait_for_recovery()
            self._show("stopping all processes")
            self._problems += self._system.stop()
        finally:
            self._system.kill_all()
            for monitor, thread in zip(self._monitors, monitoring, strict=True):
                monitor.stop()
                if thread.is_alive():
                    thread.join()
        return self._report(not_injected)

    # -- phases ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        self._show(f"seed {self._options.seed}; all files are in {self._system.folder}")
        self._system.start()
        self._wait(self._is_spark_running, "Spark has done a batch", START_DEADLINE_S)

    def _inject(self, plan: list[Fault]) -> int:
        """Inject the faults of a plan at even intervals.

        A fault without a victim is tried again later. Returns the number of faults that never had a victim.
        """
        total_s = self._options.minutes * 60
        left_s = total_s - (time.monotonic() - self._began) - min(RECOVERY_S, total_s / 4)
        # On a busy machine Spark may start slowly. A third of the run is for faults in any case.
        until = time.monotonic() + max(left_s, total_s / 3)
        interval_s = (until - time.monotonic()) / (len(plan) + 1)
        self._show(f"all processes are running; {len(plan)} faults, one every {interval_s:.1f} s")
        next_at = time.monotonic()
        while plan and time.monotonic() < until:
            self._do_chores()
            if time.monotonic() >= next_at:
                self._injector.inject_first_possible(plan)
                next_at += interval_s
            time.sleep(TICK_S)
        return len(plan)

    def _wait_for_recovery(self) -> None:
        """End all faults, and wait until every record is archived and handled."""
        self._injector.end_all()
        self._system.producer.stop()
        self._show(f"no more faults; {self._system.produced:,} records were produced")
        with suppress(AssertionError):  # the report lists the missing records
            self._wait(self._is_complete, "all records are archived and handled", RECOVERY_DEADLINE_S)

    def _wait(self, condition: Callable[[], bool], what: str, deadline_s: float) -> None:
        until = time.monotonic() + deadline_s
        while not condition():
            assert time.monotonic() < until, f"not within {deadline_s} s: {what}"
            self._do_chores()
            time.sleep(TICK_S * 5)

    def _do_chores(self) -> None:
        """End faults whose time is over, restart processes that have ended, and show the progress."""
        self._injector.end_due()
        self._worker_failures += self._system.restart_ended()
        now = time.monotonic()
        if now - self._shown >= PROGRESS_EVERY_S:
            self._shown = now
            self._read_archive()
            self._show(self._progress())

    # -- progress ----------------------------------------------------------------------------------------------

    def _progress(self) -> str:
        system = self._system
        state = "running" if self._is_spark_running() else "starting"
        return (
            f"{time.monotonic() - self._began:4.0f} s  {count_by_kind(self._injector.injected)}; "
            f"{system.produced:,} produced, {len(self._account.found):,} archived, "
            f"{system.recorders.handled():,} handled; Spark run {system.spark.starts} {state}"
        )

    def _is_spark_running(self) -> bool:
        return bool(self._system.spark.find(Victim.DRIVER))

    def _is_complete(self) -> bool:
        self._read_archive()
        produced, recorders = self._system.produced, self._system.recorders
        if len(self._account.found) < produced or recorders.handled() < produced:
            return False
        return len({record.number for record in read_logs(recorders.folder)}) == produced

    def _read_archive(self) -> None:
        with suppress(UnavailableError):  # the next call reads what is missing
            asyncio.run(self._account.read_new_objects())

    # -- accounting --------------------------------------------------------------------------------------------

    def _report(self, not_injected: int) -> Report:
        self._read_archive()
        system, account = self._system, self._account
        producer, recorders = system.producer.producer, system.fleets[Group.RECORDERS]
        recorders.record_lost_leases()
        log = read_logs(recorders.folder)
        check = check_run(
            log,
            produced=system.produced,
            parents=producer.parents(),
            faults_by_worker=recorders.faults_by_worker,
        )
        repeated = explain_repeats(log, [*self._injector.disruptions, *find_lost_leases(recorders.folder)])
        lost = account.lost(system.produced)
        problems = [*self._problems, *check.problems, *self._find_problems(lost, repeated)]
        return Report(
            command=self._options.command,
            took_s=time.monotonic() - self._began,
            failover_s=FAILOVER_S,
            injected=self._injector.injected,
            not_injected=not_injected,
            splits=producer.splits,
            merges=producer.merges,
            produced=system.produced,
            archived=account.found.total(),
            by_spark=system.spark.records(),
            objects=account.objects,
            lost=len(lost),
            duplicated=account.duplicated,
            handled=check.handled,
            not_handled=system.produced - len({record.number for record in log}),
            repeated=repeated,
            pipeline_starts=system.spark.starts,
            pipeline_failures=system.spark.failures,
            worker_failures=self._worker_failures,
            problems=problems,
        )

    def _find_problems(self, lost: set[int], repeated: Counter[str]) -> list[str]:
        problems = []
        if lost:
            problems.append(f"{len(lost)} records are not in the archive, e.g. {min(lost)}")
        if self._account.duplicated:
            problems.append(f"the archive has {self._account.duplicated} duplicated rows")
        if repeated[UNEXPLAINED]:
            problems.append(f"{repeated[UNEXPLAINED]} records were handled again {UNEXPLAINED}")
        problems += self._system.verify_archive()
        problems += [problem for monitor in self._monitors for problem in monitor.problems]
        return problems + find_logged_bugs(self._system.folder)
