"""What `explain_fleet` says about a shard, situation by situation."""

import time
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal

import pytest

from leasehold.core.coordinator.leader_lock import LeaderLock
from leasehold.core.coordinator.worker_metrics import WorkerReport
from leasehold.core.finding import Finding, Severity
from leasehold.core.leases.row_writes import text
from leasehold.core.model import WHOLE_HASH_RANGE, HashRange, Lease, LeaseKey, Shard, ShardId, WorkerId
from leasehold.core.observing.explain.explain_fleet import explain_fleet, explain_listed_shard
from leasehold.core.observing.explain.facts import FleetFacts, LagRead, StreamFacts, TableRead
from leasehold.core.position import SHARD_END, TRIM_HORIZON, Position
from leasehold.errors import MalformedRowError

ANNA, BERT = WorkerId("anna"), WorkerId("bert")
PARENT, CHILD = ShardId("shardId-000000000000"), ShardId("shardId-000000000001")
HOUR_MS = 3_600_000
NOW_S = 1_700_000_000
LOWER, UPPER = HashRange(0, 2**127 - 1), HashRange(2**127, 2**128 - 1)


def lease(shard: ShardId = PARENT, *, at: Position | None = None, **values: object) -> Lease:
    found = Lease(
        key=LeaseKey(shard), shard_id=shard, checkpoint=at or Position("100"), owner=ANNA, counter=7
    )
    return replace(found, **values)  # type: ignore[arg-type]


def facts(
    *after: Lease,
    before: Sequence[Lease] | None = None,
    lags: Sequence[LagRead] = (LagRead(at_ms=0, behind_ms=0), LagRead(at_ms=15_000, behind_ms=0)),
    shards: Sequence[Shard] | None = (Shard(PARENT, WHOLE_HASH_RANGE, "1"),),
    **values: object,
) -> FleetFacts:
    """A fleet of one shard that Anna serves at its tip; each heartbeat adds one to the counter."""
    earlier = before if before is not None else [replace(each, counter=each.counter - 1) for each in after]
    found = FleetFacts(
        before=TableRead(at_ms=0, leases=tuple(earlier)),
        after=TableRead(at_ms=15_000, leases=after),
        wall_s=NOW_S,
        has_leader=False,
        streams={
            None: StreamFacts(
                name="orders",
                shards=None if shards is None else tuple(shards),
                retention_ms=24 * HOUR_MS,
            )
        },
        lags={each.key: tuple(lags) for each in after},
    )
    return replace(found, **values)  # type: ignore[arg-type]


def findings(of: FleetFacts, shard: ShardId | None = PARENT) -> dict[str, Finding]:
    explanation = explain_fleet(of)
    about = explanation.fleet if shard is None else explanation.shards[LeaseKey(shard)]
    return {finding.code: finding for finding in about}


def behind(first_ms: int, last_ms: int) -> tuple[LagRead, LagRead]:
    return LagRead(at_ms=0, behind_ms=first_ms), LagRead(at_ms=15_000, behind_ms=last_ms)


def test_a_shard_at_its_tip_is_served() -> None:
    found = findings(facts(lease()))
    assert list(found) == ["at_tip"]
    assert found["at_tip"].text == "anna reads it, at the tip"
    near = findings(facts(lease(), lags=behind(2_000, 7_320)))
    assert near["at_tip"].text == "anna reads it, 7.32 s behind"
    assert not explain_fleet(facts(lease())).has_problem


def test_a_shard_that_catches_up_says_how_long_it_takes() -> None:
    moving = facts(
        lease(at=Position("200")), before=[lease(counter=6)], lags=behind(10 * 60_000, 10 * 60_000 - 30_000)
    )
    assert findings(moving)["catching_up"].text == (
        "anna reads it, 9 min 30 s behind and catching up: about 4 min 45 s to the tip at the present rate"
    )


@pytest.mark.parametrize(("change_ms", "code"), [(-1, "catching_up"), (0, "behind"), (1, "falling_behind")])
def test_the_smallest_change_of_the_lag_has_a_direction(change_ms: int, code: str) -> None:
    lags = behind(10 * 60_000, 10 * 60_000 + change_ms)
    assert code in findings(facts(lease(at=Position("200")), before=[lease(counter=6)], lags=lags))


