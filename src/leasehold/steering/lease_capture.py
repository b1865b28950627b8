"""Gets leases of a running fleet, holds them, and lets the caller act on them, without ever racing an owner.

The command is a member with a name of its own. It asks each owner to hand over (`core.steering.capture`), renews what
it holds until a whole group is held, and calls `act` for the group.

An owner may decline, and is asked again. Each request for a lease has another name: a leader counts the time of a
handoff while it reads the same two owners, and may read nothing between a decline and the second request.

A capture that is cancelled or runs out of time gives back everything at once: it frees the leases that it holds, and
withdraws its requests. If the process is killed, its leases expire like those of any other member.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

from leasehold.core.command_name import request_name
from leasehold.core.leases.lease_rules import StillHeld, interpret_failed_renewal
from leasehold.core.leases.liveness import Observations, next_observations
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, WorkerId
from leasehold.core.steering.capture import CaptureAction, CaptureLimits, next_capture_step
from leasehold.errors import ServiceError
from leasehold.fleet.table.lease_table import Contended, LeaseTable
from leasehold.ports import Clock
from leasehold.tasks import TRANSIENT_ERRORS, all_of, cancel_and_wait, first_of, retry

POLL_MS: Final = 500
SCAN_EVERY_MS: Final = 2_000  # with many leases, each poll scans the table
GETS_MAX: Final = 25
_ATTEMPTS_MAX: Final = 8
_WRITES_MAX: Final = 3  # to give back one lease: its owner may hand over in between

T = TypeVar("T")

Held = Mapping[LeaseKey, Lease]
# Acts on the leases of a group, and frees them. Returns False if one of them was lost: then it is captured again.
Act = Callable[[Held], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A lease whose owner has been asked to hand over, and for how long it has been asked."""

    key: LeaseKey
    owner: WorkerId
    for_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CapturePorts:
    """What a capture needs: the table, the clock, and a place for its progress."""

    table: LeaseTable
    clock: Clock
    rng: random.Random
    report: Callable[[Sequence[Waiting]], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class CaptureResult:
    """Leases that were acted on, leases that no longer exist, and leases whose owners kept them, with these owners."""

    done: frozenset[LeaseKey]
    gone: frozenset[LeaseKey]
    kept: tuple[Waiting, ...] = ()


@dataclass
class LeaseCapture:
    """Captures groups of leases for one command."""

    ports: CapturePorts
    me: WorkerId
    limits: CaptureLimits
    # Whether a lease is still to be captured. One that is not counts as gone.
    is_wanted: Callable[[Lease], bool] = lambda _: True
    _observations: Observations = field(default_factory=dict)
    _held: dict[LeaseKey, Lease] = field(default_factory=dict)
    _written_ms: dict[LeaseKey, int] = field(default_factory=dict)
    _waiting: dict[LeaseKey, Waiting] = field(default_factory=dict)
    _asked: set[LeaseKey] = field(default_factory=set)  # leases whose rows may name us
    _names: set[WorkerId] = field(default_factory=set)
    _requests: Counter[LeaseKey] = field(default_factory=Counter)
    _stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def names(self) -> AbstractSet[WorkerId]:
        """The names that rows may have for us."""
        return {self.me, *self._names}

    async def run(
        self, groups: Collection[Sequence[LeaseKey]], act: Act, *, timeout_ms: int
    ) -> CaptureResult:
        """Act on each group as soon as all its leases are held. After the timeout, the other groups are given back.

        If the caller is cancelled, the writes in flight end first: a lease whose write was abandoned could not be given
        back, because nobody would know whether it is ours. A second cancellation does not wait.
        """
        work = asyncio.ensure_future(self._run(groups, act, timeout_ms))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            self._stop.set()
            with suppress(ServiceError):
                await work
            raise
        finally:
            await cancel_and_wait(work)

    async def _run(self, groups: Collection[Sequence[LeaseKey]], act: Act, timeout_ms: int) -> CaptureResult:
        clock = self.ports.clock
        pending = [frozenset(group) for group in groups]
        wanted = frozenset[LeaseKey]().union(*pending)
        gone: set[LeaseKey] = set()
        until_ms = clock.now_ms() + timeout_ms
        try:
            while not self._stop.is_set():
                gone |= await self._advance(pending, gone)
                pending = [group for group in pending if not await self._finish(group, gone, act)]
                if not pending or clock.now_ms() >= until_ms:
                    break
                self.ports.report(tuple(self._waiting.values()))
                few = sum(map(len, pending)) <= GETS_MAX
                await first_of(self._stop.wait(), clock.sleep_ms(POLL_MS if few else SCAN_EVERY_MS))
        finally:
            await self._give_back(wanted - gone)
        kept = frozenset[LeaseKey]().union(*pending) - gone
        return CaptureResult(
            wanted - kept - gone,
            frozenset(gone),
            # A lease that was lost whenever it was held has no owner that was asked.
            tuple(self._waiting.get(key, Waiting(key, self.me, 0)) for key in sorted(kept)),
        )

    async def _finish(self, group: frozenset[LeaseKey], gone: Collection[LeaseKey], act: Act) -> bool:
        """Act on a group if all its leases are held. Returns whether the group needs no more work."""
        left = group.difference(gone)
        if self._stop.is_set() or not left <= self._held.keys():
            return False
        if group and not left:
            return True
        held = {key: self._held[key] for key in left}
        is_done = await act(held)
        for key in left:
            # If a lease was lost, the rows say which: all of the group are read again.
            lease = self._held.pop(key)
            if is_done:
                self._asked.discard(key)
            else:
                await self._free(lease)
        return is_done

    async def _advance(
        self, pending: Sequence[frozenset[LeaseKey]], gone: Collection[LeaseKey]
    ) -> frozenset[LeaseKey]:
        """Make the next step for every lease that is not held, and renew the others. Returns those that are gone."""
        await all_of(*(self._renew(lease) for lease in tuple(self._held.values())))
        missing = sorted(frozenset[LeaseKey]().union(*pending) - self._held.keys() - set(gone))
        found = {key: lease for key, lease in (await self._read(missing)).items() if self.is_wanted(lease)}
        now_ms = self.ports.clock.now_ms()
        self._observations = next_observations(self._observations, found.values(), now_ms)
        await all_of(*(self._step(lease, now_ms) for lease in found.values()))
        return frozenset(missing) - found.keys()

    async def _read(self, keys: Sequence[LeaseKey]) -> Mapping[LeaseKey, Lease]:
        if len(keys) > GETS_MAX:
            listing = await self._retry(lambda: self.ports.table.list(is_consistent=True))
            return {lease.key: lease for lease in listing.leases if lease.key in set(keys)}
        leases = await self._retry(lambda: all_of(*(self.ports.table.get(key) for key in keys)))
        return {lease.key: lease for lease in leases if lease is not None}

    async def _step(self, lease: Lease, now_ms: int) -> None:
        table, key = self.ports.table, lease.key
        name = self._name_in(lease)
        step = next_capture_step(lease, self._observations[key], name, now_ms=now_ms, limits=self.limits)
        session = self._new_session()
        outcome: Lease | Contended | None = None
        if step.action is not CaptureAction.WAIT:
            self._asked.add(key)
        try:
            match step.action:
                case CaptureAction.TAKE:
                    outcome = await table.take(lease, name, session)
                case CaptureAction.BEGIN:
                    outcome = await table.begin_session(lease, name, session)
                case CaptureAction.REQUEST:
                    await table.request_handoff(lease, self._new_name(key))
                case CaptureAction.WAIT:
                    pass
        except TRANSIENT_ERRORS:
            return  # the next poll reads what happened
        if isinstance(outcome, Lease):
            self._held[key], self._written_ms[key] = outcome, now_ms
            self._waiting.pop(key, None)
        elif step.action in {CaptureAction.REQUEST, CaptureAction.WAIT} and lease.actual_owner is not None:
            since_ms = now_ms if step.since_ms is None else step.since_ms
            self._waiting[key] = Waiting(key, lease.actual_owner, now_ms - since_ms)

    async def _renew(self, lease: Lease) -> None:
        now_ms = self.ports.clock.now_ms()
        if now_ms - self._written_ms[lease.key] < self.limits.failover_ms // 3:
            return
        try:
            outcome = await self.ports.table.renew(lease)
            if isinstance(outcome, Contended):
                meaning = interpret_failed_renewal(lease, outcome.current)
                outcome = (
                    await self.ports.table.renew(meaning.lease)
                    if isinstance(meaning, StillHeld)
                    else Contended(None)
                )
        except TRANSIENT_ERRORS:
            return
        if isinstance(outcome, Lease):
            self._held[lease.key], self._written_ms[lease.key] = outcome, now_ms
        else:
            del self._held[lease.key]

    async def _give_back(self, wanted: Collection[LeaseKey]) -> None:
        """Free the leases that we hold, and withdraw the requests to other owners."""
        held = tuple(self._held.values())
        self._held.clear()
        await all_of(*(self._free(lease) for lease in held))
        asked = [key for key in sorted(wanted) if key in self._asked]
        try:
            rows = await self._read(asked)
        except TRANSIENT_ERRORS:
            return
        await all_of(*(self._withdraw(lease) for lease in rows.values()))

    async def _withdraw(self, lease: Lease) -> None:
        """Leave a lease to the owner that was asked, or free it if the owner has handed it over. Else it expires."""
        table = self.ports.table
        current: Lease | None = lease
        with suppress(*TRANSIENT_ERRORS):
            for _ in range(_WRITES_MAX):
                if current is None or current.owner is None or current.owner not in self.names:
                    return
                if current.is_in_handoff:
                    outcome = await table.withdraw_handoff(current)
                else:
                    outcome = await table.begin_session(current, current.owner, self._new_session())
                    outcome = await table.release(outcome) if isinstance(outcome, Lease) else outcome
                current = outcome if isinstance(outcome, Lease) else outcome.current

    async def _free(self, lease: Lease) -> None:
        """Free a lease that was not changed. If it cannot be written, it expires."""
        with suppress(*TRANSIENT_ERRORS):
            for _ in range(_WRITES_MAX):
                outcome = await self.ports.table.release(lease)
                if isinstance(outcome, Lease):
                    return
                meaning = interpret_failed_renewal(lease, outcome.current)
                if not isinstance(meaning, StillHeld):
                    return
                lease = meaning.lease  # another member has asked for it in the meantime

    def _name_in(self, lease: Lease) -> WorkerId:
        """Our name in this row; the first one if the row does not name us."""
        owners = {lease.owner, lease.checkpoint_owner}
        return next((name for name in self.names if name in owners), self.me)

    def _new_name(self, key: LeaseKey) -> WorkerId:
        self._requests[key] += 1
        self._names.add(name := request_name(self.me, self._requests[key]))
        return name

    def _new_session(self) -> LeaseSessionId:
        return LeaseSessionId(f"{self.ports.rng.getrandbits(64):016x}")

    async def _retry(self, call: Callable[[], Awaitable[T]]) -> T:
        return await retry(call, clock=self.ports.clock, rng=self.ports.rng, attempts_max=_ATTEMPTS_MAX)
