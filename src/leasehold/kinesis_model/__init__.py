"""A pure model of the Kinesis service: streams, shards, records, iterators and consumers as values.

The caller passes in the time. No call waits, reads a clock or draws a random number, so the same calls give the same
responses. The local server serves this model over HTTP; the simulator runs it on a virtual clock.

    service           every operation as a method    stream      the state of one stream
    writing           PutRecord and PutRecords       shard       the state of one shard
    reading           iterators and pages            record_log  the records of one shard
    listing           ListShards and its filters     limits      read and write limits of a shard
    resharding        split, merge, uniform scaling  consumers   registered consumers and subscriptions
    account           stream names and ARNs          tokens      opaque tokens that clients send back
    sequence_numbers  layout of sequence numbers     snapshot    streams as plain values and back
    settings          what a test can change         api_errors  the errors of the Kinesis API
"""
