"""`leasehold run` as a process: a worker on the local server, with leases in a file."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

from leasehold.local import LocalKinesis
from tests.integration.cli_process import DEADLINE_S, run_cli, start_cli

CANARY = "canary-4711"
T = TypeVar("T")

PROGRAM = """
import time
from pathlib import Path
from leasehold import Batch, Consumer

consumer = Consumer(config="worker.toml")

def keep(batch: Batch) -> None:
    with Path("handled.txt").open("a") as file:
        file.writelines(f"{len(record.data)}\\n" for record in batch)

def hang(batch: Batch) -> None:
    keep(batch)
    while not Path("go-on").exists():
        time.sleep(0.05)

def fail(batch: Batch) -> None:
    raise ValueError(batch.records[0].data, batch.records[0].partition_key)

consumer.batch(HANDLER)
"""


@pytest.fixture
def stream(local_kinesis: LocalKinesis, unique_name: Callable[[str], str]) -> str:
    """Create a stream of two shards with twenty records of different sizes."""
    name = unique_name("orders")
    client = local_kinesis.client()
    client.create_stream(StreamName=name, ShardCount=2)
    records = [
        {"Data": CANARY.encode() + b"x" * number, "PartitionKey": f"{CANARY}-{number}"}
        for number in range(20)
    ]
    assert client.put_records(StreamName=name, Records=records)["FailedRecordCount"] == 0
    return name


@pytest.fixture
def folder(tmp_path: Path, stream: str, local_kinesis: LocalKinesis) -> Path:
    """Create the folder of the worker with its program and its configuration."""
    (tmp_path / "billing.py").write_text(PROGRAM.replace("HANDLER", "keep"))
    (tmp_path / "worker.toml").write_text(
        f"""
        [leasehold]
        stream = "{stream}"
        application = "billing"
        leases = "sqlite:///leases.sqlite"
        kinesis_endpoint = "{local_kinesis.endpoint_url}"
        max_wait = "100ms"
        retry_initial_wait = "10ms"
        status_port = 0
        stuck_after = "1s"

        [run]
        handler = "billing:keep"
        """
    )
    return tmp_path


class Worker:
    """A worker process and its log so far."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.logged: list[str] = []
        assert process.stderr is not None
        self._reader = Thread(target=self.logged.extend, args=(process.stderr,), daemon=True)
        self._reader.start()

    def wait_for(self, condition: Callable[[], T]) -> T:
        """Wait until the condition is true, and return it. Fail if the worker ends or the deadline passes."""
        deadline = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            assert self.process.poll() is None, f"the worker has ended: {self.log()}"
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.05)
        return found

    def log(self) -> str:
        return "".join(list(self.logged))

    def status_url(self) -> str:
        self.wait_for(lambda: "status served url=" in self.log())
        return self.log().partition("status served url=")[2].split()[0]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(DEADLINE_S)
        self._reader.join(DEADLINE_S)
        return code


@contextmanager
def worker(*arguments: str, folder: Path) -> Iterator[Worker]:
    process = start_cli("run", *arguments, folder=folder)
    with process:
        try:
            yield Worker(process)
        finally:
            process.kill()


def handled(folder: Path) -> list[int]:
    path = folder / "handled.txt"
    return sorted(map(int, path.read_text().split())) if path.exists() else []


ALL_SIZES = [len(CANARY) + number for number in range(20)]


@pytest.mark.parametrize("target", [("billing:consumer",), ("--config", "worker.toml")], ids=" ".join)
def test_a_worker_consumes_and_releases_its_leases_at_stop(folder: Path, target: tuple[str, ...]) -> None:
    """Every record once. After SIGTERM it checkpoints, releases and exits with 0. No log contains data."""
    with worker(*target, "--log-level", "debug", folder=folder) as running:
        running.wait_for(lambda: handled(folder) == ALL_SIZES)
        assert running.stop() == 0
        log = running.log()
    assert handled(folder) == ALL_SIZES
    assert "INFO leasehold.fleet member started" in log
    assert "INFO leasehold.fleet member stopped" in log
    assert "DEBUG leasehold.worker page read" in log
    assert CANARY not in log
    leases = json.loads(run_cli("leases", "--sqlite", "leases.sqlite", "--json", folder=folder).out)["leases"]
    assert [lease["state"] for lease in leases] == ["free", "free"]
    assert all(lease["checkpoint"]["sequence_number"].isdigit() for lease in leases)


def get_status(url: str) -> tuple[int, dict[str, object]]:
    try:
        with urlopen(url, timeout=30) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        with error:
            return error.code, json.load(error)


def test_health_distinguishes_a_hanging_handler_from_an_idle_shard(folder: Path) -> None:
    """The worker is healthy while it is idle, unhealthy while a handler hangs, and healthy after that."""
    program = (folder / "billing.py").read_text().replace("consumer.batch(keep)", "consumer.batch(hang)")
    (folder / "billing.py").write_text(program)
    with worker("billing:consumer", folder=folder) as running:
        url = running.status_url()
        # Before the first page, another problem may be reported.
        problem = "records are in flight, and the first of them does not get done"
        running.wait_for(lambda: problem in str(get_status(f"{url}/health")[1]["problems"]))
        assert get_status(f"{url}/health")[0] == 503
        (folder / "go-on").touch()
        running.wait_for(lambda: handled(folder) == ALL_SIZES and get_status(f"{url}/health")[0] == 200)
        with urlopen(f"{url}/metrics", timeout=30) as answer:
            metrics = answer.read().decode()
        assert "leasehold_leases_held 2.0" in metrics
        assert "leasehold_shard_lag_seconds{" in metrics
        assert running.stop() == 0


