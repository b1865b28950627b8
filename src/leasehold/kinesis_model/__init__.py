"""Kinesis as a value: streams, shards, records, iterators, consumers. Pure: time is passed in, nothing is drawn
at random, no call blocks. The local server serves it over HTTP, the simulator drives it on a virtual clock.

    sequence    what numbers look like          reshard   how the hash range is divided
    record_log  the records of one shard        writing   putting records
    shard       one shard's life                reading   iterators and pages of records
    stream      the state of one stream         listing   ListShards and its filters
    limits      what a shard gives in a second  consumers who is subscribed to what
    tokens      opaque text, opened safely      snapshot  streams as plain values, and back
    settings    what a test may change          service   every operation, by name
"""
