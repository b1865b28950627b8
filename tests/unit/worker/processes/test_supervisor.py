"""A supervisor with small programs as its worker processes."""

import asyncio
import json
import random
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from leasehold.adapters.system_clock import SystemClock
from leasehold.ports import Clock
from leasehold.worker.processes.supervisor import Supervisor

DEADLINE_S = 60

# Speaks the protocol of a worker process with few imports. Its life is in the file of its number.
PROGRAM = """
import json, os, signal, socket, sys, time
number, descriptor, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
link = socket.socket(fileno=descriptor)
def send(kind, **fields):
    link.sendall(json.dumps({"kind": kind, **fields}).encode() + b"\\n")
def mark(text):
    with open(f"{folder}/{number}", "a") as file:
        file.write(text + "\\n")
def end(*_):
    mark("stopped")
    os._exit(0)
signal.signal(signal.SIGTERM, end)
starts = open(f"{folder}/{number}").read().count("started") if os.path.exists(f"{folder}/{number}") else 0
mark("started")
BODY
"""

SERVE = """
send("Connected", status_host="127.0.0.1", status_port=0)
for line in link.makefile("rb"):
    question = json.loads(line)
    body = '{"ok": true, "problems": [], "warnings": [], "shards": {}}' if question["path"] == "/health" else "x 1"
    send("Answer", number=question["number"], status=200, content_type="text/plain", body=body)
mark("orphaned")
"""


def make(body: str, count: int, folder: Path, clock: Clock | None = None) -> Supervisor:
    program = PROGRAM.replace("BODY", body)

    def command(number: int, descriptor: int) -> Sequence[str]:
        return [sys.executable, "-I", "-S", "-c", program, str(number), str(descriptor), str(folder)]

    return Supervisor(command, count, clock=clock or SystemClock(), rng=random.Random(1))


def life(folder: Path, number: int) -> list[str]:
    file = folder / str(number)
    return file.read_text().split() if file.exists() else []


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - another process changes it
            await asyncio.sleep(0.02)


async def run_while(supervisor: Supervisor, acting: Awaitable[None]) -> list[str]:
    running = asyncio.ensure_future(supervisor.run())
    await acting
    async with asyncio.timeout(DEADLINE_S):
        return await running


def test_a_crashed_process_is_restarted_and_all_stop_on_request(tmp_path: Path) -> None:
    """The other process is not affected."""
    body = "if number == 1 and starts == 0: os.kill(os.getpid(), signal.SIGKILL)\n" + SERVE
    supervisor = make(body, 2, tmp_path)

    async def stop_after_restart() -> None:
        await wait_until(lambda: life(tmp_path, 1).count("started") == 2 and bool(life(tmp_path, 0)))
        supervisor.stop()

    assert asyncio.run(run_while(supervisor, stop_after_restart())) == []
    assert life(tmp_path, 0) == ["started", "stopped"]
    assert life(tmp_path, 1) == ["started", "started", "stopped"]


class RecordingClock(SystemClock):
    """Records how long somebody waited."""

    def __init__(self) -> None:
        self.slept_ms: list[int] = []

    async def sleep_ms(self, duration_ms: int) -> None:
        await super().sleep_ms(duration_ms)
        self.slept_ms.append(duration_ms)


