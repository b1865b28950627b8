"""Carries out planned faults: kills, pauses, reshards and network faults."""

import signal
import time
from collections.abc import Callable

from tests.chaos.accounting import Disruption
from tests.chaos.fault_plan import Fault, Group, Kill, NetworkFault, Pause, Reshard, Victim
from tests.chaos.system import FLEETS, ChaosSystem

# A worker that has just started owns no lease, so a kill would test nothing. Only older workers are killed.
AGE_TO_KILL_S = 8.0


class FaultInjector:
    """Injects faults into a system. `disruptions` are the faults of recording workers."""

    def __init__(self, system: ChaosSystem) -> None:
        self.injected: list[Fault] = []
        self.disruptions: list[Disruption] = []
        self._system = system
        self._scheduled: list[tuple[float, Callable[[], None]]] = []
        self._paused: set[tuple[Group, str]] = set()

    def inject_first_possible(self, plan: list[Fault]) -> None:
        """Inject the first fault of the plan that has a victim now, and remove it from the plan."""
        without_victim: set[object] = set()
        for index, fault in enumerate(plan):
            kind = (type(fault), fault.victim) if isinstance(fault, Kill | Pause) else fault
            if kind not in without_victim and self._inject(fault):
                self.injected.append(plan.pop(index))
                return
            without_victim.add(kind)

    def end_due(self) -> None:
        """End the pauses and network faults whose time is over."""
        now = time.monotonic()
        for each in [scheduled for scheduled in self._scheduled if scheduled[0] <= now]:
            self._scheduled.remove(each)
            each[1]()

    def end_all(self) -> None:
        """End all pauses and network faults."""
        for _, end in sorted(self._scheduled, key=lambda each: each[0]):
            end()
        self._scheduled.clear()

    def _inject(self, fault: Fault) -> bool:
        """Inject a fault. Returns False if it has no victim now."""
        match fault:
            case Reshard():
                self._system.producer.reshard()
                return True
            case Kill(victim, pick):
                return self._kill_worker(victim, pick) if victim in FLEETS else self._kill_spark(victim, pick)
            case Pause(victim, pick, for_s):
                pause = self._pause_worker if victim in FLEETS else self._pause_spark
                return pause(victim, pick, for_s)
            case NetworkFault():
                return self._start_network_fault(fault)

    def _start_network_fault(self, fault: NetworkFault) -> bool:
        proxies, proxy = self._system.proxies, self._system.connections[fault.group, fault.dependency]
        if proxy.fault is not None:
            return False
        proxies.set_fault(proxy, fault.kind)
        self._call_later(fault.for_s, lambda: proxies.clear_fault(proxy))
        return True

    def _kill_worker(self, victim: Victim, pick: float) -> bool:
        group = FLEETS[victim]
        worker = self._pick_worker(group, pick, age_s=AGE_TO_KILL_S)
        if worker is None:
            return False
        self._system.fleets[group].kill(worker)
        self._record(victim, Disruption(worker, "its owner was killed", time.monotonic_ns()))
        self._system.start_worker(group)
        return True

    def _pause_worker(self, victim: Victim, pick: float, for_s: float) -> bool:
        group = FLEETS[victim]
        worker = self._pick_worker(group, pick)
        if worker is None:
            return False
        fleet, from_ns = self._system.fleets[group], time.monotonic_ns()
        fleet.pause(worker)
        self._paused.add((group, worker))

        def resume() -> None:
            self._paused.discard((group, worker))
            if worker in fleet.workers:
                fleet.resume(worker)
            self._record(victim, Disruption(worker, "its owner was paused", from_ns, time.monotonic_ns()))

        self._call_later(for_s, resume)
        return True

    def _kill_spark(self, victim: Victim, pick: float) -> bool:
        pids = self._pick_spark_processes(victim, pick)
        self._system.spark.signal(pids, signal.SIGKILL)
        return bool(pids)

    def _pause_spark(self, victim: Victim, pick: float, for_s: float) -> bool:
        pids = self._pick_spark_processes(victim, pick)
        self._system.spark.signal(pids, signal.SIGSTOP)
        if pids:
            self._call_later(for_s, lambda: self._system.spark.signal(pids, signal.SIGCONT))
        return bool(pids)

    def _pick_spark_processes(self, victim: Victim, pick: float) -> list[int]:
        """Return one process of this kind, or all processes of the pipeline."""
        pids = self._system.spark.find(victim)
        return pids if victim is Victim.PIPELINE or not pids else [pids[int(pick * len(pids))]]

    def _pick_worker(self, group: Group, pick: float, age_s: float = 0.0) -> str | None:
        """Return a worker that is not paused and at least `age_s` old."""
        started_before = time.monotonic() - age_s
        workers = [
            each
            for each in self._system.fleets[group].workers
            if (group, each) not in self._paused and self._system.started_at[group, each] <= started_before
        ]
        return workers[int(pick * len(workers))] if workers else None

    def _record(self, victim: Victim, disruption: Disruption) -> None:
        if victim is Victim.RECORDER:
            self.disruptions.append(disruption)

    def _call_later(self, after_s: float, action: Callable[[], None]) -> None:
        self._scheduled.append((time.monotonic() + after_s, action))
