"""Plays the scenarios of leader mode: what a leader decides after one look at its fleet.

A worker has a processor figure in percent (or several samples, or none), and leases: `7x100` is seven of 100 KiB/s,
`2x-` two whose throughput is unknown. Single leases are written as in peer mode: `a:X` owned by X, `a:-` free, `X/Y` on
its way to X from Y, `@20` unchanged for twenty seconds, `@20+` since it came to its owner, `E` finished, `<p,q` child
of p and q, `~41` on its way for forty-one seconds, `=100` its throughput. `balancing` changes when and how much to
balance, `balanced_s_ago` is the time since the last round.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

from leasehold.core.assignment.leader_assignment import (
    LeaderLimits,
    LeaderMemory,
    LeaderView,
    plan_assignment,
)
from leasehold.core.assignment.move_cooldowns import RecentMove
from leasehold.core.assignment.rebalancing import Balancing
from leasehold.core.assignment.worker_costs import WorkerCost
from leasehold.core.assignment.worker_health import WorkerHistory
from leasehold.core.coordinator.worker_metrics import ALPHA, CPU, WorkerReport
from leasehold.core.leases.liveness import Observation
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId
from leasehold.core.position import SHARD_END, Position
from tests.scenarios.scenario_files import Scenario, only, scenarios

NOW_MS = 10_000_000
WALL_S = 1_790_000_000
SINGLE = re.compile(
    r"(?P<key>\w+):(?P<owner>-|\w+?)(?:/(?P<old>\w+))?(?:@(?P<age>\d+)(?P<given>\+?))?(?P<ended>E?)(?:~(?P<handoff>\d+))?"
    r"(?:=(?P<kbps>\d+))?(?:<(?P<parents>[\w,]+))?"
)
GIVEN = (
    "workers",
    "free",
    "leases",
    "members_for_s",
    "uneven_for_s",
    "leases_max",
    "kbps_max",
    "placed_max",
    "moved_max",
    "by_count",
    "balancing",
    "balanced_s_ago",
    "newest_weight",
    "moved",
    "unreadable",
)
EXPECT = ("has", "assign", "hand_off", "assigned", "handed_off", "withdraw", "left_free")
WORKER = (
    "cpu",
    "samples",
    "range",
    "leases",
    "report_age_s",
    "silent_s",
    "cost",
    "stable_s",
    "suspect",
    "had",
)


@scenarios("leader")
def test_leader(scenario: Scenario) -> None:
    """A look at this fleet gives this plan."""
    given = only(scenario.given, optional=GIVEN)
    expect = only(scenario.expect, optional=EXPECT)
    view = _view(given)
    plan = plan_assignment(
        view,
        LeaderLimits(
            failover_ms=10_000,
            handoff_timeout_ms=30_000,
            leases_max=given.get("leases_max"),
            kbps_max=given.get("kbps_max"),
            placed_max=given.get("placed_max"),
            moved_max=given.get("moved_max"),
            balancing=Balancing(by_count=given.get("by_count", False), **given.get("balancing", {})),
            newest_weight=given.get("newest_weight", ALPHA),
        ),
    )
    if "has" in expect:
        assert _after(view, plan.assign + plan.hand_off) == expect["has"]
    for name, lines, count in (
        ("assign", plan.assign, "assigned"),
        ("hand_off", plan.hand_off, "handed_off"),
    ):
        if name in expect:
            assert {line.lease.key: line.to for line in lines} == expect[name]
        else:
            assert len(lines) == expect.get(count, 0), name
    assert [lease.key for lease in plan.withdraw] == expect.get("withdraw", [])
    assert plan.left_free == expect.get("left_free", 0)


def _after(view: LeaderView, lines: Any) -> dict[str, int]:
    """How many leases head to each worker once the plan is carried out."""
    heading = {lease.key: lease.owner for lease in view.leases} | {line.lease.key: line.to for line in lines}
    counts = Counter({report.worker: 0 for report in view.reports})
    counts.update(owner for owner in heading.values() if owner is not None)
    return {str(worker): number for worker, number in counts.items()}


def _view(given: dict[str, Any]) -> LeaderView:
    seen: list[tuple[Lease, Observation]] = []
    reports, histories, costs = [], {}, {}
    for name, described in given.get("workers", {}).items():
        worker = only(described, optional=WORKER)
        age_s = worker.get("silent_s", 1)
        for number, kbps in enumerate(_groups(worker.get("leases", []))):
            seen.append(_lease(f"{name}{number}", owner=name, age_s=age_s, kbps=kbps))
        reports.append(_report(name, worker))
        updated_s = reports[-1].updated_s
        costs[WorkerId(name)] = WorkerCost(
            updated_s=updated_s,
            leases=frozenset(lease.key for lease, _ in seen if lease.actual_owner == name),
            stable_since_ms=NOW_MS - 1000 * worker.get("stable_s", 3600),
            learned=worker.get("cost", 1.0),
            applied=worker.get("cost", 1.0),
        )
        histories[WorkerId(name)] = WorkerHistory(
            updated_s=updated_s,
            last_report_ms=NOW_MS - 1000 * worker.get("report_age_s", 5),
            suspected_at_s=updated_s if worker.get("suspect") else None,
            leases=frozenset(map(LeaseKey, worker.get("had", []))),
        )
    for number, kbps in enumerate(_groups(given.get("free", []))):
        seen.append(_lease(f"free{number}", kbps=kbps))
    seen += [_single(text) for text in given.get("leases", [])]
    members_for_ms = 1000 * given.get("members_for_s", 3600)
    memory = LeaderMemory(
        workers=histories,
        costs=costs,
        balanced_ms=NOW_MS - 1000 * given.get("balanced_s_ago", 3600),
        moved={LeaseKey(key): RecentMove(NOW_MS - 1000 * s) for key, s in given.get("moved", {}).items()},
    )
    leases, observations = [lease for lease, _ in seen], {lease.key: one for lease, one in seen}
    view = LeaderView(
        now_ms=NOW_MS - members_for_ms,
        wall_s=WALL_S,
        leases=leases,
        observations=observations,
        reports=reports,
        unreadable={LeaseKey(key) for key in given.get("unreadable", [])},
        memory=memory,
    )
    return _with_stable_members(view, members_for_ms, 1000 * given.get("uneven_for_s", 3600))


def _with_stable_members(view: LeaderView, members_for_ms: int, uneven_for_ms: int) -> LeaderView:
    """The same snapshot, with a memory in which the members are the same, and uneven, for so long."""
    first = plan_assignment(
        replace(view, now_ms=NOW_MS), LeaderLimits(failover_ms=10_000, handoff_timeout_ms=30_000)
    )
    memory = replace(
        view.memory,
        members=first.memory.members,
        members_since_ms=NOW_MS - members_for_ms,
        uneven_since_ms=NOW_MS - uneven_for_ms,
    )
    return replace(view, now_ms=NOW_MS, memory=memory)


def _report(name: str, worker: dict[str, Any]) -> WorkerReport:
    samples = worker.get("samples", {CPU: [worker["cpu"]]} if "cpu" in worker else {})
    return WorkerReport(
        worker=WorkerId(name),
        updated_s=WALL_S - worker.get("report_age_s", 5),
        samples={metric: tuple(map(float, values)) for metric, values in samples.items()},
        ranges={metric: (worker.get("range", 100),) for metric in samples},
    )


def _groups(groups: list[str]) -> Iterator[str | None]:
    for group in groups:
        number, kbps = group.split("x")
        yield from [None if kbps == "-" else kbps] * int(number)


def _single(text: str) -> tuple[Lease, Observation]:
    found = SINGLE.fullmatch(text)
    assert found is not None, text
    return _lease(
        found["key"],
        owner=None if found["owner"] == "-" else found["owner"],
        old=found["old"],
        age_s=int(found["age"] or 1),
        was_given=bool(found["given"]),
        handoff_s=int(found["handoff"] or 1),
        kbps=found["kbps"],
        ended=bool(found["ended"]),
        parents=tuple((found["parents"] or "").split(",")) if found["parents"] else (),
    )


def _lease(
    key: str,
    *,
    owner: str | None = None,
    old: str | None = None,
    age_s: int = 1,
    was_given: bool = False,
    handoff_s: int = 1,
    kbps: str | None = None,
    ended: bool = False,
    parents: tuple[str, ...] = (),
) -> tuple[Lease, Observation]:
    lease = Lease(
        key=LeaseKey(key),
        shard_id=ShardId(key),
        checkpoint=SHARD_END if ended else Position("100"),
        owner=WorkerId(owner) if owner else None,
        checkpoint_owner=WorkerId(old) if old else None,
        parents=frozenset(map(ShardId, parents)),
        throughput_kbps=None if kbps is None else Decimal(kbps),
        session=LeaseSessionId("some") if owner and not was_given else None,
    )
    seen = Observation(
        0,
        lease.owner,
        lease.checkpoint_owner,
        NOW_MS - 1000 * age_s,
        NOW_MS - 1000 * handoff_s if old else None,
        NOW_MS - 1000 * age_s if was_given else None,
    )
    return lease, seen
