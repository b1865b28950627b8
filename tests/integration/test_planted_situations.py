"""Situations in which a shard stands still, planted on real servers. `leasehold explain` and the dashboard name the
cause and the remedy of each: the dashboard over HTTP, and some of them as a real browser shows them.

Rows are written as workers leave them. A living worker is a task that renews its leases while the fleet is watched.
"""

import asyncio
import json
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from decimal import Decimal
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.config import Config

from leasehold.adapters.aws.dynamodb_rows import DynamoDbRows, TableSettings
from leasehold.adapters.aws.kinesis_stream import KinesisStream
from leasehold.adapters.observability import HealthObserver
from leasehold.adapters.status_server import StatusServer
from leasehold.adapters.system_clock import SystemClock
from leasehold.core.coordinator.fleet_mode import TableLayout
from leasehold.core.coordinator.leader_lock import acquire
from leasehold.core.coordinator.worker_metrics import cpu_report
from leasehold.core.events import HandlerFailed, LeaseTaken, MemberStarted
from leasehold.core.finding import Finding, Severity
from leasehold.core.leases.row_writes import PutRow, text
from leasehold.core.model import Lease, LeaseKey, LeaseSessionId, ShardId, WorkerId, lease_key
from leasehold.core.observing.dashboard.fleet_history import FleetHistory
from leasehold.core.observing.dashboard.fleet_view import (
    ReadCosts,
    ViewSettings,
    empty_view,
    view_fleet,
)
from leasehold.core.observing.dashboard.view_changes import View
from leasehold.core.observing.explain.explain_fleet import explain_fleet
from leasehold.core.observing.explain.facts import FleetFacts
from leasehold.core.observing.health import HealthLimits
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.fleet.table.lease_table import LeaseTable
from leasehold.inspection.fleet_facts import NamedStream, read_facts
from leasehold.inspection.fleet_watch import FleetWatch
from leasehold.inspection.worker_status import read_workers
from leasehold.local import LocalKinesis
from tests.dashboard.browser import Page, find_chromium, run_browser
from tests.dashboard.running_dashboard import RunningDashboard, run_dashboard
from tests.servers.server import Server

ANNA, BERT = WorkerId("anna"), WorkerId("bert")
SHARDS = [ShardId(f"shardId-{number:012}") for number in range(6)]
WATCH_MS = 1_500  # long beside `HEARTBEAT_S`, also on a busy machine
HEARTBEAT_S = 0.1
DEADLINE_S = 60
SETTINGS = ViewSettings(application="planted", watch_ms=WATCH_MS, every_ms=WATCH_MS)
OF_A_MOMENT = {"reads_throttled", "lag_unknown"}  # a probe is throttled or not
LIMITS = HealthLimits(failover_ms=10_000, stuck_after_ms=300_000)


@pytest.fixture(scope="module")
def kinesis() -> Iterator[LocalKinesis]:
    """One server for all situations, each with its own stream. Its clock may be advanced."""
    with LocalKinesis.in_thread() as server:
        yield server


@pytest.fixture(scope="module")
def dashboard() -> Iterator[RunningDashboard]:
    """One dashboard, which shows one situation after the other."""
    with run_dashboard(empty_view(SETTINGS, 1)) as running:
        yield running


