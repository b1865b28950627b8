"""Small children that speak the MultiLang protocol, well or badly. Run as a program with the name of one of them."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any


def say(**message: Any) -> None:
    """Write a message."""
    sys.stdout.write(f"\n{json.dumps(message)}\n")
    sys.stdout.flush()


def actions() -> Iterator[Any]:
    """Read actions until the end of input."""
    for line in sys.stdin:
        yield json.loads(line)


def done(action: Any) -> None:
    """Report an action as finished."""
    say(action="status", responseFor=action["action"])


def checkpoint(number: str | None = None) -> Any:
    """Request a checkpoint, and return the name of the error."""
    say(action="checkpoint", sequenceNumber=number)
    return json.loads(sys.stdin.readline())["error"]


def good() -> None:
    """Checkpoints each batch, the end of the shard, and at a stop."""
    for action in actions():
        if action["action"] in {"processRecords", "shardEnded", "shutdownRequested"}:
            checkpoint()
        done(action)


def noisy() -> None:
    """Prints junk around each message, floods its standard error, and prints between actions."""
    for action in actions():
        print("junk before", flush=True)
        sys.stderr.write("no line end " * 20_000)
        sys.stdout.write("x" * 300_000 + "\n")
        done(action)
        print("\n".join(f"junk {number}" for number in range(5_000)), flush=True)


def echo() -> None:
    """Writes back what it reads, and then answers."""
    for action in actions():
        print(json.dumps(action))
        done(action)


def dies() -> None:
    """Ends in the middle of the first batch."""
    for action in actions():
        if action["action"] == "processRecords":
            os._exit(7)
        done(action)


def hangs() -> None:
    """Does not answer the first batch, and ignores everything but SIGKILL."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for action in actions():
        if action["action"] == "processRecords":
            while True:
                time.sleep(60)
        done(action)


def stays() -> None:
    """Does not exit at the end of its input, and ignores SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for action in actions():
        done(action)
    while True:
        time.sleep(60)


def deaf() -> None:
    """Closes its input, and keeps its output open."""
    line = sys.stdin.readline()
    os.close(0)
    done(json.loads(line))
    time.sleep(60)


def parent() -> None:
    """Leaves a grandchild that holds its output open."""
    subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], start_new_session=True)
    for action in actions():
        done(action)


def slow() -> None:
    """Takes half a second for a batch, and requests a checkpoint after it."""
    for action in actions():
        if action["action"] == "processRecords":
            time.sleep(0.5)
            print("checkpoint", checkpoint(), file=sys.stderr)
        done(action)


def answers_often() -> None:
    """Answers each action thousands of times."""
    for action in actions():
        for _ in range(2_000):
            done(action)


def never_reads_replies() -> None:
    """Requests checkpoints without end, and reads no reply."""
    for action in actions():
        if action["action"] == "processRecords":
            while True:
                say(action="checkpoint", sequenceNumber="9" * 200)
        done(action)


def answers_before_it_reads() -> None:
    """Answers a batch that it does not read."""
    line = sys.stdin.readline()
    done(json.loads(line))
    say(action="status", responseFor="processRecords")
    time.sleep(0.5)
    say(action="status", responseFor="processRecords")
    time.sleep(60)


def _start_helper() -> None:
    """Start a process that holds all pipes open and ignores SIGTERM, and print its id."""
    code = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(120)"
    )
    helper = subprocess.Popen([sys.executable, "-S", "-c", code])
    print(f"helper {helper.pid}", file=sys.stderr, flush=True)
    time.sleep(0.2)


def dies_and_leaves_a_helper() -> None:
    """Exits with 0 in the middle of a batch. Its helper keeps its output open."""
    for action in actions():
        if action["action"] == "processRecords":
            _start_helper()
            os._exit(0)
        done(action)


def hangs_with_a_helper() -> None:
    """Hangs in a batch. SIGTERM ends it, and not its helper."""
    for action in actions():
        if action["action"] == "processRecords":
            _start_helper()
            time.sleep(60)
        done(action)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
