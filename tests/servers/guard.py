"""Runs one server until it is asked to stop, or until the test run that started it has ended for any reason.

    python guard.py PID COMMAND...

PID is the process of the test run. The servers keep everything in memory, so they are simply killed. Imports nothing
of ours, so that it starts fast.
"""

import os
import signal
import subprocess
import sys
from types import FrameType

CHECK_EVERY_S = 0.5


def main(owner: int, command: list[str]) -> int:
    signal.signal(signal.SIGTERM, stop)
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        while is_alive(owner):
            try:
                return server.wait(CHECK_EVERY_S)
            except subprocess.TimeoutExpired:
                continue
        return 0
    finally:
        server.kill()
        server.wait()


def stop(_signal: int, _frame: FrameType | None) -> None:
    sys.exit(0)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), sys.argv[2:]))
