"""A child process and its three pipes: starts it, reads and writes, and ends it within a limited time.

The child gets the environment and the working directory of the daemon. It has a process group of its own, so that
Ctrl-C reaches only the daemon, which then ends the child in order. If the daemon is killed, the child sees the end of
its input and exits.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import subprocess
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final

from leasehold.core.multilang.line_splitter import Line, LineSplitter
from leasehold.errors import ProcessorEndedError
from leasehold.tasks import cancel_and_wait

READ_BYTES: Final = 64 * 1024
# A message of a child has some hundred bytes. A longer line is no message.
STDOUT_LINE_MAX: Final = 64 * 1024
STDERR_LINE_MAX: Final = 8 * 1024
# A child that prints without a line end is logged this often.
STDERR_FLUSH_S: Final = 1.0
# A batch has megabytes: a larger pipe needs fewer switches between the two processes.
PIPE_BYTES: Final = 1024 * 1024
# A child that prints without end must not occupy the daemon: it is read at 20 MB or 20,000 lines a second at most.
PAUSE_AFTER_BYTES: Final = 1024 * 1024
LINE_COST_BYTES: Final = 1024
PAUSE_S: Final = 0.05

OnLine = Callable[[Line], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class EndLimits:
    """How long a child may take to end, in seconds."""

    exit_s: float = 10.0  # after the end of its input; then SIGTERM
    terminate_s: float = 5.0  # after SIGTERM; then SIGKILL
    output_s: float = 1.0  # after its exit, for output that a grandchild may hold open
    is_forced: bool = False  # SIGKILL also for what it has started, although it may have exited itself


# A child that has exited may have left processes that hold its output open. Output that comes later is not waited for.
OUTPUT_AFTER_EXIT_S: Final = 1.0
REAP_S: Final = 1.0


class ChildProcess:
    """A running child. Create it with `start_child`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self._exited = asyncio.Event()
        self._stdin: asyncio.StreamWriter | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._transports: list[asyncio.BaseTransport] = []

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while it runs, and -9 if it was killed by signal 9."""
        return self._process.returncode

    async def connect(
        self, on_stdout: OnLine, on_stderr: OnLine, on_end: Callable[[], Awaitable[None]]
    ) -> None:
        """Connect the pipes. From now on, each line of output is passed on; `on_end` is called after the last one."""
        loop = asyncio.get_running_loop()
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        threading.Thread(
            target=self._wait_for_exit, args=(loop,), name=f"leasehold-child-{self.pid}", daemon=True
        ).start()
        self._stdin = await self._connect_stdin(stdin)
        output, errors = await self._connect_reader(stdout), await self._connect_reader(stderr)

        reading = loop.create_task(read_lines(output, LineSplitter(STDOUT_LINE_MAX), on_stdout, flush_s=None))

        async def report_end() -> None:
            exiting = loop.create_task(self._exited.wait())
            await asyncio.wait({reading, exiting}, return_when=asyncio.FIRST_COMPLETED)
            await cancel_and_wait(exiting)
            await asyncio.wait({reading}, timeout=OUTPUT_AFTER_EXIT_S)
            await on_end()

        self._readers = [
            reading,
            loop.create_task(
                read_lines(errors, LineSplitter(STDERR_LINE_MAX), on_stderr, flush_s=STDERR_FLUSH_S)
            ),
            loop.create_task(report_end()),
        ]

    async def send(self, line: bytes) -> None:
        """Write a line. Raises ProcessorEndedError if the child has closed its input."""
        assert self._stdin is not None
        try:
            self._stdin.write(line)
            await self._stdin.drain()
        except (OSError, RuntimeError) as error:
            raise ProcessorEndedError(f"process {self.pid} has closed its input") from error

    async def end(self, limits: EndLimits) -> None:
        """Close the input, which asks the child to exit. End it by force if it takes too long. Then close all pipes."""
        has_ended, is_forced = False, limits.is_forced
        try:
            if self._stdin is not None:
                self._stdin.close()
            if not await self._exits_within(limits.exit_s):
                is_forced = True
                self._signal(signal.SIGTERM)
                if await self._exits_within(limits.terminate_s):
                    await self._wait_for_output(limits.terminate_s)
            if is_forced:
                self._signal(signal.SIGKILL)
                await self._exited.wait()
            await self._wait_for_output(limits.output_s)
            has_ended = True
        finally:
            # Also if this task is cancelled meanwhile.
            await self._close(by_force=not has_ended)

    async def _close(self, *, by_force: bool) -> None:
        if by_force:
            self._signal(signal.SIGKILL)
        await self._exits_within(REAP_S)
        self._process.poll()  # from now on its id may belong to another process
        await cancel_and_wait(*self._readers)
        if self._stdin is not None and self._stdin.transport.get_write_buffer_size():
            self._stdin.transport.abort()  # `close` would wait until a process that holds the pipe has read all
        for transport in self._transports:
            transport.close()

    async def _wait_for_output(self, limit_s: float) -> None:
        if self._readers:
            await asyncio.wait(self._readers[:2], timeout=limit_s)

    async def _exits_within(self, limit_s: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                await self._exited.wait()
        return self._exited.is_set()

    def _signal(self, number: int) -> None:
        """Send a signal to the child and to all that it has started, unless its id may belong to another process."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    def _wait_for_exit(self, loop: asyncio.AbstractEventLoop) -> None:
        if hasattr(os, "waitid"):
            # The id is kept until `_close`, so that the group of the child can get a signal after its exit.
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        else:
            self._process.wait()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(self._exited.set)

    async def _connect_stdin(self, pipe: IO[bytes]) -> asyncio.StreamWriter:
        loop = asyncio.get_running_loop()
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            with suppress(OSError):  # the limit of a user may be lower
                fcntl.fcntl(pipe.fileno(), fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
        self._transports.append(transport)
        return asyncio.StreamWriter(transport, protocol, None, loop)

    async def _connect_reader(self, pipe: IO[bytes]) -> asyncio.StreamReader:
        reader = asyncio.StreamReader()
        transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), pipe
        )
        self._transports.append(transport)
        return reader


async def start_child(command: Sequence[str]) -> ChildProcess:
    """Start a program. Raises ProcessorEndedError if it cannot be started."""

    def start() -> subprocess.Popen[bytes]:
        return subprocess.Popen(  # noqa: S603 - the command is the user's own
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            close_fds=True,  # another child that holds the pipe would hide the end of input
            start_new_session=True,
        )

    try:
        return ChildProcess(await asyncio.to_thread(start))
    except OSError as error:
        raise ProcessorEndedError(f"{command[0]} cannot be started: {error.strerror}") from error


async def read_lines(
    reader: asyncio.StreamReader, splitter: LineSplitter, on_line: OnLine, *, flush_s: float | None
) -> None:
    """Pass on each line to the end of the output. With `flush_s`, also a line that has not ended after that time."""
    spent = 0
    while True:
        try:
            async with asyncio.timeout(flush_s if splitter.has_rest else None):
                data = await reader.read(READ_BYTES)
        except TimeoutError:
            lines = splitter.flush()
        else:
            if not data:
                break
            spent += len(data)
            lines = splitter.add(data)
        for line in lines:
            await on_line(line)
            spent = await _pause_after(spent + LINE_COST_BYTES)
        spent = await _pause_after(spent)
    for line in splitter.flush():
        await on_line(line)


async def _pause_after(spent: int) -> int:
    """Pause if a child has printed much since the last pause. Returns how much it has printed since then."""
    if spent <= PAUSE_AFTER_BYTES:
        return spent
    await asyncio.sleep(PAUSE_S)
    return 0
