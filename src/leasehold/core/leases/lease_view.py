"""Leases for display: sorted, each with its state. Used by `leasehold leases`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from leasehold.core.model import Lease, LeaseKey, Pin, ShardId
from leasehold.core.position import Position
from leasehold.core.shards.shard_graph import unfinished_parents

_DIGITS_SHOWN: Final = (4, 8)  # the first digits differ by stream, the last by record


class LeaseState(Enum):
    """The state of a lease, for display."""

    FREE = "free"
    HELD = "held"
    SILENT = "silent"  # its owner sent no heartbeat between two reads
    WAITING = "waiting for parents"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class LeaseView:
    """One lease, its state, and the parents that it waits for."""

    lease: Lease
    state: LeaseState
    waits_for: tuple[ShardId, ...] = ()


def view_leases(leases: Iterable[Lease], *, silent: Collection[LeaseKey] = ()) -> tuple[LeaseView, ...]:
    """All leases, sorted by stream and shard. `silent` are those without a heartbeat."""
    by_key = {lease.key: lease for lease in leases}
    return tuple(_view(by_key[key], by_key, silent) for key in sorted(by_key))


def leases_without_heartbeat(before: Iterable[Lease], after: Iterable[Lease]) -> frozenset[LeaseKey]:
    """The owned, unfinished leases whose counter is the same in two reads of the table.

    In a row that was created again in between, the same counter is that of another session.
    """
    heartbeats = {lease.key: (lease.owner, lease.session, lease.counter) for lease in before}
    return frozenset(
        lease.key
        for lease in after
        if lease.owner is not None
        and not lease.checkpoint.is_shard_end
        and heartbeats.get(lease.key) == (lease.owner, lease.session, lease.counter)
    )


def _view(lease: Lease, leases: Mapping[LeaseKey, Lease], silent: Collection[LeaseKey]) -> LeaseView:
    if lease.checkpoint.is_shard_end:
        return LeaseView(lease, LeaseState.ENDED)
    if lease.key in silent:
        return LeaseView(lease, LeaseState.SILENT)
    if waits_for := unfinished_parents(lease, leases):
        return LeaseView(lease, LeaseState.WAITING, waits_for)
    return LeaseView(lease, LeaseState.HELD if lease.actual_owner else LeaseState.FREE)


def view_to_json(view: LeaseView) -> Mapping[str, Any]:
    """All values of a lease as JSON. The state in a pin is opaque, so only its length is included."""
    lease = view.lease
    return {
        "key": lease.key,
        "shard": lease.shard_id,
        "stream": lease.stream,
        "state": view.state.value,
        "owner": lease.actual_owner,
        "next_owner": lease.owner if lease.is_in_handoff else None,
        "checkpoint": position_to_json(lease.checkpoint),
        "pin": _pin_to_json(lease.pin),
        "counter": lease.counter,
        "owner_switches": lease.owner_switches,
        "parents": sorted(lease.parents),
        "children": sorted(lease.children),
        "waits_for": list(view.waits_for),
        "throughput_kbps": None if lease.throughput_kbps is None else float(lease.throughput_kbps),
    }


def position_to_json(position: Position) -> Mapping[str, Any]:
    """A position as JSON. The sequence number is text: it has too many digits for a number in most languages."""
    return {
        "sequence_number": position.sequence_number,
        "sub_sequence_number": position.sub_sequence_number,
    }


def _pin_to_json(pin: Pin | None) -> Mapping[str, Any] | None:
    if pin is None:
        return None
    return {**position_to_json(pin.end), "state_bytes": len(pin.state or b"")}


def short_position(position: Position) -> str:
    """A shortened position, enough to see whether it changes.

    >>> short_position(Position("49590338271490256608559692538361571095921575989136588898", 3))
    '4959..36588898/3'
    """
    number, (head, tail) = position.sequence_number, _DIGITS_SHOWN
    if position.is_record and len(number) > head + tail + 2:
        number = f"{number[:head]}..{number[-tail:]}"
    return f"{number}/{position.sub_sequence_number}" if position.sub_sequence_number else number
