"""`LocalKinesis`: a Kinesis server for tests, in a thread of this process or in its own process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from leasehold.errors import ConfigError

_STOP_SECONDS: Final = 60
_CONTROL_SECONDS: Final = 30


class LocalKinesis:
    """A running local Kinesis server. Leaving the context manager stops the server if this object started it.

    >>> with LocalKinesis.in_thread(streams={"orders": 2}) as kinesis:
    ...     kinesis.client().describe_limits()["OpenShardCount"]
    2
    """

    def __init__(self, endpoint_url: str, stop: Callable[[], None] | None = None) -> None:
        """Connect to a running server. `in_thread` and `in_process` start one."""
        self.endpoint_url = endpoint_url
        self._stop = stop

    @classmethod
    def in_thread(
        cls,
        *,
        streams: Mapping[str, int] | None = None,
        settings: Mapping[str, Any] | None = None,
        state_file: Path | None = None,
        port: int = 0,
    ) -> Self:
        """Start a server in a thread of this process. `streams` maps names to numbers of shards."""
        # The server's libraries are an optional extra and slow to import.
        from leasehold.kinesis_model.settings import ServiceSettings  # noqa: PLC0415
        from leasehold.local.control_endpoint import settings_with_changes  # noqa: PLC0415
        from leasehold.local.server import LocalServer, ServerOptions  # noqa: PLC0415

        options = ServerOptions(
            port=port,
            streams=streams or {},
            settings=settings_with_changes(ServiceSettings(), dict(settings or {})),
            state_file=state_file,
        )
        server = LocalServer(options)
        thread = threading.Thread(target=server.run, name="leasehold-local", daemon=True)
        thread.start()

        def stop() -> None:
            server.stop()
            thread.join(_STOP_SECONDS)

        return cls(server.endpoint_url, stop)

    @classmethod
    def in_process(cls, *arguments: str) -> Self:
        """Start `leasehold local` with these arguments, in its own process and on a free port."""
        command = [sys.executable, "-m", "leasehold.cli", "local", "--port", "0", "--json", *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: S603 - our own program
        assert process.stdout is not None
        first_line = process.stdout.readline()
        if not first_line:
            raise ConfigError(f"leasehold local did not start (exit code {process.wait(_STOP_SECONDS)})")

        def stop() -> None:
            process.send_signal(signal.SIGTERM)
            try:
                process.communicate(timeout=_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()

        return cls(json.loads(first_line)["endpoint_url"], stop)

    def client(self, **options: Any) -> Any:
        """Return a boto3 client of this server. The credentials are placeholders."""
        import boto3  # noqa: PLC0415 - slow to import, and not always needed

        defaults = {
            "endpoint_url": self.endpoint_url,
            "region_name": "us-east-1",
            "aws_access_key_id": "local",
            "aws_secret_access_key": "local",
        }
        return boto3.client("kinesis", **defaults | options)

    def advance(self, by: timedelta) -> None:
        """Advance the server's clock: iterators expire, records pass their retention period."""
        self._send_control("clock", {"advance_ms": by // timedelta(milliseconds=1)})

    def settings(self, **changes: Any) -> Mapping[str, Any]:
        """Change settings of the service, and return all settings. See `ServiceSettings`."""
        settings: Mapping[str, Any] = self._send_control("settings", changes)["settings"]
        return settings

    def trim(self, stream: str | None = None) -> None:
        """Remove all records and closed shards of a stream, or of all streams."""
        self._send_control("trim", {"stream": stream} if stream else {})

    def plan_fan_out_fault(
        self, fault: str, *, times: int = 1, stream: str | None = None, shard: str | None = None
    ) -> None:
        """Let subscriptions misbehave, `times` times in all: see `FanOutFault`. Open subscriptions do so at once."""
        where = {"stream": stream, "shard": shard}
        given = {name: value for name, value in where.items() if value is not None}
        self._send_control("fan-out", {"fault": fault, "times": times, **given})

    def reset(self) -> None:
        """Remove all streams, restore the initial settings, and set the clock to the system's time."""
        self._send_control("reset", {})

    def now_ms(self) -> int:
        """Return the server's time."""
        now_ms: int = self._send_control("", None)["now_ms"]
        return now_ms

    def stop(self) -> None:
        """Stop the server if this object started it. It is safe to stop twice."""
        stop, self._stop = self._stop, None
        if stop:
            stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _send_control(self, action: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self.endpoint_url}/_leasehold/{action}", data=data)  # noqa: S310 - loopback
        try:
            with urlopen(request, timeout=_CONTROL_SECONDS) as response:  # noqa: S310 - loopback
                members: dict[str, Any] = json.load(response)
                return members
        except HTTPError as error:
            with error:
                raise ConfigError(json.load(error)["error"]) from error