@dataclass
class Situation:
    """One fleet: a stream of two shards, a lease table in DynamoDB, and a dashboard."""

    kinesis: LocalKinesis
    dynamodb: Server
    dashboard: RunningDashboard
    name: str
    renewed: list[Lease] = field(default_factory=list)
    worker_findings: dict[str, tuple[Finding, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        client = self.dynamodb.client("dynamodb")
        self.rows = DynamoDbRows(client, self.name, settings=TableSettings(with_index=False))
        self.coordinator = DynamoDbRows(client, f"{self.name}-coordinator", key_attribute="key")
        self.reports = DynamoDbRows(client, f"{self.name}-reports", key_attribute="wid")
        self.table = LeaseTable(self.rows, coordinator=self.coordinator, metrics=self.reports)
        self.client = self.kinesis.client()

    def put(self, shard: int = 0) -> Position:
        """Put one record into a shard."""
        found = {each["ShardId"]: each for each in self.client.list_shards(StreamName=self.name)["Shards"]}
        put = self.client.put_record(
            StreamName=self.name,
            Data=b"x",
            PartitionKey="k",
            ExplicitHashKey=found[SHARDS[shard]]["HashKeyRange"]["StartingHashKey"],
        )
        return Position(put["SequenceNumber"])

    def split(self, shard: int = 0) -> None:
        """Split a shard of the first half in the middle."""
        self.client.split_shard(
            StreamName=self.name, ShardToSplit=SHARDS[shard], NewStartingHashKey=str(2**126)
        )

    async def lease(
        self,
        shard: int = 0,
        at: Position = TRIM_HORIZON,
        owner: WorkerId | None = ANNA,
        *,
        renews: bool = False,
    ) -> Lease:
        """Create a lease with this owner. With `renews`, the owner lives."""
        parents = frozenset({SHARDS[0]}) if shard > 1 else frozenset()
        key = lease_key(SHARDS[shard])
        new = Lease(key=key, shard_id=SHARDS[shard], checkpoint=at, parents=parents)
        await self.table.create(new)
        if owner is None:
            return new
        held = await self.table.take(new, owner, LeaseSessionId("session"))
        assert isinstance(held, Lease)
        if renews:
            self.renewed.append(held)
        return held

    async def report(self, worker: WorkerId, *, age_s: int = 0, separate: bool = False) -> None:
        """Write the report of a worker, as in a fleet with a leader."""
        layout = TableLayout.SEPARATE_TABLES if separate else TableLayout.SINGLE_TABLE
        report = cpu_report(worker, None, int(time.time()) - age_s)
        await self.table.coordinator_rows.write_report(layout, report)

    async def lead(self, worker: WorkerId) -> None:
        """Write the lock of a leader."""
        write = acquire(None, worker, "version-1", 5_000, "leaseKey")
        assert await self.table.coordinator_rows.write_lock(TableLayout.SINGLE_TABLE, write)

    async def explain(self) -> dict[str | None, dict[str, Finding]]:
        """The findings by shard (None: the fleet) and code: of the command, which are also those of the dashboard."""
        async with self._heartbeats():
            stream = KinesisStream(self.client, self.name)
            facts = await read_facts(
                self.table,
                {None: NamedStream(self.name, stream)},
                SystemClock(),
                watch_ms=WATCH_MS,
                application=self.name,
                worker_findings=self.worker_findings,
            )
            watch = FleetWatch(
                self.table,
                lambda name: KinesisStream(self.client, name),
                SystemClock(),
                watch_ms=WATCH_MS,
                application=self.name,
                stream=self.name,
            )
            await watch.read(self.worker_findings)
            await asyncio.sleep(WATCH_MS / 1000)
            read = await watch.read(self.worker_findings)
            await watch.close()
            await stream.close()
        shown = explain_fleet(facts)
        by_shard: dict[str | None, dict[str, Finding]] = {None: {each.code: each for each in shown.fleet}}
        by_shard |= {key: {each.code: each for each in found} for key, found in shown.shards.items()}
        served = served_findings(await asyncio.to_thread(self._serve, read.facts))
        for each in shown.all_findings:
            if each.severity is not Severity.OK and each.code not in OF_A_MOMENT:
                assert (each.shard, each.code, without_numbers(each.text), each.remedy or None) in served
        return by_shard

    def _serve(self, facts: FleetFacts) -> View:
        """Show these facts in the dashboard. Returns the view that a browser gets, as a page and as an event."""
        # Not `judge_fleet`: the times of reads are whole seconds, and these reads are closer together.
        judged = explain_fleet(facts)
        now_ms = time.time_ns() // 1_000_000
        view = view_fleet(facts, judged, FleetHistory(), SETTINGS, costs=ReadCosts(), wall_ms=now_ms)
        self.dashboard.publish(view)
        got = read_served(self.dashboard.url, "/api/view")
        assert read_served(self.dashboard.url, "/api/events") == got
        assert got["at"] == now_ms
        return got

    @asynccontextmanager
    async def _heartbeats(self) -> AsyncIterator[None]:
        async def renew() -> None:
            while True:
                for index, lease in enumerate(self.renewed):
                    found = await self.table.renew(lease, lease.throughput_kbps)
                    # The SDK repeats a request without a response, and its second attempt is refused.
                    held = found if isinstance(found, Lease) else found.current
                    assert held is not None
                    self.renewed[index] = held
                await asyncio.sleep(HEARTBEAT_S)

        task = asyncio.create_task(renew())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def run(self, scenario: Callable[["Situation"], Coroutine[Any, Any, None]]) -> None:
        """Run a scenario on a fresh table and stream."""
        self.client.create_stream(StreamName=self.name, ShardCount=2)
        self.client.get_waiter("stream_exists").wait(StreamName=self.name, WaiterConfig={"Delay": 1})

        async def all_of_it() -> None:
            await self.table.prepare()
            try:
                await scenario(self)
            finally:
                await self.table.close()

        asyncio.run(all_of_it())


def read_served(url: str, path: str) -> View:
    """The JSON that the dashboard serves, or that is in its first event."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=DEADLINE_S)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        if path == "/api/view":
            view: View = json.load(response)
            return view
        while not (line := response.readline()).startswith(b"data: "):
            assert line
        event: View = json.loads(line.removeprefix(b"data: "))
        return event
    finally:
        connection.close()


def served_findings(view: View) -> set[tuple[str | None, str, str, str | None]]:
    """Shard, code, sentence and remedy of everything that a view says."""

    def parts(shard: str | None, finding: Mapping[str, Any]) -> tuple[str | None, str, str, str | None]:
        return shard, finding["code"], without_numbers(finding["text"]), finding["remedy"]

    of_shards = {parts(row["shard"], each) for row in view["shards"].values() for each in row["findings"]}
    return {parts(None, each) for each in view["findings"]} | of_shards


def without_numbers(text: str) -> str:
    """A sentence without its durations: the command and the dashboard read the fleet at different times."""
    return re.sub(r"\d[\d.]*( (s|min|h|d)\b)?( \d+ (s|min|h)\b)?", "#", text)


@pytest.fixture
def make_situation(
    kinesis: LocalKinesis,
    dynamodb_local: Server,
    dashboard: RunningDashboard,
    unique_name: Callable[[str], str],
) -> Callable[[], Situation]:
    return lambda: Situation(kinesis, dynamodb_local, dashboard, unique_name("planted"))


@pytest.fixture
def situation(make_situation: Callable[[], Situation]) -> Situation:
    return make_situation()


async def plant_paused_worker(fleet: Situation) -> None:
    await fleet.lease(0)
    await fleet.lease(1, owner=BERT, renews=True)


def test_a_paused_worker(situation: Situation) -> None:
    async def scenario(fleet: Situation) -> None:
        await plant_paused_worker(fleet)
        found = (await fleet.explain())[SHARDS[0]]["owner_silent"]
        assert "its owner anna is silent" in found.text
        assert found.remedy == "another worker takes the lease when the failover time has passed"

    situation.run(scenario)


def test_no_worker_at_all_and_a_free_lease(situation: Situation) -> None:
    async def scenario(fleet: Situation) -> None:
        await fleet.lease(0)
        await fleet.lease(1, owner=None)
        found = await fleet.explain()
        assert "start a worker" in found[None]["no_active_worker"].remedy
        assert "nobody owns it" in found[SHARDS[1]]["free"].text
        assert "start a worker" in found[SHARDS[1]]["free"].remedy

    situation.run(scenario)


def test_a_missing_lease_and_a_missing_parent(situation: Situation) -> None:
    async def scenario(fleet: Situation) -> None:
        fleet.split()
        await fleet.lease(2)
        await fleet.lease(3)
        found = await fleet.explain()
        assert f"its parent {SHARDS[0]} has no lease" in found[SHARDS[2]]["parent_without_lease"].text
        assert "reads the parent first" in found[SHARDS[2]]["parent_without_lease"].remedy
        assert "start a worker" in found[SHARDS[1]]["no_lease"].remedy

    situation.run(scenario)


def test_a_child_that_waits_for_its_parent(situation: Situation) -> None:
    async def scenario(fleet: Situation) -> None:
        first = fleet.put()
        fleet.split()
        await fleet.lease(0, first, renews=True)
        await fleet.lease(2, owner=None)
        text = (await fleet.explain())[SHARDS[2]]["waits_for_parents"].text
        assert text.startswith(f"it waits until its parent is read to the end: anna reads {SHARDS[0]}")

    situation.run(scenario)


async def plant_old_position(fleet: Situation) -> None:
    first = fleet.put()
    fleet.put()  # not done
    fleet.kinesis.advance(timedelta(hours=20))
    fleet.put()
    await fleet.lease(0, first, renews=True)


def test_a_position_that_is_nearly_trimmed_and_then_trimmed(situation: Situation) -> None:
    async def scenario(fleet: Situation) -> None:
        await plant_old_position(fleet)
        near = (await fleet.explain())[SHARDS[0]]["retention_nearly_reached"]
        assert "the stream keeps records for 1 d 0 h: the first records are lost in" in near.text
        assert "raise the retention" in near.remedy
        fleet.kinesis.advance(timedelta(hours=5))
        gone = (await fleet.explain())[SHARDS[0]]["position_trimmed"]
        assert "no longer retained" in gone.text
        assert "the worker reports the gap" in gone.remedy

    situation.run(scenario)


def test_a_handler_that_hangs(situation: Situation) -> None:
    """The owner renews the lease, but its checkpoint does not move."""

    async def scenario(fleet: Situation) -> None:
        first = fleet.put()
        fleet.put()
        fleet.kinesis.advance(timedelta(minutes=5))
        await fleet.lease(0, first, renews=True)
        found = (await fleet.explain())[SHARDS[0]]["stuck"]
        assert "anna renews the lease, but its checkpoint has not moved" in found.text
        assert "handler" in found.remedy

    situation.run(scenario)


async def plant_poison_record(fleet: Situation) -> Position:
    poison = fleet.put()
    await fleet.lease(0, renews=True)
    health = HealthObserver(LIMITS, lambda: 0)
    health(MemberStarted(ANNA, fleet.name, fleet.name))
    health(LeaseTaken(LeaseKey(SHARDS[0]), SHARDS[0], None, None, 1, TRIM_HORIZON))
    health(HandlerFailed(SHARDS[0], poison, poison, 1, 12, "KeyError"))
    server = StatusServer("127.0.0.1", 0, {"/health": health.respond})
    try:
        fleet.worker_findings = dict((await asyncio.to_thread(read_workers, [server.url])).findings)
    finally:
        server.close()
    return poison


def test_a_poison_record(situation: Situation) -> None:
    """The worker says so in /health."""

    async def scenario(fleet: Situation) -> None:
        poison = await plant_poison_record(fleet)
        found = (await fleet.explain())[SHARDS[0]]["handler_fails"]
        assert f"failed 12 times on the record at {poison}: KeyError" in found.text
        assert "dead_letters" in found.remedy

    situation.run(scenario)


def test_an_expired_handoff(situation: Situation) -> None:
    """The old owner died before it handed the lease over."""

    async def scenario(fleet: Situation) -> None:
        held = await fleet.lease(0)
        assert isinstance(await fleet.table.request_handoff(held, BERT), Lease)
        await fleet.lease(1, owner=BERT, renews=True)
        found = (await fleet.explain())[SHARDS[0]]["owner_silent"]
        assert "its owner anna is silent" in found.text
        assert "bert waits for it to hand the lease over" in found.text

    situation.run(scenario)


def test_a_handoff_that_lasts_and_one_to_a_worker_that_is_gone(situation: Situation) -> None:
    async def scenario(fleet: Situation) -> None:
        for shard, to in ((0, BERT), (1, WorkerId("carl"))):
            held = await fleet.lease(shard)
            requested = await fleet.table.request_handoff(held, to)
            assert isinstance(requested, Lease)
            fleet.renewed.append(requested)
        await fleet.report(ANNA)
        await fleet.report(BERT)
        found = await fleet.explain()
        assert "anna hands it over to bert" in found[SHARDS[0]]["handoff_pending"].text
        assert "until its handler returns" in found[SHARDS[0]]["handoff_pending"].remedy
        assert "but carl is not active" in found[SHARDS[1]]["handoff_to_silent_worker"].text

    situation.run(scenario)


def test_a_junk_row_in_a_fresh_table(situation: Situation) -> None:
    async def scenario(fleet: Situation) -> None:
        row = {"leaseKey": text(SHARDS[0]), "leaseCounter": {"S": "many"}, "checkpoint": text("1")}
        await fleet.rows.write(PutRow(SHARDS[0], row))
        found = await fleet.explain()
        assert f"row '{SHARDS[0]}' of the lease table cannot be read" in found[None]["unreadable_row"].text
        assert "repair the row, or delete it" in found[None]["unreadable_row"].remedy
        assert "gets no lease" in found[SHARDS[0]]["blocked_by_unreadable_row"].text

    situation.run(scenario)


def test_a_recreated_stream(situation: Situation) -> None:
    async def scenario(fleet: Situation) -> None:
        await fleet.lease(0, Position("17"), renews=True)
        found = (await fleet.explain())[None]["stream_recreated"]
        assert "was deleted and created again" in found.text
        assert "on_recreated_stream" in found.remedy

    situation.run(scenario)


def test_a_missing_stream(situation: Situation) -> None:
    async def scenario(fleet: Situation) -> None:
        await fleet.lease(0, renews=True)
        fleet.client.delete_stream(StreamName=fleet.name)
        fleet.client.get_waiter("stream_not_exists").wait(StreamName=fleet.name, WaiterConfig={"Delay": 1})
        found = (await fleet.explain())[None]["stream_missing"]
        assert f"stream {fleet.name} does not exist" in found.text
        assert "check the name" in found.remedy

    situation.run(scenario)


def test_two_applications_that_poll_one_shard(situation: Situation) -> None:
    async def scenario(fleet: Situation) -> None:
        fleet.put()
        await fleet.lease(0, renews=True)
        fleet.kinesis.settings(enforce_limits=True)
        try:
            with _Polling(fleet):
                found = await _wait_for(fleet, "reads_throttled")
        finally:
            fleet.kinesis.settings(enforce_limits=False)
        assert "anna polls it for this application, and another program does so too" in found.text
        assert "enhanced fan-out" in found.remedy

    situation.run(scenario)


async def _wait_for(fleet: Situation, code: str) -> Finding:
    """Explain until the finding appears. A probe has five attempts, and one of them may succeed."""
    deadline_s = time.monotonic() + DEADLINE_S
    while True:
        found = (await fleet.explain())[SHARDS[0]]
        if code in found:
            return found[code]
        assert time.monotonic() < deadline_s, found


class _Polling:
    """Another application, which polls a shard as often as it may, and more."""

    def __init__(self, fleet: Situation) -> None:
        self._fleet = fleet
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        client = self._fleet.kinesis.client(config=Config(retries={"total_max_attempts": 1}))
        arguments = {"StreamName": self._fleet.name, "ShardId": SHARDS[0]}
        iterator = client.get_shard_iterator(ShardIteratorType="TRIM_HORIZON", **arguments)["ShardIterator"]
        while not self._stop.wait(0.01):
            with suppress(client.exceptions.ProvisionedThroughputExceededException):
                client.get_records(ShardIterator=iterator, Limit=1)


def test_no_leader(situation: Situation) -> None:
    async def scenario(fleet: Situation) -> None:
        await fleet.lease(0, renews=True)
        await fleet.report(ANNA)
        found = (await fleet.explain())[None]["no_leader"]
        assert "has no leader, so nobody assigns free leases" in found.text
        assert "logs of the workers" in found.remedy

    situation.run(scenario)


def test_a_silent_leader_and_a_lease_that_it_does_not_assign(situation: Situation) -> None:
    async def scenario(fleet: Situation) -> None:
        await fleet.lease(0, renews=True)
        await fleet.lease(1, owner=None)
        await fleet.report(ANNA)
        await fleet.report(BERT, age_s=600)
        await fleet.lead(BERT)
        found = await fleet.explain()
        assert "(its last report is 10 min" in found[None]["leader_silent"].text
        assert "another worker takes over" in found[None]["leader_silent"].remedy
        assert "the leader has not assigned it" in found[SHARDS[1]]["free"].text

    situation.run(scenario)


async def plant_two_layouts(fleet: Situation) -> None:
    await fleet.lease(0, renews=True)
    await fleet.coordinator.prepare()
    await fleet.reports.prepare()
    await fleet.report(ANNA)
    await fleet.report(ANNA, separate=True)


def test_two_layouts_of_tables_and_a_missing_index(situation: Situation) -> None:
    async def scenario(fleet: Situation) -> None:
        await plant_two_layouts(fleet)
        found = (await fleet.explain())[None]
        assert "both in the lease table (KCL 3.5 and later)" in found["two_table_layouts"].text
        assert "two fleets use one application name" in found["two_table_layouts"].remedy
        assert "index of owners does not exist" in found["index_not_ready"].text
        assert "dynamodb:UpdateTable" in found["index_not_ready"].remedy

    situation.run(scenario)


def test_a_hot_shard(situation: Situation) -> None:
    async def scenario(fleet: Situation) -> None:
        held = await fleet.lease(0)
        renewed = await fleet.table.renew(held, Decimal(980))
        assert isinstance(renewed, Lease)
        fleet.renewed.append(renewed)
        found = (await fleet.explain())[SHARDS[0]]["hot_shard"]
        assert "delivers 980 kB a second" in found.text
        assert "split the shard" in found.remedy

    situation.run(scenario)


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("chromium is not installed: `make setup-browser` installs it on Debian")
    with run_browser(chromium) as opened:
        yield opened


SEEN_IN_BROWSER: list[tuple[Callable[[Situation], Coroutine[Any, Any, Any]], dict[str | None, set[str]]]] = [
    (plant_paused_worker, {SHARDS[0]: {"owner_silent"}}),
    (plant_old_position, {SHARDS[0]: {"retention_nearly_reached", "stuck"}, SHARDS[1]: {"no_lease"}}),
    (plant_poison_record, {SHARDS[0]: {"handler_fails"}}),
    (plant_two_layouts, {None: {"two_table_layouts", "index_not_ready"}}),
]


def test_a_browser_shows_the_sentence_and_the_remedy(
    make_situation: Callable[[], Situation], page: Page, dashboard: RunningDashboard
) -> None:
    """Each planted situation, read out of the page in Chromium while it is open."""
    page.open(dashboard.url)
    for plant, expected in SEEN_IN_BROWSER:

        async def scenario(
            fleet: Situation, plant: Any = plant, expected: Mapping[str | None, set[str]] = expected
        ) -> None:
            await plant(fleet)
            await fleet.explain()
            view = await asyncio.to_thread(read_served, dashboard.url, "/api/view")
            await asyncio.to_thread(page.wait_for, f"document.body.dataset.drawn === '{view['at']}'")
            seen = await asyncio.to_thread(page.evaluate, "document.getElementById('attention').innerText")
            assert_seen(seen, view, expected)

        make_situation().run(scenario)
    page.leave()
    assert page.errors == []


def assert_seen(seen: str, view: View, expected: Mapping[str | None, set[str]]) -> None:
    rows = {row["shard"]: row["findings"] for row in view["shards"].values()} | {None: view["findings"]}
    for shard, codes in expected.items():
        found = {each["code"]: each for each in rows[shard]}
        assert codes <= found.keys()
        for code in codes:
            about = "" if shard is None else f"{shard}: "
            assert f"{about}{found[code]['text']}\n" in seen
            assert found[code]["remedy"] in seen
