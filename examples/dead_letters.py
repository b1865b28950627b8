"""A handler that fails for some records: they become dead letters, and the shard goes on.

Orders are JSON. What is no JSON fails in every attempt. The worker searches the batch for that one record, stores it in
dead-letters.jsonl, and continues behind it. Put one to see it: `leasehold put orders '{"id": 1}' 'no JSON'`.
"""

import json

from leasehold import Batch, Consumer

consumer = Consumer(
    stream="orders",
    application="orders-to-table",
    retries=2,  # of a batch, and then of the single record
    on_poison="dead_letter",
    dead_letters="dead-letters.jsonl",  # or s3://bucket/prefix
)


@consumer.batch(max_records=500, max_wait="1s")
def save(batch: Batch) -> None:
    orders = [json.loads(record.data) for record in batch]
    print("saved", len(orders), flush=True)


consumer.run()
