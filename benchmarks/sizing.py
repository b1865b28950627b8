"""Prints what a month of N shards costs, and how many cores: requests from the settings, prices as assumptions.

    python -m benchmarks.sizing

Heartbeats are one write a lease: every 5 s here (half the failover time of 10 s), every 3.3 s in the Java KCL (a
third). Our checkpoints travel with heartbeats; Java's are writes of their own, as many as the program makes, and are
not counted. The CPU seconds a GB are those of records of 1,000 B in documented runs.
"""

from __future__ import annotations

from dataclasses import dataclass

HOURS = 730
# US East, on demand, without free allowances. Check the current prices.
WRITE_PRICE, READ_PRICE, SHARD_HOUR_PRICE = 0.625e-6, 0.125e-6, 0.015
SHARD_COUNTS = (8, 64, 256, 1_000)
ROW_READS_PER_UNIT = 8  # rows of half a kilobyte in an eventually consistent read unit (two times 4 KB)
MB_PER_S = 1.0  # of each shard: the most that can be written to it


@dataclass(frozen=True)
class Consumer:
    """Intervals in seconds, and the CPU seconds for a GB."""

    name: str
    heartbeat_s: float
    scan_s: float
    cpu_s_per_gb: float

    def dynamodb_a_month(self, shards: int) -> float:
        """Heartbeats, and scans of the whole table by one member."""
        writes = shards * HOURS * 3600 / self.heartbeat_s
        reads = HOURS * 3600 / self.scan_s * max(1, shards / ROW_READS_PER_UNIT)
        return writes * WRITE_PRICE + reads * READ_PRICE

    def cores(self, shards: int) -> float:
        """Cores for shards that are all written at their limit."""
        return shards * MB_PER_S * self.cpu_s_per_gb / 1000


CONSUMERS = (
    Consumer("leasehold", heartbeat_s=5.0, scan_s=4.0, cpu_s_per_gb=13.0),
    Consumer("Java KCL", heartbeat_s=3.33, scan_s=10.0, cpu_s_per_gb=31.7),
)


def table() -> str:
    """The table of docs/performance.md."""
    head = "| shards | Kinesis a month | " + " | ".join(
        f"{each.name}: DynamoDB a month | cores at 1 MB/s a shard" for each in CONSUMERS
    )
    rows = [
        f"| {shards:,} | ${shards * HOURS * SHARD_HOUR_PRICE:,.0f} | "
        + " | ".join(
            f"${each.dynamodb_a_month(shards):,.2f} | {each.cores(shards):,.1f}" for each in CONSUMERS
        )
        + " |"
        for shards in SHARD_COUNTS
    ]
    return "\n".join([f"{head} |", "|---|---|---|---|---|---|", *rows, ""])


if __name__ == "__main__":
    print(table())
