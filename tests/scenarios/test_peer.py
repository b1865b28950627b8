"""Plays the scenarios of peer mode: what one member goes for after one look.

A lease is written as in the assignment specification: `a:X` owned by X and seen to move a second ago, `a:-` without
owner, `@20` unchanged for twenty seconds, `E` finished, `<p,q` child of p and q, `!` served by us, `#` without a
holding, `X/Y` being handed to X by Y, `~41` for forty-one seconds.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from leasehold.core.assignment.peer_assignment import PeerLimits, PeerPlan, PeerView, plan_peer_assignment
from leasehold.core.leases.liveness import Observation
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId
from leasehold.core.position import SHARD_END, Position

NOW_MS = 1_000_000
ME = WorkerId("me")
NOTATION = re.compile(
    r"(?P<key>\w+):(?P<owner>-|\w+?)(?:/(?P<old>\w+))?(?:@(?P<age>\d+))?(?P<marks>[E!#]*)(?:~(?P<handoff>\d+))?"
    r"(?:<(?P<parents>[\w,]+))?"
)
SCENARIOS = json.loads((Path(__file__).parent / "peer" / "peer.json").read_text(encoding="utf-8"))
EXPECTATIONS = {"take", "takes", "hold", "ask", "asks", "has_more_free"}
GIVEN = {
    "leases",
    "takes_per_refresh_max",
    "requests_per_refresh_max",
    "may_hand_off",
    "leases_max",
    "ended",
    "asked",
    "cooling_down",
    "unreadable",
}


@pytest.mark.parametrize("salt", range(5))
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario["name"])
def test_peer(scenario: dict[str, Any], salt: int) -> None:
    """A look at these leases gives this plan, whatever the salt."""
    given, expect = scenario["given"], scenario["expect"]
    assert given.keys() <= GIVEN
    assert expect.keys() <= EXPECTATIONS
    plan = plan_peer_assignment(_view(given, salt), _limits(given))
    if "takes" in expect:
        assert len(plan.take) == expect["takes"]
    else:
        _check([lease.key for lease in plan.take], expect.get("take", []))
    if "asks" in expect:
        assert len(plan.request_handoff) == expect["asks"]
    else:
        _check([lease.key for lease in plan.request_handoff], expect.get("ask", []))
    _check([lease.key for lease in plan.begin_session], expect.get("hold", []))
    assert plan.has_more_free == expect.get("has_more_free", False)


def test_salts_spread_the_choice() -> None:
    """Members that look at the same moment do not all go for the same lease."""
    given = {"leases": ["a:-", "b:-", "c:-", "d:-", "e:X", "f:Y", "g:Z"]}
    plans: set[PeerPlan] = {plan_peer_assignment(_view(given, salt), _limits(given)) for salt in range(40)}
    assert len({plan.take for plan in plans}) > 4


def _check(found: list[LeaseKey], expected: Any) -> None:
    match expected:
        case list():
            assert sorted(found) == sorted(expected)
        case {"one_of": choice}:
            assert len(found) == 1
            assert set(found) <= set(choice)
        case {"two_of": choice}:
            assert len(set(found)) == 2
            assert set(found) <= set(choice)
        case {"first": first, "then_one_of": choice}:
            assert found[0] == first
            assert len(found) == 2
            assert found[1] in choice
        case _:
            raise AssertionError(expected)


def _limits(given: dict[str, Any]) -> PeerLimits:
    return PeerLimits(
        failover_ms=10_000,
        handoff_timeout_ms=30_000,
        leases_max=given.get("leases_max"),
        takes_per_refresh_max=given.get("takes_per_refresh_max"),
        requests_per_refresh_max=given.get("requests_per_refresh_max"),
        may_hand_off=given.get("may_hand_off", True),
    )


def _view(given: dict[str, Any], salt: int) -> PeerView:
    read = [_read(text) for text in given["leases"]]
    return PeerView(
        me=ME,
        now_ms=NOW_MS,
        leases=[lease for lease, _, _ in read],
        observations={lease.key: seen for lease, seen, _ in read},
        held={lease.key for lease, _, held in read if held},
        cooling_down={LeaseKey(key) for key in given.get("cooling_down", [])},
        requested={LeaseKey(key): LeaseSessionId(session) for key, session in given.get("asked", {}).items()},
        ended={LeaseKey(key) for key in given.get("ended", [])},
        unreadable={LeaseKey(key) for key in given.get("unreadable", [])},
        salt=salt,
    )


def _read(text: str) -> tuple[Lease, Observation, bool]:
    found = NOTATION.fullmatch(text)
    assert found is not None, text
    owner = None if found["owner"] == "-" else WorkerId(found["owner"])
    old = WorkerId(found["old"]) if found["old"] else None
    lease = Lease(
        key=LeaseKey(found["key"]),
        shard_id=ShardId(found["key"]),
        checkpoint=SHARD_END if "E" in found["marks"] else Position("100"),
        owner=owner,
        checkpoint_owner=old,
        parents=frozenset(ShardId(parent) for parent in (found["parents"] or "").split(",") if parent),
        session=None if owner is None or "#" in found["marks"] else LeaseSessionId("some"),
    )
    since_ms = NOW_MS - int(found["age"] or 1) * 1000
    handoff_since_ms = NOW_MS - int(found["handoff"] or 1) * 1000 if old else None
    return lease, Observation(0, owner, old, since_ms, handoff_since_ms), "!" in found["marks"]
