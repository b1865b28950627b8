"""Measures failover times, and the DynamoDB requests of an idle fleet, for our members and for Java members.

    python -m benchmarks.failover [--shards 12] [--members 4] [--steady 60] [--only python] [--json]

Each fleet runs with its default settings on one stream of the local server and on DynamoDB Local. A proxy counts its
requests. First the fleet is left alone. Then one member is stopped, one is killed, and the leader is killed. Each time
the benchmark measures how long it takes until other members read all shards of that member. Both fleets checkpoint
every five seconds, and Java balances by the number of leases. The servers and the Java member are those of the tests:
`make setup-servers setup-interop`.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from leasehold.local import LocalKinesis
from tests.interop.fleet_tables import FleetTables
from tests.interop.mixed_fleet import MixedFleet
from tests.proxy import Proxy, run_proxy
from tests.servers import Server
from tests.servers.catalog import DYNAMODB_LOCAL
from tests.servers.running import Run

# Outside of AWS a Java member reports no CPU use, and Java's default strategy may assign no lease to late members.
JAVA_OPTIONS = {"mode": "3X", "checkpoint_ms": 5_000, "balance_by": "LEASE_COUNT_BASED"}
PUT_EVERY_S = 0.25
CHECK_EVERY_S = 0.25
# A Java leader waits for a minute at its first start, and a dead leader is replaced after two minutes.
DEADLINE_S = 600.0


@dataclass
class Bench:
    """One fleet of Python or Java members, and its stream."""

    language: str
    fleet: MixedFleet
    table: FleetTables
    proxy: Proxy
    kinesis: Any
    shards: int
    _end: threading.Event = field(default_factory=threading.Event)

    def start(self) -> None:
        """Start a member."""
        if self.language == "java":
            self.fleet.start_java()
        else:
            self.fleet.start_python()

    def produce(self) -> None:
        """Put a record into every shard at intervals, so that reads show in the members' logs."""
        keys = [str((2**128 * index + 2**127) // self.shards) for index in range(self.shards)]
        for number in range(10**9):
            if self._end.wait(PUT_EVERY_S):
                return
            records = [
                {"Data": str(number).encode(), "PartitionKey": "any", "ExplicitHashKey": key} for key in keys
            ]
            self.kinesis.put_records(StreamName=self.fleet.stream, Records=records)

    def end(self) -> None:
        """Stop the producer and kill the members."""
        self._end.set()
        self.fleet.kill_all()

    def wait_for(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for a condition; exit with a message at the deadline."""
        until = time.monotonic() + DEADLINE_S
        while not condition():
            if time.monotonic() > until:
                raise SystemExit(f"{self.language}: after {DEADLINE_S} s this is not true: {what}")
            time.sleep(CHECK_EVERY_S)

    def every_member_reads(self) -> bool:
        """Return whether every member has leases, and every shard was read in the last ten seconds."""
        self.fleet.check_alive()
        recent_ns = time.monotonic_ns() - 10 * 10**9
        read = {each.shard for each in self.fleet.handled() if each.at_ns > recent_ns}
        owners = {lease.owner for lease in self.table.unfinished_leases()}
        return len(read) == self.shards and owners == set(self.fleet.running)

    def requests_per_shard_hour(self, seconds: float) -> dict[str, float]:
        """Count the DynamoDB requests while nothing changes."""
        before, began = Counter(self.proxy.request_counts), time.monotonic()
        time.sleep(seconds)
        hours = (time.monotonic() - began) / 3600
        made = self.proxy.request_counts - before
        by_operation = {name: count / self.shards / hours for name, count in made.most_common()}
        return {"all": sum(by_operation.values()), **by_operation}

    def member(self, *, leading: bool) -> str:
        """Return the leader, or another member."""
        leader = self.table.leader()
        return next(worker for worker in self.fleet.running if (worker == leader) is leading)

    def measure_unread_s(self, victim: str, remove: Callable[[str], None]) -> float:
        """Remove a member. Returns the seconds until other members read all its shards."""
        shards = {str(lease.key) for lease in self.table.unfinished_leases() if lease.owner == victim}
        began_ns = time.monotonic_ns()
        remove(victim)
        first: dict[str, int] = {}

        def all_read() -> bool:
            for each in self.fleet.handled():
                if each.at_ns > began_ns and each.worker != victim and each.shard in shards:
                    first.setdefault(each.shard, each.at_ns)
            return first.keys() == shards

        self.wait_for(all_read, f"the shards of {victim} are read again")
        return (max(first.values()) - began_ns) / 10**9


@contextmanager
def bench(language: str, shards: int, dynamodb: Server, folder: Path) -> Iterator[Bench]:
    """Create a stream with records, and a fleet without members."""
    with LocalKinesis.in_process() as kinesis, run_proxy(dynamodb.url) as proxy:
        client = kinesis.client()
        client.create_stream(StreamName="failover", ShardCount=shards)
        fleet = MixedFleet(
            folder=folder,
            stream="failover",
            application=f"failover-{language}",
            kinesis_url=kinesis.endpoint_url,
            dynamodb_url=proxy.url,
            java_options=dict(JAVA_OPTIONS),
            python_options={},
        )
        table = FleetTables(dynamodb.client("dynamodb"), fleet.application)
        made = Bench(language, fleet, table, proxy, client, shards)
        producing = threading.Thread(target=made.produce, daemon=True)
        producing.start()
        try:
            yield made
        finally:
            made.end()
            producing.join()


def measure(made: Bench, members: int, steady_s: float) -> dict[str, Any]:
    """Measure one fleet."""
    began = time.monotonic()
    made.start()
    # Java members that create the table at the same time may fail, so the first member starts alone.
    made.wait_for(lambda: len(made.table.unfinished_leases()) == made.shards, "the leases exist")
    for _ in range(members - 1):
        made.start()
    made.wait_for(made.every_member_reads, "every member reads")
    figures: dict[str, Any] = {"until every member reads, s": time.monotonic() - began}
    figures["DynamoDB requests per shard-hour"] = made.requests_per_shard_hour(steady_s)
    for name, leading, remove in (
        ("clean stop of a member, s", False, made.fleet.stop),
        ("kill -9 of a member, s", False, made.fleet.kill),
        ("kill -9 of the leader, s", True, made.fleet.kill),
    ):
        figures[name] = made.measure_unread_s(made.member(leading=leading), remove)
        made.wait_for(made.every_member_reads, "every member reads again")
    return figures


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, default=12)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--steady", type=float, default=60, help="seconds in which requests are counted")
    parser.add_argument("--only", choices=["python", "java"], action="append")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as servers:
        run = Run(os.getpid(), Path(servers))
        try:
            dynamodb = run.server(DYNAMODB_LOCAL)
            for language in options.only or ["python", "java"]:
                folder = Path(servers) / language
                folder.mkdir()
                with bench(language, options.shards, dynamodb, folder) as made:
                    results[language] = measure(made, options.members, options.steady)
                    print(f"{language}: {json.dumps(results[language])}", file=sys.stderr, flush=True)
        finally:
            run.end()
    print(json.dumps(results) if options.json else format_table(results))


def format_table(results: dict[str, Any]) -> str:
    """Return the figures of both fleets in columns."""
    flat = {
        language: {
            f"{name}: {part}" if isinstance(value, dict) else name: figure
            for name, value in figures.items()
            for part, figure in (value.items() if isinstance(value, dict) else [("", value)])
        }
        for language, figures in results.items()
    }
    names = list(dict.fromkeys(name for figures in flat.values() for name in figures))
    lines = [f"{'':>60}" + "".join(f"{language:>10}" for language in flat)]
    for name in names:
        figures = (f"{flat[language].get(name, 0):>10.1f}" for language in flat)
        lines.append(f"{name:>60}" + "".join(figures))
    return "\n".join(lines)


if __name__ == "__main__":
    main()
