"""One worker process, as its supervisor runs it: started with a link, asked for its status, stopped by signals."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from leasehold.core.observing.merged_status import ProcessStatus
from leasehold.core.supervision.restarts import ProcessEnd, RecentEnds
from leasehold.ports import Clock
from leasehold.tasks import first_of, wait_for
from leasehold.worker.processes.messages import (
    LINE_BYTES_MAX,
    Answer,
    Connected,
    Explained,
    Question,
    message_from_line,
    message_to_line,
)

ANSWER_TIMEOUT_S: Final = 2.0
# glibc gives each of many threads its own arena, which costs memory in every process. A Python process needs few.
_ENVIRONMENT: Final = {"MALLOC_ARENA_MAX": "2"}
LAST_LINES_MS: Final = (
    1_000  # to read what an ended process has sent; its own children may keep the link open
)

# The command that runs the worker process with this number and this descriptor of its link.
Command = Callable[[int, int], Sequence[str]]


class MemberProcess:
    """A running worker process."""

    def __init__(
        self,
        process: asyncio.subprocess.Process,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        clock: Clock,
    ) -> None:
        self.pid: Final = process.pid
        self.connected: Final[asyncio.Future[Connected]] = asyncio.get_running_loop().create_future()
        self._process = process
        self._writer = writer
        self._clock = clock
        self._began_ms = clock.now_ms()
        self._questions: dict[int, asyncio.Future[Answer]] = {}
        self._asked = 0
        self._sentence: str | None = None
        self._reading = asyncio.ensure_future(self._read(reader))

    @classmethod
    async def start(cls, number: int, command: Command, clock: Clock) -> MemberProcess:
        """Start a process in a process group of its own: Ctrl-C then reaches it through the supervisor only."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                process = await asyncio.create_subprocess_exec(
                    *command(number, theirs.fileno()),
                    stdin=asyncio.subprocess.DEVNULL,
                    env={**_ENVIRONMENT, **os.environ},
                    pass_fds=(theirs.fileno(),),
                    process_group=0,
                )
        except OSError:
            ours.close()
            raise
        reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES_MAX)
        return cls(process, reader, writer, clock)

    @property
    def has_connected(self) -> bool:
        """Whether the process has opened its connections."""
        return self.connected.done() and not self.connected.cancelled()

    @property
    def age_ms(self) -> int:
        """The time since the process was started."""
        return self._clock.now_ms() - self._began_ms

    async def wait(self) -> ProcessEnd:
        """Wait until the process has ended."""
        code = await self._process.wait()
        await first_of(wait_for(self._reading), self._clock.sleep_ms(LAST_LINES_MS))
        self._reading.cancel()
        self._writer.close()
        has_connected = self.has_connected
        self.connected.cancel()
        for question in self._questions.values():
            question.cancel()
        return ProcessEnd(code, self._clock.now_ms() - self._began_ms, has_connected, self._sentence)

    async def ask(self, path: str) -> Answer | None:
        """The answer of the process for a path of its status; None if it does not answer."""
        self._asked += 1
        number, answer = self._asked, asyncio.get_running_loop().create_future()
        self._questions[number] = answer
        try:
            self._writer.write(message_to_line(Question(number, path)))
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                return await asyncio.shield(answer)
        except (OSError, TimeoutError):
            return None
        except asyncio.CancelledError:
            if answer.cancelled():  # the process has ended
                return None
            raise
        finally:
            del self._questions[number]

    def stop(self) -> None:
        """Ask the process for a clean stop."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End the process at once."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while line := await reader.readline():
                match message_from_line(line):
                    case Connected() as connected if not self.connected.done():
                        self.connected.set_result(connected)
                    case Explained(sentence):
                        self._sentence = sentence
                    case Answer() as answer if answer.number in self._questions:
                        self._questions[answer.number].set_result(answer)
                    case _:
                        pass  # an answer that came too late


@dataclass(slots=True)
class Slot:
    """One of the processes to run, from restart to restart."""

    number: int
    member: MemberProcess | None = None
    starts: int = 0
    recent: RecentEnds = field(default_factory=RecentEnds)
    last_end: str | None = None
    is_waiting: bool = False

    def status(self) -> ProcessStatus:
        """The slot as its status shows it."""
        if self.member is not None:
            state = "running" if self.member.has_connected else "starting"
        else:
            state = "waiting" if self.is_waiting or not self.starts else "ended"
        pid, age_ms = (None, 0) if self.member is None else (self.member.pid, self.member.age_ms)
        return ProcessStatus(self.number, state, pid, max(0, self.starts - 1), self.last_end, age_ms=age_ms)