def test_a_shard_that_falls_behind_says_at_what_rate() -> None:
    moving = facts(
        lease(at=Position("200")), before=[lease(counter=6)], lags=behind(10 * 60_000, 10 * 60_000 + 9_000)
    )
    found = findings(moving)["falling_behind"]
    assert "the lag grew by 9 s in 15 s" in found.text
    assert found.severity is Severity.NOTICE


def test_an_owner_that_renews_and_does_not_checkpoint_is_stuck() -> None:
    found = findings(facts(lease(), lags=behind(120_000, 135_000)))
    assert "its checkpoint has not moved in 15 s and is 2 min 15 s behind" in found["stuck"].text
    assert "handler" in found["stuck"].remedy


def test_a_shard_that_its_worker_finds_healthy_is_not_stuck() -> None:
    """A handler that takes 25 s for a batch moves no checkpoint in 15 s."""
    slow = facts(lease(), lags=behind(120_000, 135_000), worker_idle_ms={str(PARENT): 10_000})
    assert list(findings(slow)) == ["behind"]
    assert findings(slow)["behind"].text == (
        "anna reads it, 2 min 15 s behind; its checkpoint has not moved in 15 s, and its worker finds it healthy: "
        "when asked, it had made progress 10 s before"
    )


def test_a_stuck_shard_does_not_propose_to_ask_workers_that_were_asked() -> None:
    unasked = facts(lease(), lags=behind(120_000, 135_000))
    assert "--status" in findings(unasked)["stuck"].remedy
    asked = findings(replace(unasked, worker_idle_ms={"shardId-000000000009": 0}))["stuck"]
    assert "--status" not in asked.remedy
    assert "no worker that was asked says that it reads this shard" in asked.remedy


def test_a_checkpoint_that_is_a_moment_old_is_not_stuck() -> None:
    """Many programs checkpoint once a minute."""
    assert "stuck" not in findings(facts(lease(), lags=behind(20_000, 35_000)))


def test_the_worker_says_why_it_does_not_move() -> None:
    told = Finding(
        code="handler_fails", severity=Severity.PROBLEM, text="it failed 12 times", remedy="mend it"
    )
    found = findings(facts(lease(), lags=behind(120_000, 135_000), worker_findings={str(PARENT): (told,)}))
    assert found["handler_fails"] == told
    assert set(found) == {"handler_fails", "behind"}  # one cause, one problem
    assert (
        findings(facts(lease(), worker_findings={str(PARENT): (told,)}))["handler_fails"] == told
    )  # no lag yet


def standing(*behind_ms: int, **values: object) -> tuple[LagRead, ...]:
    reads = (
        LagRead(at_ms=15_000 * number, behind_ms=each, position=Position("100"))
        for number, each in enumerate(behind_ms)
    )
    return tuple(replace(read, **values) for read in reads)  # type: ignore[arg-type]


def test_a_shard_that_stands_still_does_not_fall_behind() -> None:
    """Its lag grows by itself, and a faster handler or more workers would not help."""
    found = findings(facts(lease(), lags=standing(20_000, 35_000)))
    assert set(found) == {"behind"}
    assert "its position has not moved for at least 15 s" in found["behind"].text


def test_a_hung_shard_of_a_member_does_not_fall_behind() -> None:
    """The lag that a member knows grows with the time, whatever the handler does."""
    lags = standing(60_000, 61_000, 75_000, 90_000, position=None, progress_ms=16_000)
    lags = (replace(lags[0], progress_ms=0), replace(lags[1], progress_ms=14_000), *lags[2:])
    told = Finding(code="no_progress", severity=Severity.PROBLEM, text="it has made no progress")
    hung = facts(lease(), lags=lags[1:], own_worker=ANNA)
    assert set(findings(hung)) == {"behind"}
    assert set(findings(replace(hung, worker_findings={str(PARENT): (told,)}))) == {"no_progress", "behind"}


