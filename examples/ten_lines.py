"""The smallest consumer: it prints every record of the stream "orders", in order within each shard.

Without AWS: start `leasehold local --stream orders:2`, set LEASEHOLD_KINESIS_ENDPOINT to the address that it prints,
set LEASEHOLD_LEASES=sqlite:///leases.sqlite, and run this file.
"""

from leasehold import Batch, Consumer

consumer = Consumer(stream="orders", application="billing")


@consumer.batch(max_records=500, max_wait="1s")
def save(batch: Batch) -> None:
    for record in batch:
        print(f"{batch.shard} {record.sequence_number} {len(record.data)} bytes")


consumer.run()  # SIGTERM: drain, checkpoint, release, exit 0
