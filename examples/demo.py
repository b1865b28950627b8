"""A fleet on one machine, in half a minute: `make demo`.

Starts the local Kinesis server and two workers that share its stream by leases in a SQLite file. While records flow, a
shard is split and one worker is killed with kill -9. In the end every record has been handled.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from leasehold import Batch, Consumer
from leasehold.local import LocalKinesis

STREAM = "orders"
RECORDS = 6_000
PORTION = 500
DEADLINE_S = 120


def work(endpoint: str, folder: Path, name: str) -> None:
    """One worker: a consumer as you would write it, which keeps a list of what it has handled."""
    consumer = Consumer(
        stream=STREAM,
        application="demo",
        worker_id=name,
        region="us-east-1",
        kinesis_endpoint=endpoint,
        leases=f"sqlite:///{folder / 'leases.sqlite'}",
        failover_after="4s",  # so that the demo need not wait for the usual ten
        checkpoint_every="1s",
    )
    handled = (folder / f"{name}.handled").open("a", encoding="utf-8")

    @consumer.batch(max_records=200, max_wait="500ms")
    def note(batch: Batch) -> None:
        handled.writelines(f"{record.data.decode()}\n" for record in batch)
        handled.flush()

    consumer.run()


def main() -> None:
    """Run the fleet, hurt it, and count."""
    with tempfile.TemporaryDirectory() as name, LocalKinesis.in_process() as server:
        folder = Path(name)
        kinesis = server.client()
        kinesis.create_stream(StreamName=STREAM, ShardCount=4)
        print(f"Kinesis on {server.endpoint_url}, a stream of 4 shards; two workers join")
        workers = [_start(server.endpoint_url, folder, f"worker-{number}") for number in (1, 2)]
        try:
            for first in range(0, RECORDS, PORTION):
                _put(kinesis, first)
                if first == RECORDS // 3:
                    print("a shard is split while records flow")
                    _split(kinesis)
                if first == RECORDS // 2:
                    print("kill -9 for worker-1; worker-2 takes over once its leases run out")
                    workers[0].kill()
                time.sleep(0.5)
            _wait_for_all(folder)
            _show_leases(folder)
        finally:
            for worker in workers:
                worker.terminate()
                worker.wait()
        print(f"worker-2 was asked to stop, drained, and left with exit code {workers[1].returncode}")


def _start(endpoint: str, folder: Path, name: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, __file__, endpoint, str(folder), name])


def _put(kinesis: object, first: int) -> None:
    records = [{"Data": str(n).encode(), "PartitionKey": f"order-{n}"} for n in range(first, first + PORTION)]
    kinesis.put_records(StreamName=STREAM, Records=records)  # type: ignore[attr-defined] - boto3 has no types


def _split(kinesis: object) -> None:
    middle = 2**125  # of the first of four shards
    kinesis.split_shard(  # type: ignore[attr-defined] - boto3 has no types
        StreamName=STREAM, ShardToSplit="shardId-000000000000", NewStartingHashKey=str(middle)
    )


def _wait_for_all(folder: Path) -> None:
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        handled = [line for path in folder.glob("*.handled") for line in path.read_text().split()]
        print(f"  handled {len(set(handled)):>5} of {RECORDS}", end="\r", flush=True)
        if len(set(handled)) == RECORDS:
            again = len(handled) - RECORDS
            print(
                f"all {RECORDS} records were handled, {again} of them twice: those after the dead worker's checkpoint"
            )
            return
        time.sleep(0.2)
    sys.exit("\nsome records were not handled in time; is the machine very busy?")


def _show_leases(folder: Path) -> None:
    command = [sys.executable, "-m", "leasehold.cli", "leases", "--sqlite", str(folder / "leases.sqlite")]
    print("$ leasehold leases --sqlite leases.sqlite", flush=True)
    subprocess.run(command, check=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        work(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
