"""Throughput of a shard: smoothed, measured over the real interval, and kept through a move."""

from decimal import Decimal

from leasehold.core.assignment.throughput import Throughput


def test_the_average_follows_what_was_delivered() -> None:
    """The first value is taken as it is, later ones count half."""
    shard = Throughput(None, 0)
    assert shard.average_kbps(3308) is None
    shard = Throughput(None, 0)
    shard.note(1024 * 1024)
    assert shard.average_kbps(3308) == Decimal("309.552600")
    assert shard.average_kbps(6616) == Decimal("154.776300")
    shard.note(2 * 1024 * 1024)
    assert shard.average_kbps(9924) == Decimal("386.940750")


def test_the_real_interval_counts() -> None:
    """A late heartbeat does not make a shard look busier, nor one that comes early."""
    shard = Throughput(None, 0)
    shard.note(1024 * 1000)
    assert shard.average_kbps(10_000) == 100
    shard.note(1024 * 10)
    assert shard.average_kbps(10_100) == 100
    shard.note(1024 * 190)
    assert shard.average_kbps(12_000) == 100


def test_an_average_is_computed_with_heartbeats_of_a_second() -> None:
    """After a shorter time the average stays, and the bytes count at the next heartbeat."""
    shard = Throughput(Decimal(100), 0)
    shard.note(1024 * 300)
    assert shard.average_kbps(999) == 100
    assert shard.average_kbps(1_000) == 200


def test_a_move_keeps_the_figure() -> None:
    """The new owner begins with the value in the row, not with a third of it."""
    shard = Throughput(Decimal(300), 0)
    shard.note(300 * 1024 * 3)
    assert shard.average_kbps(3_000) == 300
