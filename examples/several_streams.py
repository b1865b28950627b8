"""One consumer of two streams. The leases of both are in one table; each stream can begin somewhere else.

Without AWS: `leasehold local --stream orders:2 --stream returns:1`.
"""

from leasehold import Batch, Consumer

consumer = Consumer(
    streams={"orders": "trim_horizon", "returns": "trim_horizon"},
    application="orders-and-returns",
)


@consumer.batch(max_records=500, max_wait="1s")
def save(batch: Batch) -> None:
    print(f"{batch.stream} {batch.shard} {len(batch)} records", flush=True)


consumer.run()
