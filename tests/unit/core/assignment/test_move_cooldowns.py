"""A lease that moves again and again stays longer each time."""

from leasehold.core.assignment.move_cooldowns import (
    COOLDOWN_MS,
    COOLDOWN_MS_MAX,
    REMEMBER_MS_MIN,
    RecentMove,
    RecentMoves,
    next_recent_moves,
    with_moves,
)
from leasehold.core.model import LeaseKey

KEY = LeaseKey("a")


def moved(times: int) -> RecentMove:
    """The memory of a lease that moves as soon as it may."""
    moves: RecentMoves = {}
    now_ms = 0
    for _ in range(times):
        moves = with_moves(next_recent_moves(moves, now_ms, is_same_fleet=True), [KEY], now_ms)
        assert not moves[KEY].may_move(now_ms)
        now_ms += moves[KEY].cooldown_ms
        assert moves[KEY].may_move(now_ms)
    return moves[KEY]


def test_each_repetition_lasts_four_times_as_long() -> None:
    """Two minutes, eight, thirty-two; at most a day."""
    assert [moved(times).cooldown_ms // COOLDOWN_MS for times in (1, 2, 3, 4)] == [1, 4, 16, 64]
    assert moved(9).cooldown_ms == COOLDOWN_MS_MAX


def test_a_change_of_the_fleet_ends_the_growth() -> None:
    """Earlier moves say nothing about the new fleet."""
    before = {KEY: RecentMove(0, 16 * COOLDOWN_MS)}
    after = next_recent_moves(before, 1, is_same_fleet=False)
    assert after == {KEY: RecentMove(0, COOLDOWN_MS)}
    assert next_recent_moves(before, 1, is_same_fleet=True) == before


def test_an_old_move_is_forgotten() -> None:
    """Half an hour later, or after twice its cooldown, another move is no repetition."""
    assert next_recent_moves({KEY: RecentMove(0)}, REMEMBER_MS_MIN - 1, is_same_fleet=True)
    assert not next_recent_moves({KEY: RecentMove(0)}, REMEMBER_MS_MIN, is_same_fleet=True)
    long = {KEY: RecentMove(0, REMEMBER_MS_MIN)}
    assert next_recent_moves(long, 2 * REMEMBER_MS_MIN - 1, is_same_fleet=True)
    assert not next_recent_moves(long, 2 * REMEMBER_MS_MIN, is_same_fleet=True)
