"""A record processor that is a child process: one process for each shard and lease session, as in the Java daemon."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, Final

from leasehold.core.multilang.line_splitter import Line
from leasehold.core.multilang.messages import Action, Junk, LeaseLost, decode_line, decode_part
from leasehold.errors import ProcessorEndedError
from leasehold.multilang.child_output import ChildOutput
from leasehold.multilang.child_process import ChildProcess, EndLimits, start_child
from leasehold.multilang.conversation import Conversation, ConversationSettings
from leasehold.multilang.processor_client import ExecuteCheckpoint, ProcessorClient, ProcessorClients
from leasehold.tasks import cancel_and_wait
from leasehold.worker.delivery.served_shard import ServedShard

LOGGER: Final = logging.getLogger("leasehold.multilang")

EndInBackground = Callable[[Coroutine[Any, Any, None]], None]

# A child that has failed may have exited already: then its exit code is worth knowing.
_BY_FORCE: Final = EndLimits(exit_s=0.2, terminate_s=1.0, output_s=1.0, is_forced=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildSettings:
    """How children are started, spoken with and ended."""

    command: tuple[str, ...]
    conversation: ConversationSettings = field(default_factory=ConversationSettings)
    limits: EndLimits = field(default_factory=EndLimits)
    # After the lease was lost: for the action in progress, and then for `leaseLost`.
    lost_lease_s: float = 30.0
    close_s: float = 4.0  # for all children, when the daemon stops


class ChildProcesses(ProcessorClients):
    """Makes the clients of all shards, and waits for their ends."""

    def __init__(self, settings: ChildSettings) -> None:
        self._settings = settings
        self._ends: set[asyncio.Task[None]] = set()

    def __call__(self, shard: ServedShard, execute: ExecuteCheckpoint) -> ProcessorClient:
        """Make the client of one shard."""
        return ChildClient(self._settings, str(shard.held.lease.key), execute, self._end_in_background)

    async def close(self) -> None:
        """Wait until all children have ended. Those that take longer are killed."""
        if self._ends:
            await asyncio.wait(self._ends, timeout=self._settings.close_s)
            await cancel_and_wait(*self._ends)

    def _end_in_background(self, end: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(end)
        self._ends.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._ends.discard)


class ChildClient(ProcessorClient):
    """The child of one shard. `end_in_background` runs its end, which may outlive the lease session."""

    def __init__(
        self,
        settings: ChildSettings,
        shard: str,
        execute: ExecuteCheckpoint,
        end_in_background: EndInBackground,
    ) -> None:
        self._settings = settings
        self._shard = shard
        self._execute = execute
        self._end_in_background = end_in_background
        self._child: ChildProcess | None = None
        self._conversation: Conversation | None = None
        self._output: ChildOutput | None = None
        self._action: asyncio.Task[None] | None = None
        self._has_failed = True  # until it has started
        self._is_ending = False

    async def start(self) -> None:
        """Start the program."""
        child = await start_child(self._settings.command)
        self._child = child
        name = f"child shard={self._shard} pid={child.pid}"
        self._output = ChildOutput(name, time.monotonic)
        self._conversation = Conversation(child.send, self._execute, self._settings.conversation, name=name)
        await child.connect(self._on_stdout, self._on_stderr, self._conversation.accept_end)
        self._has_failed = False
        LOGGER.info("%s started", name)

    async def perform(self, action: Action) -> None:
        """Send an action and wait for its status."""
        assert self._conversation is not None
        self._action = asyncio.get_running_loop().create_task(self._conversation.perform(action))
        # If the lease is lost, the child may finish what it does.
        try:
            await asyncio.shield(self._action)
        except Exception as error:
            self._has_failed = True
            if isinstance(error, ProcessorEndedError):
                LOGGER.warning("%s: its shard begins again from its checkpoint", error)
            raise

    def end(self) -> None:
        """Close the input of the child, and end it by force if it does not exit."""
        self._is_ending = True
        self._end_in_background(self._end())

    def lose(self) -> None:
        """Tell the child that the lease is lost, unless it has failed, and end it."""
        if self._child is not None and not self._is_ending:
            self._end_in_background(self._lose())

    async def _lose(self) -> None:
        try:
            if not self._has_failed:
                await self._tell_that_the_lease_is_lost()
        except asyncio.CancelledError:
            self._has_failed = True  # the daemon exits, so there is no more time
            raise
        finally:
            await self._end(by_force=self._has_failed)

    async def _tell_that_the_lease_is_lost(self) -> None:
        """Let the child finish its action and tell it that the lease is lost, within the time for that."""
        limit_s = self._settings.lost_lease_s
        try:
            async with asyncio.timeout(limit_s):
                if self._action is not None:
                    await self._action
                assert self._conversation is not None
                await self._conversation.perform(LeaseLost())
        except TimeoutError:
            self._has_failed = True
            LOGGER.warning(
                "shard=%s: its child has not ended %g s after the lease was lost", self._shard, limit_s
            )
        except ProcessorEndedError as error:
            self._has_failed = True
            LOGGER.warning("after the lease was lost: %s", error)

    async def _end(self, *, by_force: bool = False) -> None:
        assert self._child is not None
        assert self._output is not None
        limits = _BY_FORCE if by_force else self._settings.limits
        try:
            await self._child.end(limits)
        finally:
            if self._action is not None:
                await cancel_and_wait(self._action)
            self._output.report_dropped()
            LOGGER.info(
                "child shard=%s pid=%d ended code=%s", self._shard, self._child.pid, self._child.exit_code
            )

    async def _on_stdout(self, line: Line) -> None:
        assert self._conversation is not None
        assert self._output is not None
        message = decode_line(line.content) if line.is_whole else decode_part(line.content)
        if not isinstance(message, Junk):
            await self._conversation.accept(message)
        elif message.may_be_logged:
            self._output.log("stdout", message.text)
        else:
            self._output.log("stdout", "a line of the daemon was written back, and ignored")

    async def _on_stderr(self, line: Line) -> None:
        assert self._output is not None
        self._output.log("stderr", line.content.decode("utf-8", "replace"))
