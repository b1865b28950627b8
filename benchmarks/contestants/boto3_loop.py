"""A loop of boto3's GetRecords, in one thread a shard, without leases. Aggregates are split by aws-kinesis-agg."""

import json
import os
import sys
import threading

import boto3
from aws_kinesis_agg.deaggregator import iter_deaggregate_records

given = json.loads(sys.argv[1])
counts = os.open(f"{given['folder']}/counts", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
client = boto3.client("kinesis", endpoint_url=given["kinesis"], region_name="us-east-1")


def read(shard: str) -> None:
    iterator = client.get_shard_iterator(
        StreamName=given["stream"], ShardId=shard, ShardIteratorType="TRIM_HORIZON"
    )["ShardIterator"]
    while True:
        page = client.get_records(ShardIterator=iterator, Limit=10_000)
        records = page["Records"]
        if given["aggregated"]:
            records = list(iter_deaggregate_records(records, data_format="Boto3"))
            size = sum(len(record["kinesis"]["data"]) for record in records)
        else:
            size = sum(len(record["Data"]) for record in records)
        if records:
            os.write(counts, f"{len(records)} {size}\n".encode())
        else:
            threading.Event().wait(1)
        iterator = page["NextShardIterator"]


for each in client.list_shards(StreamName=given["stream"])["Shards"]:
    threading.Thread(target=read, args=(each["ShardId"],)).start()
