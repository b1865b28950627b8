"""async-kinesis: a loop over its consumer, which returns the data of one record at a time."""

import asyncio
import json
import os
import sys

from kinesis import Consumer
from kinesis.aggregators import KPLAggregator, SimpleAggregator
from kinesis.processors import Processor

given = json.loads(sys.argv[1])


class Plain(Processor, SimpleAggregator):
    def deserialize(self, data: bytes) -> bytes:
        return data

    def serialize(self, item: bytes) -> bytes:
        return item


class Aggregated(Processor, KPLAggregator):
    def deserialize(self, data: bytes) -> bytes:
        return data

    def serialize(self, item: bytes) -> bytes:
        return item


async def main() -> None:
    counts = os.open(f"{given['folder']}/counts", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    consumer = Consumer(
        stream_name=given["stream"],
        endpoint_url=given["kinesis"],
        region_name="us-east-1",
        processor=Aggregated() if given["aggregated"] else Plain(),
        shard_fetch_rate=5,
        sleep_time_no_records=0.2,
        idle_timeout=600,
    )
    records = size = 0
    left = given["records"]
    async with consumer:
        async for data in consumer:
            records, size, left = records + 1, size + len(data), left - 1
            if records == given["report_every"] or not left:
                os.write(counts, f"{records} {size}\n".encode())
                records = size = 0


asyncio.run(main())