def test_a_crashed_process_is_restarted_after_a_wait(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As long as the log says. A process that crashes at once would otherwise load the machine and the services."""
    clock = RecordingClock()
    supervisor = make("if starts == 0: os._exit(7)\n" + SERVE, 1, tmp_path, clock)

    async def stop_after_restart() -> None:
        await wait_until(lambda: life(tmp_path, 0).count("started") == 2)
        supervisor.stop()

    assert asyncio.run(run_while(supervisor, stop_after_restart())) == []
    wait_ms = int(caplog.text.partition("restart_in_ms=")[2].split()[0])
    assert wait_ms in clock.slept_ms


def test_an_explained_error_stops_all_and_is_reported_once(tmp_path: Path) -> None:
    """Neither process is started again."""
    body = 'send("Explained", sentence="no region is set")\nos._exit(78)'

    async def wait() -> None:
        pass

    assert asyncio.run(run_while(make(body, 3, tmp_path), wait())) == ["no region is set"]
    assert all(life(tmp_path, number).count("started") <= 1 for number in range(3))


def test_processes_that_end_by_themselves_end_the_supervisor(tmp_path: Path) -> None:
    """Without a failure."""
    assert asyncio.run(make("os._exit(0)", 2, tmp_path).run()) == []


def test_killed_processes_are_a_failure(tmp_path: Path) -> None:
    """A second signal kills processes that do not stop."""
    supervisor = make(
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nmark('deaf')\ntime.sleep(600)", 1, tmp_path
    )

    async def stop_and_kill() -> None:
        await wait_until(lambda: "deaf" in life(tmp_path, 0))
        supervisor.stop()
        supervisor.kill()

    failures = asyncio.run(run_while(supervisor, stop_and_kill()))
    assert failures == ["process 0: it did not stop cleanly (signal 9); its leases expire"]


@pytest.fixture
def patient_status(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response may take long on a busy machine."""
    monkeypatch.setattr("leasehold.worker.processes.supervisor.STATUS_TIMEOUT_S", DEADLINE_S / 2)


@pytest.mark.usefixtures("patient_status")
def test_the_status_of_all_processes_is_served_at_one_port(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Health and metrics are those of both. A process that does not answer is a problem."""
    caplog.set_level("INFO", "leasehold.processes")
    hang = "if number == 1: send('Connected', status_host='', status_port=None); mark('hangs'); time.sleep(600)\n"
    supervisor = make(hang + SERVE, 2, tmp_path)
    seen: dict[str, str] = {}

    def states() -> list[tuple[str, bool | None]]:
        return [(each["state"], each["ok"]) for each in json.loads(seen["status"])["processes"]]

    async def read_status() -> None:
        def url() -> str:
            return caplog.text.partition("status served url=")[2].partition("\n")[0]

        await wait_until(lambda: bool(url()) and "hangs" in life(tmp_path, 1))
        async with asyncio.timeout(DEADLINE_S):
            # Until process 0 has connected, and has answered within its time.
            while not ('x{process="0"} 1' in seen.get("metrics", "") and states()[0] == ("running", True)):
                for path in ("metrics", "status"):
                    seen[path] = await asyncio.to_thread(
                        lambda at: urlopen(at).read().decode(), f"{url()}/{path}"
                    )
        supervisor.stop()

    assert asyncio.run(run_while(supervisor, read_status())) == []
    assert 'leasehold_process_up{process="1"} 1' in seen["metrics"]
    assert states() == [("running", True), ("running", None)]


@pytest.mark.usefixtures("patient_status")
def test_one_process_starts_the_status_server_for_all(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All have the same settings. A second server would fail at the same port, and then all processes would stop."""
    caplog.set_level("INFO", "leasehold.processes")
    supervisor = make(SERVE, 2, tmp_path)

    async def wait_for_both() -> None:
        await wait_until(lambda: "status served url=" in caplog.text)
        url = caplog.text.partition("status served url=")[2].partition("\n")[0]
        states: set[str] = set()
        async with asyncio.timeout(DEADLINE_S):
            while states != {"running"}:
                answer = await asyncio.to_thread(lambda: urlopen(f"{url}/status").read())
                states = {each["state"] for each in json.loads(answer)["processes"]}
        supervisor.stop()

    assert asyncio.run(run_while(supervisor, wait_for_both())) == []
    assert caplog.text.count("status served url=") == 1


class FastClock(SystemClock):
    """A thousand times faster than the time of the machine."""

    def now_ms(self) -> int:
        return super().now_ms() * 1000

    async def sleep_ms(self, duration_ms: int) -> None:
        await asyncio.sleep(duration_ms / 1_000_000)


@pytest.mark.usefixtures("patient_status")
def test_a_start_that_hangs_is_unhealthy_after_two_minutes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged when it begins, and when the process has connected after all."""
    caplog.set_level("INFO", "leasehold.processes")
    hang = "while number == 1 and not os.path.exists(f'{folder}/go'): time.sleep(0.02)\n"
    supervisor = make(hang + SERVE, 2, tmp_path, FastClock())
    seen: list[tuple[int, str]] = []

    async def read_health() -> None:
        def url() -> str:
            return caplog.text.partition("status served url=")[2].partition("\n")[0]

        def read() -> tuple[int, str]:
            try:
                with urlopen(f"{url()}/health") as response:
                    return response.status, response.read().decode()
            except HTTPError as error:
                return error.code, error.read().decode()

        async def read_until(is_expected: Callable[[int, str], bool]) -> None:
            # On a busy machine, also process 0 starts or answers too late for a while.
            async with asyncio.timeout(DEADLINE_S):
                while not is_expected(*(found := await asyncio.to_thread(read))):  # noqa: ASYNC110 - another process
                    await asyncio.sleep(0.02)
            seen.append(found)

        await wait_until(lambda: bool(url()) and "process 1 (pid" in caplog.text)
        await read_until(lambda code, text: code == 503 and len(json.loads(text)["findings"]) == 1)
        (tmp_path / "go").touch()
        await wait_until(lambda: "process has started after all process=1" in caplog.text)
        await read_until(lambda code, _: code == 200)
        supervisor.stop()

    assert asyncio.run(run_while(supervisor, read_health())) == []
    (hanging, text), (healthy, _) = seen
    assert (hanging, healthy) == (503, 200)
    (finding,) = json.loads(text)["findings"]
    assert finding["code"] == "process_start_hangs"
    assert finding["text"].startswith("process 1 (pid ")
    assert finding["remedy"]


def test_a_second_failure_does_not_end_a_process_that_is_stopping_cleanly(tmp_path: Path) -> None:
    """A second SIGTERM would end it at once, without a checkpoint."""
    drains = """
def drain(*_):
    mark("signal")
    time.sleep(1.5)
    mark("stopped")
    os._exit(0)
signal.signal(signal.SIGTERM, drain if number == 2 else lambda *_: (time.sleep(0.5), os._exit(7)))
if number == 0:
    while "ready" not in open(f"{folder}/2").read(): time.sleep(0.02)
    while "ready" not in open(f"{folder}/1").read(): time.sleep(0.02)
    send("Explained", sentence="a poison record")
    os._exit(78)
mark("ready")
"""
    supervisor = make(drains + SERVE, 3, tmp_path)
    for number in range(3):
        (tmp_path / str(number)).touch()
    reasons = asyncio.run(run_while(supervisor, asyncio.sleep(0)))
    assert reasons[0] == "a poison record"
    assert life(tmp_path, 2) == ["started", "ready", "signal", "stopped"]


def test_a_process_that_cannot_be_started_is_tried_again(tmp_path: Path) -> None:
    """The other process goes on."""
    program = PROGRAM.replace("BODY", SERVE)
    tries: list[int] = []

    def command(number: int, descriptor: int) -> Sequence[str]:
        tries.append(number)
        missing = number == 1 and tries.count(1) < 3
        python = str(tmp_path / "missing") if missing else sys.executable
        return [python, "-I", "-S", "-c", program, str(number), str(descriptor), str(tmp_path)]

    supervisor = Supervisor(command, 2, clock=SystemClock(), rng=random.Random(1))

    async def stop_after_start() -> None:
        await wait_until(lambda: bool(life(tmp_path, 1)) and bool(life(tmp_path, 0)))
        supervisor.stop()

    assert asyncio.run(run_while(supervisor, stop_after_start())) == []
    assert life(tmp_path, 0) == life(tmp_path, 1) == ["started", "stopped"]