def test_a_failing_handler_is_logged_without_its_message(folder: Path) -> None:
    """The exception contains the record, so only its type is in the log and in the health response."""
    program = (folder / "billing.py").read_text().replace("consumer.batch(keep)", "consumer.batch(fail)")
    (folder / "billing.py").write_text(program)
    with worker("billing:consumer", folder=folder) as running:
        url = running.status_url()
        running.wait_for(
            lambda: "the handler raises ValueError" in str(get_status(f"{url}/health")[1]["problems"])
        )
        assert CANARY not in json.dumps(get_status(f"{url}/health")[1])
        assert running.stop() == 0
        log = running.log()
    assert "WARNING leasehold.worker handler failed" in log
    assert "error=ValueError more=" in log
    assert CANARY not in log


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        ((), 2, "either MODULE:CONSUMER or --config"),
        (("billing:consumer", "--config", "worker.toml"), 2, "Give either MODULE:CONSUMER"),
        (("--config", "nowhere.toml"), 2, "does not exist"),
        (("billing",), 2, "expected MODULE:NAME, for example billing:consumer"),
        (("./billing.py:consumer",), 2, "./billing.py is not the name of a module"),
        (("biling:consumer",), 1, "module biling is neither in"),
        (("billing.nothing:consumer",), 1, "module billing.nothing"),
        (("billing:consumr",), 1, "did you mean consumer?"),
        (("billing:keep",), 1, "is a function, not a Consumer"),
        (("broken:consumer",), 1, "NameError: name 'oops' is not defined (BROKEN, line 2)"),
        (("needy:consumer",), 1, "No module named 'no_such_library'"),
        (("garbled:consumer",), 1, "garbled.py, line 1)"),
        (("--config", "no_handler.toml"), 1, 'expected [run] with handler = "module:function"'),
        (("--config", "garbled.py"), 1, "is not TOML"),
        (("--config", "wrong_handler.toml"), 1, "is a str, not a function or class"),
        (("--config", "wrong_key.toml"), 1, "[run] handlr is not a setting"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_an_invalid_target_is_reported_in_one_sentence(
    folder: Path, arguments: tuple[str, ...], code: int, text: str
) -> None:
    """The error names the cause, the location and the remedy, without a traceback."""
    toml = (folder / "worker.toml").read_text()
    files = {
        "broken.py": "\noops\n",
        "needy.py": "import no_such_library\n",
        "garbled.py": "def (\n",
        "no_handler.toml": toml.partition("[run]")[0],
        "wrong_handler.toml": toml.replace("billing:keep", "billing:__name__"),
        "wrong_key.toml": toml + '\nhandlr = "billing:keep"\n',
    }
    for name, content in files.items():
        (folder / name).write_text(content)
    done = run_cli("run", *arguments, folder=folder)
    assert done.code == code, done.err
    assert text.replace("BROKEN", str(folder / "broken.py")) in done.err
    assert "Traceback" not in done.err


# -- several processes ---------------------------------------------------------------------------------------------


def put_more(local_kinesis: LocalKinesis, stream: str) -> list[int]:
    """Put twenty larger records. Returns the sizes of all records so far."""
    records = [
        {"Data": CANARY.encode() + b"x" * number, "PartitionKey": f"{CANARY}-{number}"}
        for number in range(100, 120)
    ]
    assert local_kinesis.client().put_records(StreamName=stream, Records=records)["FailedRecordCount"] == 0
    return ALL_SIZES + [len(CANARY) + number for number in range(100, 120)]


def test_a_killed_process_is_restarted_and_loses_no_record(
    folder: Path, stream: str, local_kinesis: LocalKinesis
) -> None:
    """Both processes are members. One status port shows both. SIGTERM stops them."""
    toml = (folder / "worker.toml").read_text()
    (folder / "worker.toml").write_text(
        toml.replace("[run]", 'failover_after = "10s"\nrefresh_every = "1s"\n[run]')
    )
    with worker("--config", "worker.toml", "--processes", "2", folder=folder) as running:
        url = running.status_url()

        def health() -> Any:
            return get_status(f"{url}/health")[1]

        running.wait_for(
            lambda: (
                {each["state"] for each in health()["processes"]} == {"running"}
                and len(health()["shards"]) == 2
                and handled(folder) == ALL_SIZES
            )
        )
        # A process that does not answer in time has no shards in a response.
        victim = running.wait_for(lambda: [*health()["shards"].values()])[0]["process"]
        os.kill(health()["processes"][victim]["pid"], signal.SIGKILL)
        expected = put_more(local_kinesis, stream)
        running.wait_for(lambda: set(handled(folder)) == set(expected))
        running.wait_for(
            lambda: (
                [each["restarts"] for each in health()["processes"] if each["state"] == "running"]
                == [int(victim == 0), int(victim == 1)]
            )
        )
        with urlopen(f"{url}/metrics", timeout=30) as answer:
            metrics = answer.read().decode()
        assert f'leasehold_process_restarts_total{{process="{victim}"}} 1' in metrics
        assert 'leasehold_leases_held{process="0"}' in metrics
        assert running.stop() == 0
        log = running.log()
    assert f"WARNING leasehold.processes process ended process={victim} end='signal 9'" in log
    for process in (0, 1):
        assert f"INFO leasehold.fleet process={process} member stopped" in log
    assert "lease lost" not in log


def test_a_wrong_setting_ends_all_processes_with_one_sentence(folder: Path) -> None:
    """No process is restarted. The processes run the record processor of kclpy that the supervisor was given."""
    done = run_cli("run", "--kclpy", "biling:Processor", "--processes", "2", folder=folder)
    assert done.code == 1
    assert done.err.count("module biling is neither in") == 1
    assert "Error: module biling" in done.err
    assert "Traceback" not in done.err
