"""A Parquet object that is only checked is read in parts."""

import os

import pyarrow as pa

from leasehold.archive.decompression import require_readable_parquet
from leasehold.archive.formats import encode


def test_an_object_that_is_only_checked_is_never_decoded_whole() -> None:
    """A compaction checks each object that it has made, beside the object itself."""
    table = pa.table({"data": [os.urandom(1_000) for _ in range(32_768)]})
    body = encode(table, "parquet", "zstd")
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    try:
        require_readable_parquet(body)
    finally:
        pa.set_memory_pool(before)
    assert 0 < (pool.max_memory() or 0) < len(body) // 2
