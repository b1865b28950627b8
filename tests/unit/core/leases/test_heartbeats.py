"""Heartbeats: every lease has one in time, spread evenly, and none that is not needed."""

from collections import Counter
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from leasehold.core.leases.heartbeats import LastWrite, leases_to_renew, tick_ms
from leasehold.core.model import LeaseKey

RENEW_MS = 5_000
PROVEN_MS = 9_000


def kept(
    leases: int, until_ms: int, writes: dict[LeaseKey, LastWrite] | None = None
) -> list[tuple[int, LeaseKey]]:
    """Which heartbeats are put, and when, if each is answered at once."""
    held = writes or {LeaseKey(f"s-{number}"): LastWrite(0, is_first=True) for number in range(leases)}
    now_ms, beats = 0, []
    while now_ms < until_ms:
        now_ms += tick_ms(len(held), RENEW_MS)
        for key in leases_to_renew(held, now_ms, RENEW_MS):
            beats.append((now_ms, key))
            held[key] = LastWrite(now_ms, is_first=False)
    return beats


@given(st.integers(1, 300))
def test_every_lease_is_renewed_well_before_its_proof_ends(leases: int) -> None:
    """Leases that were taken all at once, too."""
    last = dict.fromkeys((LeaseKey(f"s-{number}") for number in range(leases)), 0)
    for at_ms, key in kept(leases, 60_000):
        assert at_ms - last[key] <= 0.8 * PROVEN_MS
        last[key] = at_ms
    assert min(last.values()) >= 60_000 - 0.8 * PROVEN_MS


@given(st.integers(1, 300))
def test_no_lease_is_renewed_more_often_than_it_must(leases: int) -> None:
    """Once the first round is over: one heartbeat an interval, but for the rounding of ticks."""
    beats = Counter(key for at_ms, key in kept(leases, 65_000) if at_ms > 10_000)
    assert max(beats.values()) <= 55_000 / RENEW_MS / 0.95 + 1
    assert sum(beats.values()) <= leases * 55_000 / RENEW_MS / 0.95 + leases


def test_answers_of_few_leases_come_evenly() -> None:
    """Three leases, taken together: after the first round an answer comes every third of the interval."""
    times = [at_ms for at_ms, _ in kept(3, 60_000) if at_ms > 6_000]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert max(gaps) <= RENEW_MS // 3 + 1


def test_a_lease_that_was_written_to_is_left_out() -> None:
    """Every write is a heartbeat."""
    writes = {
        LeaseKey("old"): LastWrite(0, is_first=False),
        LeaseKey("new"): LastWrite(4_000, is_first=False),
    }
    assert leases_to_renew(writes, 5_000, RENEW_MS) == ["old"]
    assert leases_to_renew(writes, 4_750, RENEW_MS) == ["old"]
    assert leases_to_renew(writes, 4_749, RENEW_MS) == []


def test_what_is_overdue_waits_for_no_turn() -> None:
    """After a pause of the process every lease is renewed at once."""
    writes = {LeaseKey(f"s-{number}"): LastWrite(0, is_first=False) for number in range(50)}
    assert len(leases_to_renew(writes, 6_001, RENEW_MS)) == 50
    assert len(leases_to_renew(writes, 6_000, RENEW_MS)) == 2, "a fifth of an interval late is not overdue"
