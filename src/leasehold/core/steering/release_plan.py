"""Which leases a release concerns, and which worker gets each of them next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from leasehold.core.command_name import parse_command
from leasehold.core.coordinator.worker_metrics import EXPIRED_AFTER_MS, WorkerReport
from leasehold.core.leases.lease_view import leases_without_heartbeat
from leasehold.core.model import Lease, LeaseKey, WorkerId
from leasehold.errors import ConfigError, NotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseRequest:
    """Which leases to release: of these shards, of one worker, or all."""

    shards: tuple[str, ...] = ()
    worker: WorkerId | None = None
    is_all: bool = False

    def __post_init__(self) -> None:
        if [bool(self.shards), self.worker is not None, self.is_all].count(True) != 1:
            raise ConfigError("name either shards, or a worker, or all leases")


def find_leases(leases: Sequence[Lease], shards: Collection[str]) -> list[Lease]:
    """The leases of these shards, each given by shard id or lease key. Raises NotFoundError for an unknown one."""
    found = [lease for lease in leases if lease.key in shards or lease.shard_id in shards]
    for name in shards:
        matching = [lease for lease in found if name in {lease.key, lease.shard_id}]
        if not matching:
            raise NotFoundError(f"shard {name} has no lease; `leasehold leases` shows all leases")
        if len(matching) > 1:
            keys = ", ".join(lease.key for lease in matching)
            raise ConfigError(f"shard {name}: several streams have it; name one of its leases: {keys}")
    return found


def leases_to_release(leases: Sequence[Lease], request: ReleaseRequest) -> list[Lease]:
    """The leases that have an owner and something left to read."""
    if request.shards:
        chosen = find_leases(leases, request.shards)
    elif request.worker is not None:
        chosen = [lease for lease in leases if lease.actual_owner == request.worker]
        if not chosen:
            owners = (
                ", ".join(sorted({each.actual_owner for each in leases if each.actual_owner})) or "nobody"
            )
            raise NotFoundError(f"worker {request.worker} has no lease; leases are owned by {owners}")
    else:
        chosen = list(leases)
    owned = [lease for lease in chosen if lease.actual_owner is not None]
    return sorted((lease for lease in owned if not lease.checkpoint.is_shard_end), key=lambda each: each.key)


@dataclass
class NextOwners:
    """Chooses the next owner of each released lease: the living worker with the fewest leases, never the last owner.

    A worker that was seen to renew a lease, or to report, is preferred to one with a fresh report only: that one may
    have ended since. Only a leader's fleet begins leases that name a worker. Peers take free leases by themselves.
    """

    living: Collection[WorkerId]
    counts: dict[WorkerId, int] = field(default_factory=dict)
    last_owners: Mapping[LeaseKey, WorkerId] = field(default_factory=dict)
    heard: Collection[WorkerId] = ()

    def choose(self, key: LeaseKey) -> WorkerId | None:
        """The next owner of a lease. None: the lease is freed, and the fleet decides."""
        last = self.last_owners.get(key)
        others = [worker for worker in self.living if worker != last]
        if not others:
            return None
        chosen = min(others, key=lambda each: (each not in self.heard, self.counts.get(each, 0), each))
        self.counts[chosen] = self.counts.get(chosen, 0) + 1
        return chosen


@dataclass(frozen=True, slots=True)
class FleetRead:
    """The leases and the worker reports of a fleet, read at one time."""

    leases: Sequence[Lease]
    reports: Sequence[WorkerReport] = ()


def next_owners(
    released: Iterable[Lease],
    before: FleetRead,
    after: FleetRead,
    *,
    wall_s: int,
    drained: WorkerId | None = None,
) -> NextOwners:
    """Prepare the choice for a fleet with a leader, from two reads that are longer apart than two heartbeats.

    A drained worker gets nothing. Nor does one that has leases and renewed none of them, although its report is fresh:
    it ended after the report.
    """
    keys = {lease.key: lease.actual_owner for lease in released if lease.actual_owner is not None}
    silent_keys = leases_without_heartbeat(before.leases, after.leases)
    owned = [
        (lease, lease.actual_owner)
        for lease in after.leases
        if lease.actual_owner is not None and not lease.checkpoint.is_shard_end
    ]
    renewing = {owner for lease, owner in owned if lease.key not in silent_keys}
    silent = {owner for lease, owner in owned if lease.key in silent_keys} - renewing
    reported = {report.worker: report.updated_s for report in before.reports}
    new = {each.worker for each in after.reports if reported.get(each.worker) != each.updated_s}
    living = {
        report.worker
        for report in after.reports
        if wall_s - report.updated_s <= EXPIRED_AFTER_MS // 1000
        and not report.is_failing
        and report.worker != drained
    }
    counts: dict[WorkerId, int] = {}
    for lease in after.leases:
        if lease.owner is not None and lease.key not in keys and not lease.checkpoint.is_shard_end:
            counts[lease.owner] = counts.get(lease.owner, 0) + 1
    return NextOwners(living - silent, counts, keys, heard=renewing | new)


def is_still_to_release(
    lease: Lease, planned_owner: WorkerId | None, own_names: Collection[WorkerId]
) -> bool:
    """Whether a lease must still be taken: from the owner of the plan, or from a command, which reads nothing.

    A worker that has got the lease since is its next owner.
    """
    owner = lease.actual_owner
    return owner == planned_owner or owner in own_names or parse_command(owner) is not None