def test_a_slow_worker_falls_behind_also_while_a_batch_takes_long() -> None:
    at = standing(60_000, 70_000, 80_000, 90_000, 105_000)
    lags = [replace(read, position=Position(str(number))) for number, read in enumerate(at[:4])]
    slow = facts(
        lease(at=Position("3")),
        before=[lease(counter=6)],
        lags=(*lags, replace(at[4], position=Position("3"))),
    )
    assert "the lag grew by 20 s in 30 s" in findings(slow)["falling_behind"].text


def test_a_member_does_not_judge_its_own_shards_by_their_checkpoints() -> None:
    """It knows whether records are handled, and it may checkpoint rarely."""
    assert "stuck" not in findings(facts(lease(), lags=behind(120_000, 135_000), own_worker=ANNA))


def test_a_lag_that_grows_says_when_records_are_lost() -> None:
    moving = facts(
        lease(at=Position("200")), before=[lease(counter=6)], lags=behind(12 * HOUR_MS - 15_000, 12 * HOUR_MS)
    )
    assert "at this rate the first records are lost in 12 h 0 min" in findings(moving)["falling_behind"].text


def test_a_handoff_to_a_worker_that_is_gone_is_a_problem() -> None:
    pending = lease(owner=BERT, checkpoint_owner=ANNA)
    read = TableRead(
        at_ms=15_000, leases=(pending,), reports=(WorkerReport(worker=ANNA, updated_s=NOW_S - 5),)
    )
    found = findings(facts(pending, after=read))
    assert "but bert is not active" in found["handoff_to_silent_worker"].text
    assert found["handoff_to_silent_worker"].severity is Severity.PROBLEM


RESET = WorkerId("leasehold-reset-host-1:17:0a1b2c3d")
COMMAND = "the command `leasehold reset` (process 17 on host-1)"


def test_a_command_that_waits_for_an_owner_is_no_silent_worker() -> None:
    """It sends no heartbeat and no report, whether it runs or was killed."""
    pending = lease(owner=RESET, checkpoint_owner=ANNA)
    read = TableRead(
        at_ms=15_000, leases=(pending,), reports=(WorkerReport(worker=ANNA, updated_s=NOW_S - 5),)
    )
    found = findings(facts(pending, after=read))
    assert set(found) == {"handoff_pending", "at_tip"}
    assert found["handoff_pending"].severity is Severity.NOTICE
    assert found["handoff_pending"].text == (
        "the command `leasehold reset` (process 17 on host-1) has asked anna for it, at least 15 s ago: "
        "anna first finishes the records in flight"
    )
    assert "if the command no longer runs" in found["handoff_pending"].remedy


def test_a_command_that_holds_a_lease_is_no_worker() -> None:
    held = facts(lease(owner=RESET))
    assert set(findings(held)) == {"handoff_pending"}
    assert "leasehold reset` (process 17 on host-1) holds it" in findings(held)["handoff_pending"].text
    assert "no_active_worker" in findings(held, None)
    killed = findings(facts(lease(owner=RESET), before=[lease(owner=RESET)]))["owner_silent"]
    assert "its owner the command `leasehold reset`" in killed.text
    assert "restart this one" not in killed.remedy


def test_a_worker_with_a_similar_name_is_no_command() -> None:
    assert set(findings(facts(lease(owner=WorkerId("leasehold-reset-1"))))) == {"at_tip"}


def test_a_lost_lease_of_a_parent_is_named() -> None:
    shards = (
        Shard(PARENT, WHOLE_HASH_RANGE, "1", "9"),
        Shard(CHILD, WHOLE_HASH_RANGE, "10", parents=(PARENT,)),
    )
    child = lease(CHILD, at=TRIM_HORIZON, parents=frozenset({PARENT}))
    found = findings(facts(child, shards=shards), CHILD)
    assert f"its parent {PARENT} has no lease" in found["parent_without_lease"].text
    begun = facts(replace(child, checkpoint=Position("11")), shards=shards)
    assert "parent_without_lease" not in findings(begun, CHILD)


