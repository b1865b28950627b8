"""Load meters on what they really read: files as the kernel writes them, and responses in the form of ECS over HTTP."""

import asyncio
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import orjson
import pytest

from leasehold.adapters import cpu
from leasehold.adapters.cpu import ECS_RESPONSE_BYTES_MAX, EcsMeter, detect_load_meter

# In the form that AWS documents for task metadata version 4 on Fargate, shortened: a quarter of a processor, two
# containers.
OWN_ID = "cd189a933e5849daa93386466019ab50-2495160603"
CONTAINER = {
    "DockerId": OWN_ID,
    "Name": "curl",
    "DockerName": "curl",
    "Image": "111122223333.dkr.ecr.us-west-2.amazonaws.com/curltest:latest",
    "Labels": {
        "com.amazonaws.ecs.container-name": "curl",
        "com.amazonaws.ecs.task-definition-family": "curltest",
    },
    "DesiredStatus": "RUNNING",
    "KnownStatus": "RUNNING",
    "Limits": {"CPU": 10, "Memory": 128},
    "CreatedAt": "2020-10-08T20:09:11.44527186Z",
    "Type": "NORMAL",
    "LaunchType": "FARGATE",
}
TASK = {
    "Cluster": "arn:aws:ecs:us-west-2:111122223333:cluster/default",
    "Family": "curltest",
    "Revision": "3",
    "DesiredStatus": "RUNNING",
    "KnownStatus": "RUNNING",
    "Limits": {"CPU": 0.25, "Memory": 512},
    "Containers": [
        CONTAINER,
        {
            "DockerId": "cd189a933e5849daa93386466019ab50-1",
            "Name": "sidecar",
            "Limits": {"CPU": 30, "Memory": 128},
        },
    ],
    "LaunchType": "FARGATE",
}
STATS = {
    "read": "2020-10-02T00:51:13.410254284Z",
    "preread": "2020-10-02T00:51:12.406202398Z",
    "pids_stats": {"current": 3},
    "cpu_stats": {
        "cpu_usage": {"total_usage": 360968065, "percpu_usage": [182359190, 178608875]},
        "system_cpu_usage": 13939680000000,
        "online_cpus": 2,
        "throttling_data": {"periods": 0, "throttled_periods": 0, "throttled_time": 0},
    },
    "precpu_stats": {
        "cpu_usage": {"total_usage": 329718065, "percpu_usage": [151109190, 178608875]},
        "system_cpu_usage": 13937680000000,
        "online_cpus": 2,
    },
    "memory_stats": {"usage": 1806336, "limit": 536870912},
}


class EcsMetadataServer:
    """A real HTTP server. `answers` maps paths to status and body; other paths are not found."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.requests: list[str] = []
        ecs = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                ecs.requests.append(self.path)
                status, body = ecs.answers.get(self.path, (404, b"not found"))
                self.send_response(status)
                if status == 302:
                    self.send_header("Location", "/v4/elsewhere")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self.server.server_port}/v4/{OWN_ID}/"
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def answer(self, path: str, content: object, status: int = 200) -> None:
        """Set the answer for a path below the address of the container."""
        body = content if isinstance(content, bytes) else orjson.dumps(content)
        self.answers[f"/v4/{OWN_ID}{path}"] = status, body

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.fixture
def ecs() -> Iterator[EcsMetadataServer]:
    """A task that is running."""
    server = EcsMetadataServer()
    server.answer("", CONTAINER)
    server.answer("/task", TASK)
    server.answer("/stats", STATS)
    yield server
    server.close()


def test_the_load_of_a_container_on_fargate(ecs: EcsMetadataServer) -> None:
    """31.25 ms of one second on two processors, for a container that has a quarter of a quarter: half of its share."""
    meter = EcsMeter(ecs.address)
    assert asyncio.run(meter.percent()) == pytest.approx(50.0)
    assert asyncio.run(meter.percent()) == pytest.approx(50.0)
    # What the container may use is read once.
    assert ecs.requests == [f"/v4/{OWN_ID}{path}" for path in ("/task", "", "/stats", "/stats")]


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"busy", 429),
        (b"", 302),
        (b"{", 200),
        (b"null", 200),
        (b"1" * (ECS_RESPONSE_BYTES_MAX + 10), 200),
        ({**STATS, "precpu_stats": {"cpu_usage": {"total_usage": 0}}}, 200),
    ],
)
def test_an_answer_that_cannot_be_used_gives_no_figure_until_the_next_one(
    ecs: EcsMetadataServer, content: object, status: int
) -> None:
    """No redirect is followed, and no answer is read without a limit."""
    meter = EcsMeter(ecs.address)
    ecs.answer("/stats", content, status)
    assert asyncio.run(meter.percent()) is None
    ecs.answer("/stats", STATS)
    assert asyncio.run(meter.percent()) == pytest.approx(50.0)
    assert "/v4/elsewhere" not in ecs.requests


def test_a_server_that_is_gone_gives_no_figure(ecs: EcsMetadataServer) -> None:
    """The connection is refused."""
    ecs.close()
    assert asyncio.run(EcsMeter(ecs.address).percent()) is None


# As the kernel writes them in a container, version 2 and version 1; `used` is in the unit of the file.
FILES_2 = {
    "cpu.max": "150000 100000\n",
    "cpu.stat": "usage_usec {used}\nuser_usec 12\nsystem_usec 3\nnr_periods 8\nnr_throttled 0\nthrottled_usec 0\n",
    "cpuset.cpus.effective": "0-3,8\n",
}
FILES_1 = {
    "cpu/cpuacct.usage": "{used}000\n",
    "cpu/cpu.cfs_quota_us": "150000\n",
    "cpu/cpu.cfs_period_us": "100000\n",
    "cpuset/cpuset.effective_cpus": "0-3,8\n",
}


def write_files(root: Path, files: dict[str, str], used_us: int) -> None:
    for name, text in files.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text.replace("{used}", str(used_us)))


@pytest.mark.parametrize("files", [FILES_2, FILES_1], ids=["version 2", "version 1"])
def test_the_load_of_a_container_follows_its_files(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice ten seconds with 12 seconds of processor time of 15, then files that are gone, and come back."""
    times_ms = iter(range(0, 100_000, 10_000))
    monkeypatch.setattr(cpu, "_now_ms", lambda: next(times_ms))
    monkeypatch.setattr(time, "process_time", lambda: 0.0)
    write_files(tmp_path, files, 5_000_000)
    meter = detect_load_meter({}, tmp_path)
    assert meter is not None

    async def percent(used_us: int) -> float | None:
        write_files(tmp_path, files, used_us)
        return await meter.percent()

    async def figures() -> list[float | None]:
        found = [await percent(5_000_000), await percent(17_000_000), await percent(29_000_000)]
        for name in files:
            (tmp_path / "sys/fs/cgroup" / name).unlink()
        return [*found, await meter.percent(), await percent(41_000_000), await percent(44_000_000)]

    # While nothing was measured before, there is no figure. Our own process would count if it were busier.
    first, second, third, gone, again, idle = asyncio.run(figures())
    assert (first, gone, again) == (None, None, None)
    assert second == third == pytest.approx(80)
    assert idle is not None
    assert idle >= 20
