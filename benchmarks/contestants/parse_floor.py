"""The floor of pure Python: unsigned requests on one connection, and each body parsed. No leases, no handler.

Each body is parsed by orjson, and the data decoded by pybase64. Aggregates are not split.
"""

import http.client
import json
import os
import signal
import sys
from typing import Any
from urllib.parse import urlsplit

import orjson
import pybase64

given = json.loads(sys.argv[1])
counts = os.open(f"{given['folder']}/counts", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
url = urlsplit(given["kinesis"])
connection = http.client.HTTPConnection(str(url.hostname), url.port)


def call(operation: str, **fields: Any) -> bytes:
    headers = {
        "Content-Type": "application/x-amz-json-1.1",
        "X-Amz-Target": f"Kinesis_20131202.{operation}",
    }
    connection.request("POST", "/", orjson.dumps(fields), headers)
    return connection.getresponse().read()


for shard in orjson.loads(call("ListShards", StreamName=given["stream"]))["Shards"]:
    iterator = orjson.loads(
        call(
            "GetShardIterator",
            StreamName=given["stream"],
            ShardId=shard["ShardId"],
            ShardIteratorType="TRIM_HORIZON",
        )
    )["ShardIterator"]
    while True:
        page = orjson.loads(call("GetRecords", ShardIterator=iterator, Limit=2_000))
        data = [pybase64.b64decode(record["Data"], validate=True) for record in page["Records"]]
        if not data:
            break
        os.write(counts, f"{len(data)} {sum(map(len, data))}\n".encode())
        iterator = page["NextShardIterator"]
signal.pause()
