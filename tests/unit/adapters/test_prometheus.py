"""The metrics that Prometheus scrapes."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from leasehold.adapters.prometheus import PrometheusMetrics
from leasehold.core.events import (
    BatchHandled,
    Checkpointed,
    DeaggregationFailed,
    Event,
    FleetDecided,
    FleetRefreshed,
    GapFound,
    HandlerFailed,
    IteratorExpired,
    LeaseLost,
    LeaseReleased,
    LeasesRenewed,
    LeaseTaken,
    MemberStarted,
    MemberStopped,
    OperationFailed,
    PageRead,
    ReadFailed,
    ReadThrottled,
    RecordDeadLettered,
    RecordSkipped,
    ShardEnded,
    ShardsSynced,
    ShardStalled,
    Subscribed,
    SubscriptionLost,
)
from leasehold.core.model import LeaseKey, ShardId, StreamIdentifier, WorkerId, lease_key
from leasehold.core.observing.series import MEMBER_COUNTERS, SHARD_COUNTERS
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.records.iterators import Gap, IteratorKind, IteratorStart
from tests.sample_events import EVENT_TYPES, sample

A, B = ShardId("shard-a"), ShardId("shard-b")


def taken(shard: ShardId) -> LeaseTaken:
    return LeaseTaken(LeaseKey(shard), shard, None, None, 1, TRIM_HORIZON)


class Scraped:
    """The metrics of a member, and a clock to set."""

    def __init__(self, *events: Event) -> None:
        self.now_ms = 0
        self.metrics = PrometheusMetrics(lambda: self.now_ms)
        for event in events:
            self.metrics(event)

    def samples(self) -> dict[str, float]:
        """Every sample by name, or by name and shard, as a Prometheus server would read it."""
        families = text_string_to_metric_families(self.metrics.text().decode())
        return {
            sample.name + (f"/{sample.labels['shard']}" if "shard" in sample.labels else ""): sample.value
            for family in families
            for sample in family.samples
        }


def test_two_streams_have_separate_series() -> None:
    """Shards with the same id differ by a label; a member of one stream has no such label."""
    streams = [StreamIdentifier(f"1:{name}:2") for name in ("orders", "returns")]
    events: list[Event] = []
    for number, stream in enumerate(streams, start=1):
        events += [
            LeaseTaken(lease_key(A, stream), A, None, None, 1, TRIM_HORIZON),
            PageRead(A, number, 10, 0, 1, stream=stream),
            ShardsSynced(number, 0, stream=stream),
        ]
    text = Scraped(*events).metrics.text().decode()
    for number, stream in enumerate(streams, start=1):
        assert f'leasehold_shard_records_read_total{{shard="shard-a",stream="{stream}"}} {number}.0' in text
        assert f'leasehold_stream_shards{{stream="{stream}"}} {number}.0' in text
    assert "stream" not in "".join(
        line for line in Scraped(taken(A)).metrics.text().decode().splitlines() if "{" in line
    )


def test_a_shard_has_lag_work_and_handler_time() -> None:
    """All metrics per shard."""
    scraped = Scraped(
        taken(A),
        PageRead(A, 10, 1_000, 2_500, 8, Position("10")),
        BatchHandled(A, 6, 600, Position("6"), 250, 2_500),
        HandlerFailed(A, Position("7"), Position("9"), 4, 1, "ValueError"),
        ReadFailed(A, "no response", 500),
        ReadThrottled(A, 500),
        IteratorExpired(A),
        Subscribed(A, IteratorStart(IteratorKind.LATEST)),
        SubscriptionLost(A, "silent", 500),
        Checkpointed(A, Position("6")),
    )
    scraped.now_ms = 1_000
    found = {name: value for name, value in scraped.samples().items() if name.endswith("/shard-a")}
    assert found == {
        "leasehold_shard_lag_seconds/shard-a": 2.5,
        "leasehold_shard_idle_seconds/shard-a": 1,
        "leasehold_shard_records_in_flight/shard-a": 10,
        "leasehold_shard_records_read_total/shard-a": 10,
        "leasehold_shard_bytes_read_total/shard-a": 1_000,
        "leasehold_shard_records_handled_total/shard-a": 6,
        "leasehold_shard_bytes_handled_total/shard-a": 600,
        "leasehold_shard_handler_failures_total/shard-a": 1,
        "leasehold_shard_read_failures_total/shard-a": 2,
        "leasehold_shard_iterators_expired_total/shard-a": 1,
        "leasehold_shard_subscriptions_total/shard-a": 1,
        "leasehold_shard_subscriptions_lost_total/shard-a": 1,
        "leasehold_shard_checkpoints_total/shard-a": 1,
        "leasehold_shard_handler_seconds_count/shard-a": 1,
        "leasehold_shard_handler_seconds_sum/shard-a": 0.25,
    }


@pytest.mark.parametrize("kind", [LeaseLost, LeaseReleased, ShardEnded, MemberStopped])
def test_a_lost_shard_has_no_series(kind: type[Event]) -> None:
    """The number of series is bounded by the leases of the member; a late handler does not add one again."""
    scraped = Scraped(
        taken(A),
        taken(B),
        BatchHandled(A, 1, 1, Position("1"), 1, 0),
        sample(kind, shard=A),
        PageRead(A, 1, 1, 0, 1),
        BatchHandled(A, 1, 1, Position("1"), 1, 0),
    )
    assert not [name for name in scraped.samples() if name.endswith("/shard-a")]


@pytest.mark.parametrize(
    ("event", "name", "value"),
    [
        (taken(A), "leases_taken", 1),
        (LeaseLost(LeaseKey(A), A, None, "taken"), "leases_lost", 1),
        (LeaseReleased(LeaseKey(A), A, None), "leases_released", 1),
        (LeasesRenewed(3, 2, 5), "renewals_failed", 2),
        (ShardEnded(A, ()), "shards_ended", 1),
        (ShardStalled(LeaseKey(A), A, 900_000), "shards_stalled", 1),
        (GapFound(A, Gap(Position("1"), "5", None)), "gaps", 1),
        (DeaggregationFailed(A, Position("1"), "outside", 3), "dropped_records", 3),
        (RecordDeadLettered(A, Position("1"), "ValueError"), "dead_letters", 1),
        (RecordSkipped(A, Position("1"), "ValueError"), "skipped_records", 1),
        (OperationFailed("refresh", "no response"), "operations_failed", 1),
    ],
)
def test_events_of_the_member_are_counted(event: Event, name: str, value: int) -> None:
    """Each counter counts its own events and no others; all of them exist from the start."""
    assert {
        total: Scraped().samples()[f"leasehold_{total}_total"] for total in MEMBER_COUNTERS
    } == dict.fromkeys(MEMBER_COUNTERS, 0)
    found = Scraped(event).samples()
    assert {
        total: found[f"leasehold_{total}_total"]
        for total in MEMBER_COUNTERS
        if found[f"leasehold_{total}_total"]
    } == {name: value}


def test_the_writes_of_a_leader_are_counted() -> None:
    """Leases that it assigned, handoffs that it requested, and writes that failed; over all its decisions."""
    decided = sample(FleetDecided, assigned=4, handed_off=2, failed=1)
    found = Scraped(decided, decided).samples()
    assert found["leasehold_leases_assigned_total"] == 8
    assert found["leasehold_handoffs_requested_total"] == 4
    assert found["leasehold_assignments_failed_total"] == 2


def test_gauges_show_the_last_refresh() -> None:
    """The number of leases, the age of the heartbeat, and the fleet at the last refresh."""
    scraped = Scraped(
        MemberStarted(WorkerId('w"1'), "billing", "orders"),
        taken(A),
        LeasesRenewed(1, 0, 4),
        ShardsSynced(8, 0),
        FleetRefreshed(9, 2, 1, 3, speaks_for_fleet=True),
    )
    scraped.now_ms = 4_000
    found = scraped.samples()
    assert found["leasehold_member_info"] == 1
    assert found["leasehold_leases_held"] == 1
    assert found["leasehold_renewal_age_seconds"] == 4
    assert found["leasehold_fleet_leases"] == 9
    assert found["leasehold_fleet_unclaimed_leases"] == 2
    assert found["leasehold_fleet_workers"] == 3
    assert found["leasehold_stream_shards"] == 8


def test_every_counter_of_a_shard_is_fed() -> None:
    """No metric is documented that is never incremented."""
    scraped = Scraped(
        taken(A),
        *(
            sample(kind, shard=A)
            for kind in EVENT_TYPES
            if kind not in {LeaseLost, LeaseReleased, ShardEnded, MemberStopped}
        ),
    )
    found = scraped.samples()
    assert all(found[f"leasehold_shard_{name}_total/shard-a"] for name in SHARD_COUNTERS)


@pytest.mark.parametrize("kind", EVENT_TYPES)
def test_every_event_is_handled(kind: type[Event]) -> None:
    """A new event must be handled or ignored explicitly."""
    Scraped(taken(A), sample(kind, shard=A))
