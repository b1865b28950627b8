"""Stream contract: concurrent producers. Every acknowledged record is stored once, in a stable order."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from tests.contract.streams import Stream

PRODUCERS = 8
REQUESTS = 6
RECORDS_PER_REQUEST = 10  # in kinesis-local a put takes longer the more its shard holds


def produce(stream: Stream, producer: int) -> list[tuple[str, bytes]]:
    """Send some requests one after the other; returns number and data of all acknowledged records."""
    acknowledged: list[tuple[str, bytes]] = []
    for request in range(REQUESTS):
        data = [b"%d/%d/%d" % (producer, request, n) for n in range(RECORDS_PER_REQUEST)]
        responses = stream.put_many([(f"producer-{producer}", entry) for entry in data])
        acknowledged += zip((response["SequenceNumber"] for response in responses), data, strict=True)
    return acknowledged


def test_nothing_acknowledged_is_lost(stream: Stream, shard_id: str) -> None:
    """Eight producers write to one shard: every acknowledged record is read once, with its own number."""
    with ThreadPoolExecutor(PRODUCERS) as pool:
        acknowledged = list(pool.map(lambda producer: produce(stream, producer), range(PRODUCERS)))
    read = stream.read(shard_id)
    found = Counter((record["SequenceNumber"], record["Data"]) for record in read.records)
    assert found == Counter(entry for produced in acknowledged for entry in produced)
    assert set(found.values()) == {1}
    assert read.numbers == sorted(set(read.numbers))


def test_a_producers_requests_stay_in_order(stream: Stream, shard_id: str) -> None:
    """Requests that one producer sends one after the other are read in that order."""
    with ThreadPoolExecutor(PRODUCERS) as pool:
        list(pool.map(lambda producer: produce(stream, producer), range(PRODUCERS)))
    for producer in range(PRODUCERS):
        mine = [
            data.split(b"/")[1] for data in stream.read(shard_id).data if data.startswith(b"%d/" % producer)
        ]
        assert mine == sorted(mine)


def test_records_put_during_a_split_are_in_the_parent_or_a_child(stream: Stream, shard_id: str) -> None:
    """A split while producers write loses and repeats no record."""
    with ThreadPoolExecutor(PRODUCERS) as pool:
        producing = [pool.submit(produce, stream, producer) for producer in range(PRODUCERS)]
        children = stream.split(shard_id)
        acknowledged = Counter(data for result in producing for _, data in result.result())
    reads = [stream.read_to_end(shard_id), *(stream.read(child) for child in children)]
    assert Counter(data for read in reads for data in read.data) == acknowledged
