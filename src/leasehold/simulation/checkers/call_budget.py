"""In the steady state a fleet makes no more calls than the budget in docs/simulation.md."""

from __future__ import annotations

from collections import Counter
from typing import Final

from leasehold.config.settings import Mode, milliseconds
from leasehold.core.coordinator.worker_metrics import REPORT_EVERY_MS
from leasehold.core.events import Event, SubscriptionLost
from leasehold.core.model import LeaseKey
from leasehold.core.records.subscriptions import POLL_INSTEAD_FIRST_MS
from leasehold.fleet.assignment.refresh_schedule import STANDBY_REFRESH_LOCKS
from leasehold.simulation.checkers.base import Checker, Report, WorldView
from leasehold.simulation.environment.network import Dependency
from leasehold.simulation.environment.process import ProcessState, SimulatedProcess

_HOUR_MS: Final = 3_600_000
_SLACK: Final = 1.25


class CallsWithinBudget(Checker):
    """Counts the calls between the start and the end of the steady state."""

    promise = "calls-within-budget"

    def __init__(self, world: WorldView, report: Report) -> None:
        super().__init__(world, report)
        self._before: dict[Dependency, int] = {}
        self._since_ms = 0
        self._budget: dict[Dependency, float] = {}
        self._cleanup_calls = 0
        self._polled_until_ms: dict[tuple[SimulatedProcess, LeaseKey], int] = {}

    def event_observed(self, process: SimulatedProcess, event: Event) -> None:
        if isinstance(event, SubscriptionLost) and event.wait_ms >= POLL_INSTEAD_FIRST_MS:
            self._polled_until_ms[process, event.shard_key] = self.world.now_ms() + event.wait_ms

    def steady_state_began(self) -> None:
        self._since_ms = self.world.now_ms()
        self._before = {each: self._count_calls(each) for each in (Dependency.LEASES, Dependency.STREAM)}
        self._budget = self._budget_per_hour()
        # Each finished lease is deleted in the steady state, after reads of its shard and of related leases.
        self._cleanup_calls = 50 + 3 * self._count_finished()

    def steady_state_ended(self) -> None:
        hours = (self.world.now_ms() - self._since_ms) / _HOUR_MS
        # A finished lease stays until its children have been read. Each cleanup reads it again, and its children.
        cleanups = hours * _per_hour(milliseconds(self.world.settings.fleet.clean_up_every))
        self._cleanup_calls += round(3 * cleanups * self._count_finished())
        extra = {Dependency.STREAM: _SLACK * self._polls_instead()}
        for dependency, before in self._before.items():
            made, allowed = (
                self._count_calls(dependency) - before,
                self._budget[dependency] * hours + self._cleanup_calls + extra.get(dependency, 0.0),
            )
            if made > allowed:
                self.report(
                    f"{made} calls to {dependency.value} in {hours * 60:.1f} steady minutes; {allowed:.0f} are allowed"
                )

    def _budget_per_hour(self) -> dict[Dependency, float]:
        """Per shard: heartbeats (with checkpoints) and polls. Per member: refreshes, audits and cleanups."""
        fleet = self.world.settings.fleet
        shards = len(self.world.services.active_leases())
        members = sum(
            process.is_member and process.state is ProcessState.RUNNING for process in self.world.processes
        )
        rounds = _per_hour(milliseconds(fleet.audit_every)) + _per_hour(milliseconds(fleet.clean_up_every))
        polls = _per_hour(self._read_every_ms())
        is_led = fleet.mode is Mode.LEADER
        refreshes = self._refreshes_with_leader(members) if is_led else self._refreshes_of_peers(members)
        heartbeats = shards * _per_hour(milliseconds(fleet.renew_every))
        return {
            Dependency.LEASES: _SLACK * (refreshes + heartbeats + members * rounds),
            Dependency.STREAM: _SLACK * (shards * polls + members * self._stream_rounds()),
        }

    def _stream_rounds(self) -> float:
        """Audits and cleanups of each stream, and lists of the streams, which an audit makes as well."""
        fleet, streams = self.world.settings.fleet, self.world.services.streams
        audits, cleanups = (
            _per_hour(milliseconds(each)) for each in (fleet.audit_every, fleet.clean_up_every)
        )
        identity = self.world.settings.identity
        is_listing = identity.is_listed
        lists = audits + _per_hour(milliseconds(identity.discover_streams_every)) if is_listing else 0.0
        return lists + len(streams.followed) * (audits + cleanups)

    def _read_every_ms(self) -> int:
        """How often a shard is polled or subscribed to. The driver of a query always polls."""
        settings = self.world.settings
        if settings.fan_out.is_fan_out and not self.world.query.has_query:
            return self.world.services.kinesis.settings.subscription_lifetime_ms
        return milliseconds(settings.read.idle_poll_every)

    def _polls_instead(self) -> float:
        """The polls of shards whose subscriptions sent no events while there were faults."""
        now_ms = self.world.now_ms()
        until = (min(until_ms, now_ms) for until_ms in self._polled_until_ms.values())
        polled_ms = sum(max(0, until_ms - self._since_ms) for until_ms in until)
        return polled_ms / milliseconds(self.world.settings.read.idle_poll_every)

    def _refreshes_of_peers(self, members: int) -> float:
        return members * _per_hour(milliseconds(self.world.settings.fleet.refresh_every))

    def _refreshes_with_leader(self, members: int) -> float:
        """The leader refreshes and renews its lock. Each member reports and reads the lock.

        A member with few leases also refreshes where its heartbeats are too rare to bring a nudge in time.
        """
        fleet = self.world.settings.fleet
        lock_renewals = 2 * _per_hour(milliseconds(fleet.leader_lock_duration))
        leader = _per_hour(milliseconds(fleet.leader_refresh_every)) + lock_renewals
        held = Counter(lease.owner for lease in self.world.services.active_leases())
        per_lease = _per_hour(milliseconds(fleet.renew_every))
        refreshes = _per_hour(milliseconds(fleet.refresh_every))
        extra = sum(max(0.0, refreshes - per_lease * held[owner]) for owner in held)
        idle = max(0, members - len(held)) * refreshes
        standby = _per_hour(milliseconds(fleet.leader_lock_duration * STANDBY_REFRESH_LOCKS))
        return leader + extra + idle + members * (_per_hour(REPORT_EVERY_MS) + standby)

    def _count_finished(self) -> int:
        return sum(lease.checkpoint.is_shard_end for lease in self.world.services.leases())

    def _count_calls(self, dependency: Dependency) -> int:
        calls = self.world.services.network.calls
        return sum(count for (called, _), count in calls.items() if called is dependency)


def _per_hour(every_ms: int) -> float:
    return _HOUR_MS / every_ms