def test_a_silent_owner_is_named() -> None:
    found = findings(facts(lease(), before=[lease()]))
    assert "anna is silent for at least 15 s" in found["owner_silent"].text
    assert found["owner_silent"].remedy == "no other worker is active: start one, or restart this one"
    assert "at_tip" not in found


def test_the_lag_of_a_shard_is_no_notice_beside_its_cause() -> None:
    late = behind(7_300, 22_300)
    silent = findings(facts(lease(), before=[lease()], lags=late))
    free = findings(facts(lease(owner=None), before=[lease(owner=None)], lags=late))
    for found, problem in ((silent, "owner_silent"), (free, "free")):
        assert (found[problem].severity, found["behind"].severity) == (Severity.PROBLEM, Severity.OK)
        assert found["behind"].text == "it is 22.3 s behind"
    just_free = findings(facts(lease(owner=None), before=[lease()], lags=late))
    assert list(just_free) == ["free", "behind"]
    assert (just_free["free"].severity, just_free["behind"].severity) == (Severity.OK, Severity.OK)


def test_the_silence_of_an_owner_is_not_counted_from_its_last_report() -> None:
    """It may have sent heartbeats after it, which carry no time."""
    read = TableRead(
        at_ms=15_000,
        leases=(lease(),),
        reports=(
            WorkerReport(worker=ANNA, updated_s=NOW_S - 600),
            WorkerReport(worker=BERT, updated_s=NOW_S - 5),
        ),
    )
    found = findings(replace(facts(lease(), before=[lease()]), after=read))
    assert (
        "anna is silent for at least 15 s (its last report is 10 min 0 s old)" in found["owner_silent"].text
    )
    assert "failover time" in found["owner_silent"].remedy


def test_a_lease_that_nobody_takes_is_free() -> None:
    free = lease(owner=None)
    found = findings(facts(free, before=[free]))["free"]
    assert found.text == "nobody owns it for at least 15 s, and no worker is active"
    assert "no_active_worker" in findings(facts(free, before=[free]), None)


def test_a_lease_that_is_free_for_a_moment_is_no_problem() -> None:
    found = findings(facts(lease(owner=None), before=[lease()]))["free"]
    assert found.severity is Severity.OK


def test_a_child_waits_for_its_parent_and_says_how_far_that_is() -> None:
    parent, child = lease(), lease(CHILD, at=TRIM_HORIZON, owner=None, parents=frozenset({PARENT}))
    shards = [
        Shard(PARENT, WHOLE_HASH_RANGE, "1", "900"),
        Shard(CHILD, WHOLE_HASH_RANGE, "901", None, (PARENT,)),
    ]
    of = facts(parent, child, lags=behind(90_000, 60_000), shards=shards)
    assert findings(of, CHILD)["waits_for_parents"].text == (
        f"it waits until its parent is read to the end: anna reads {PARENT}, 1 min 0 s behind"
    )


GRANDCHILD = ShardId("shardId-000000000002")
FAMILY = (
    Shard(PARENT, WHOLE_HASH_RANGE, "1", "900"),
    Shard(CHILD, WHOLE_HASH_RANGE, "901", "950", (PARENT,)),
    Shard(GRANDCHILD, WHOLE_HASH_RANGE, "951", None, (CHILD,)),
)


@pytest.mark.parametrize(
    ("parent", "before", "told"),
    [
        (
            lease(),
            lease(),
            f"nobody reads {PARENT}, 1 min 0 s behind: its owner anna is silent for at least 15 s",
        ),
        (
            lease(owner=RESET),
            lease(owner=RESET, counter=6),
            f"nobody reads {PARENT}, 1 min 0 s behind: {COMMAND} holds it",
        ),
        (
            lease(owner=RESET),
            lease(owner=RESET),
            f"nobody reads {PARENT}, 1 min 0 s behind: its owner {COMMAND} is silent for at least 15 s",
        ),
    ],
)
def test_a_child_says_that_nobody_reads_its_parent(parent: Lease, before: Lease, told: str) -> None:
    child = lease(CHILD, at=TRIM_HORIZON, owner=None, parents=frozenset({PARENT}))
    of = facts(parent, child, before=[before, child], lags=behind(90_000, 60_000), shards=FAMILY)
    assert (
        findings(of, CHILD)["waits_for_parents"].text
        == f"it waits until its parent is read to the end: {told}"
    )


