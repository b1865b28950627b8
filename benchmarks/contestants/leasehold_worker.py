"""Our worker: handlers that take the data of each record, as objects or as columns."""

import json
import os
import sys
from typing import Any

given = json.loads(sys.argv[1])
if given["is_pure"]:
    os.environ["LEASEHOLD_NATIVE"] = "0"

from leasehold import Consumer  # noqa: E402 - after that

leases = (
    {"leases": "dynamodb", "dynamodb_endpoint": given["dynamodb"]}
    if given["dynamodb"]
    else {"leases": f"sqlite:///{given['folder']}/leases.sqlite"}
)
consumer = Consumer(
    stream=given["stream"],
    application=given["application"],
    region="us-east-1",
    kinesis_endpoint=given["kinesis"],
    initial_position="TRIM_HORIZON",
    # Kinesis limits a shard to 2 MB a second. The benchmark measures the software, not that limit.
    bytes_per_second=64_000_000,
    kinesis_protocol=given["protocol"],
    **leases,
)
counts = os.open(f"{given['folder']}/counts", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
if given["way"] == "arrow":

    @consumer.batch(arrow=True, max_records=10_000)
    def handle(batch: Any) -> None:
        data = batch.column("data")
        os.write(counts, f"{len(data)} {data.nbytes}\n".encode())
else:

    @consumer.batch()
    def handle(batch: Any) -> None:
        size = sum([len(record.data) for record in batch.records])
        os.write(counts, f"{len(batch.records)} {size}\n".encode())


consumer.run()