def test_a_grandchild_says_that_its_parent_itself_waits() -> None:
    """Its owner has the lease of the parent already, and reads nothing of it."""
    child = lease(CHILD, at=TRIM_HORIZON, parents=frozenset({PARENT}))
    grandchild = lease(GRANDCHILD, at=TRIM_HORIZON, owner=None, parents=frozenset({CHILD}))
    of = facts(lease(), child, grandchild, shards=FAMILY)
    assert findings(of, GRANDCHILD)["waits_for_parents"].text == (
        f"it waits until its parent is read to the end: {CHILD} itself waits until {PARENT} is read to the end"
    )


def test_a_child_without_a_lease_waits_for_its_parent() -> None:
    """Its lease is created when the parent ends. Until then only the list of shards has it."""
    of = facts(lease(), lags=behind(90_000, 60_000), shards=FAMILY)
    assert findings(of, CHILD)["waits_for_parents"].text == (
        "it waits until its parent is read to the end, and gets a lease then: "
        f"anna reads {PARENT}, 1 min 0 s behind"
    )
    assert f"then: {CHILD} has no lease yet" in findings(of, GRANDCHILD)["waits_for_parents"].text
    assert findings(of, CHILD)["waits_for_parents"].severity is Severity.OK


def test_a_merged_child_without_a_lease_waits_for_the_parent_that_has_not_ended() -> None:
    shards = (
        Shard(PARENT, LOWER, "1", "900"),
        Shard(CHILD, UPPER, "1", "900"),
        Shard(GRANDCHILD, WHOLE_HASH_RANGE, "901", None, (PARENT, CHILD)),
    )
    of = facts(
        lease(hash_range=LOWER), lease(CHILD, hash_range=UPPER, at=SHARD_END, owner=None), shards=shards
    )
    assert findings(of, GRANDCHILD)["waits_for_parents"].text.endswith(
        f"then: anna reads {PARENT}, 0 s behind"
    )


def test_a_listed_shard_without_a_lease_is_explained_by_its_name() -> None:
    of = facts(lease(CHILD, at=Position("910"), parents=frozenset({PARENT})), shards=FAMILY)
    assert LeaseKey(PARENT) not in explain_fleet(of).shards
    (found,) = explain_listed_shard(PARENT, of)[LeaseKey(PARENT)]
    assert (found.code, found.severity) == ("ended", Severity.OK)
    assert not explain_listed_shard("shardId-000000000009", of)
    (unread,) = explain_listed_shard(GRANDCHILD, facts(shards=FAMILY))[LeaseKey(GRANDCHILD)]
    assert unread.code == "no_lease"


def test_a_handoff_that_lasts_names_both_workers() -> None:
    handoff = lease(owner=BERT, checkpoint_owner=ANNA)
    found = findings(facts(handoff))["handoff_pending"]
    assert found.text.startswith("anna hands it over to bert, for at least 15 s")
    assert found.severity is Severity.NOTICE


def test_a_member_that_has_not_read_twice_does_not_say_how_long_its_handoff_lasts() -> None:
    handoff = lease(owner=BERT, checkpoint_owner=ANNA)
    of = facts(handoff, own_worker=ANNA)
    of = replace(of, before=replace(of.before, at_ms=of.after.at_ms))
    assert findings(of)["handoff_pending"].text == (
        "anna hands it over to bert: it first finishes the records in flight"
    )


def test_records_that_will_be_trimmed_are_an_alarm() -> None:
    found = findings(facts(lease(), lags=behind(20 * HOUR_MS, 20 * HOUR_MS)))["retention_nearly_reached"]
    assert found.severity is Severity.PROBLEM
    assert "the first records are lost in 4 h 0 min" in found.text


def test_a_trimmed_position_is_a_problem() -> None:
    found = findings(facts(lease(), lags=[LagRead(at_ms=1, behind_ms=HOUR_MS, is_trimmed=True)]))
    assert found["position_trimmed"].severity is Severity.PROBLEM


def test_a_trimmed_position_without_later_records_is_named() -> None:
    """Nothing is lost if the shard was idle. A worker that serves it has seen whatever came."""
    emptied = [LagRead(at_ms=1, behind_ms=0, is_emptied=True)]
    served = findings(facts(lease(), lags=emptied))
    assert (served["position_trimmed"].severity, "at_tip" in served) == (Severity.OK, True)
    free = findings(facts(lease(owner=None), lags=emptied))["position_trimmed"]
    assert free.severity is Severity.NOTICE
    assert "unless the shard has been idle" in free.text


def test_throttled_reads_are_explained() -> None:
    found = findings(facts(lease(), lags=[LagRead(at_ms=1, is_throttled=True, problem="too fast")]))
    assert "share five reads" in found["reads_throttled"].text
    assert "too fast" in found["lag_unknown"].text


def test_an_unserved_shard_says_why_its_lag_is_not_known() -> None:
    """So the wrong stream is noticed also while no worker runs."""
    foreign = [LagRead(at_ms=1, problem="the checkpoint is not of this shard")]
    for owner in (None, ANNA):
        silent = lease(owner=owner)
        found = findings(facts(silent, before=[silent], lags=foreign))["lag_unknown"]
        assert found.text == "its lag is not known: the checkpoint is not of this shard"


def test_a_hot_shard_is_named() -> None:
    found = findings(facts(lease(throughput_kbps=Decimal(950))))
    assert "950 kB a second" in found["hot_shard"].text


def test_an_ended_shard_is_done() -> None:
    assert list(findings(facts(lease(at=SHARD_END, owner=None)))) == ["ended"]


def test_a_shard_that_the_stream_no_longer_has_is_gone() -> None:
    newer = [Shard(CHILD, WHOLE_HASH_RANGE, "1")]
    assert list(findings(facts(lease(PARENT), shards=newer))) == ["shard_gone"]


@pytest.mark.parametrize("name", ["shardId-000000000001", "settings", "shardId-1", "shardId-00000000000x"])
def test_a_row_that_never_was_a_shard_is_not_called_an_ended_shard(name: str) -> None:
    """Kinesis numbers shards in the order of their creation, so a higher number has not been given yet."""
    found = findings(facts(lease(ShardId(name))), ShardId(name))
    assert list(found) == ["not_a_shard"]
    assert "never had one" in found["not_a_shard"].text
    assert "delete it" in found["not_a_shard"].remedy


def test_a_missing_lease_is_named() -> None:
    shards = [Shard(PARENT, LOWER, "1"), Shard(CHILD, UPPER, "2")]
    found = findings(facts(lease(hash_range=LOWER), shards=shards), CHILD)
    assert found["no_lease"].severity is Severity.NOTICE
    assert "a running worker creates it" in found["no_lease"].remedy


def test_a_missing_lease_after_the_death_of_the_only_worker_needs_a_worker() -> None:
    """Its last report stays fresh for some minutes, but it renewed none of its leases."""
    shards = [Shard(PARENT, LOWER, "1"), Shard(CHILD, UPPER, "2")]
    report = WorkerReport(worker=ANNA, updated_s=NOW_S - 20)
    dead = facts(lease(hash_range=LOWER), before=[lease(hash_range=LOWER)], shards=shards)
    dead = replace(
        dead,
        before=replace(dead.before, reports=(report,)),
        after=replace(dead.after, reports=(report,)),
    )
    found = findings(dead, CHILD)["no_lease"]
    assert (found.severity, "start a worker" in found.remedy) == (Severity.PROBLEM, True)
    assert "no_active_worker" in findings(dead, None)
    assert "start one" in findings(dead)["owner_silent"].remedy
    # It sent a report between the two reads, and renews late.
    newer = replace(report, updated_s=NOW_S - 5)
    alive = replace(dead, after=replace(dead.after, reports=(newer,)))
    assert findings(alive, CHILD)["no_lease"].severity is Severity.NOTICE


def test_a_missing_lease_names_a_report_that_may_be_of_a_dead_worker() -> None:
    """A worker without leases sends no heartbeats: only its next report shows that it runs."""
    report = WorkerReport(worker=ANNA, updated_s=NOW_S - 20)
    of = facts(shards=[Shard(PARENT, WHOLE_HASH_RANGE, "1")])
    of = replace(of, before=replace(of.before, reports=(report,)), after=replace(of.after, reports=(report,)))
    found = findings(of)["no_lease"]
    assert "is 20 s old" in found.remedy
    assert "start a worker" in found.remedy


def test_an_unreadable_row_names_the_shards_that_it_blocks() -> None:
    of = facts(shards=[Shard(PARENT, WHOLE_HASH_RANGE, "1")])
    of = replace(of, after=replace(of.after, rejected=(MalformedRowError(PARENT, "no checkpoint"),)))
    assert "no checkpoint" in findings(of, None)["unreadable_row"].text
    assert list(findings(of)) == ["blocked_by_unreadable_row"]


def test_a_row_with_a_junk_key_holds_up_no_shard_and_its_remedy_is_said_once() -> None:
    of = facts(lease())
    junk = MalformedRowError("junk", "checkpoint: missing; repair or delete the row")
    found = findings(replace(of, after=replace(of.after, rejected=(junk,))), None)["unreadable_row"]
    assert found.text == (
        "row 'junk' of the lease table cannot be read: checkpoint: missing; its key is not that of a shard, so no "
        "shard waits for it"
    )
    assert found.remedy == "repair the row, or delete it if it is not a lease"


def test_an_ended_shard_of_an_earlier_stream_does_not_count_as_read() -> None:
    of = facts(lease(at=SHARD_END, owner=None), shards=[Shard(PARENT, WHOLE_HASH_RANGE, "5000")])
    assert "stream_recreated" in findings(of, None)
    ended = findings(of)["ended"]
    assert (ended.severity, "that of the present stream is not read" in ended.text) == (Severity.NOTICE, True)


def test_a_recreated_stream_is_named() -> None:
    of = facts(lease(at=Position("100")), shards=[Shard(PARENT, WHOLE_HASH_RANGE, "5000")])
    assert "start_over" in findings(of, None)["stream_recreated"].remedy


def test_a_missing_stream_is_named() -> None:
    missing = {None: StreamFacts(name="orders", shards=None, is_missing=True)}
    assert "orders does not exist" in findings(facts(lease(), streams=missing), None)["stream_missing"].text


def leader(version: str, owner: WorkerId | None = BERT) -> LeaderLock:
    return LeaderLock(owner=owner, version=text(version), duration_ms=10_000)


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        (leader("a"), leader("b"), None),
        (leader("a"), leader("a"), "leader_silent"),
        (None, None, "no_leader"),
    ],
)
def test_a_fleet_without_a_leader_is_named(
    before: LeaderLock | None, after: LeaderLock | None, code: str | None
) -> None:
    of = facts(lease(), has_leader=True)
    of = replace(of, before=replace(of.before, lock=before), after=replace(of.after, lock=after))
    assert set(findings(of, None)) == ({code} if code else set())


def test_a_missing_index_and_two_layouts_are_named() -> None:
    of = replace(facts(lease()), has_leader=True, has_index=False, has_two_layouts=True)
    of = replace(of, before=replace(of.before, lock=leader("a")), after=replace(of.after, lock=leader("b")))
    assert set(findings(of, None)) == {"index_not_ready", "two_table_layouts"}


def test_ten_thousand_shards_are_explained_in_seconds() -> None:
    """The time grows with the number of shards. With its square, this fleet would take minutes."""
    ids = [ShardId(f"shardId-{number:012}") for number in range(10_000)]
    width = 2**128 // len(ids)
    shards = [
        Shard(shard, HashRange(number * width, (number + 1) * width - 1), "1")
        for number, shard in enumerate(ids)
    ]
    leases = [
        lease(shard, owner=WorkerId(f"w-{number % 100}") if number % 3 else None)
        for number, shard in enumerate(ids)
    ]
    silent = facts(*leases, before=leases, shards=shards)
    began_s = time.process_time()
    assert len(explain_fleet(silent).shards) == len(ids)
    assert time.process_time() - began_s < 15
