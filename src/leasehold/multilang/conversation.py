"""Holds the dialogue with one child: sends an action, answers checkpoint requests, and waits for the status.

`Dialogue` decides; this module waits. Writing and reading run side by side: a child that prints much while a large
action is written to it must not block.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

from leasehold.core.multilang.dialogue import Answer, Broken, Dialogue, Finished, Ignored, Postponed
from leasehold.core.multilang.messages import (
    Action,
    CheckpointRequest,
    ChildMessage,
    LeaseLost,
    ShardEnded,
    Status,
    encode_action,
    encode_checkpoint_reply,
)
from leasehold.errors import ProcessorEndedError
from leasehold.multilang.processor_client import ExecuteCheckpoint
from leasehold.tasks import cancel_and_wait

LOGGER: Final = logging.getLogger("leasehold.multilang")
# Messages that were read and not handled yet. A child that writes more than this waits.
_MESSAGES_MAX: Final = 100
_FIRST_WARNING_S: Final = 60.0

T = TypeVar("T")
Send = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ConversationSettings:
    """How to speak with a child."""

    timeout_s: float | None = None  # for each message of the child, and for each line that it must read
    legacy_shutdown: bool = False


class Conversation:
    """The dialogue with one child. `name` describes the child in the log."""

    def __init__(
        self, send: Send, execute: ExecuteCheckpoint, settings: ConversationSettings, *, name: str
    ) -> None:
        self._send = send
        self._execute = execute
        self._settings = settings
        self._name = name
        self._dialogue = Dialogue()
        self._messages: asyncio.Queue[ChildMessage | None] = asyncio.Queue(_MESSAGES_MAX)
        self._has_warned = False

    async def accept(self, message: ChildMessage) -> None:
        """Take a message that was read from the child. Waits while too many are not handled yet."""
        if self._dialogue.awaited is None:
            if isinstance(self._dialogue.react(message), Ignored):
                self._warn_about_a_status()
                return
            message = _as_early(message)
        await self._messages.put(message)

    async def accept_end(self) -> None:
        """The child has closed its output: there will be no more messages."""
        await self._messages.put(None)

    async def perform(self, action: Action) -> None:
        """Send an action and wait for its status. Raises ProcessorEndedError if the child cannot be used any more."""
        is_legacy = self._settings.legacy_shutdown and isinstance(action, LeaseLost | ShardEnded)
        self._dialogue.begin(action.name, "shutdown" if is_legacy else None)
        line = encode_action(action, legacy_shutdown=self._settings.legacy_shutdown)
        sending = asyncio.ensure_future(self._send(line))
        try:
            while not await self._handle(await self._next_message(action, sending), action, sending):
                pass
            await self._wait_for(sending, action, sending)
            self._drop_more_statuses()
        finally:
            await cancel_and_wait(sending)

    def _drop_more_statuses(self) -> None:
        """Drop what was read together with the status, except for checkpoint requests: it answers no later action."""
        waiting = [self._messages.get_nowait() for _ in range(self._messages.qsize())]
        for message in waiting:
            if isinstance(message, Status):
                self._warn_about_a_status()
            else:
                self._messages.put_nowait(message and _as_early(message))

    def _warn_about_a_status(self) -> None:
        """Warn once: a child may print such lines without end."""
        if not self._has_warned:
            self._has_warned = True
            LOGGER.warning("%s: ignored a status without an action, and will ignore more of them", self._name)

    async def _handle(self, message: ChildMessage, action: Action, sending: asyncio.Future[None]) -> bool:
        """React to one message. Returns whether it finishes the action."""
        match self._dialogue.react(message):
            case Finished():
                return True
            case Answer(request, during):
                error = await self._execute(request, during)
                # The reply comes after the action, even if the child did not wait for it.
                await self._wait_for(sending, action, sending)
                reply = asyncio.ensure_future(self._send(encode_checkpoint_reply(request, error)))
                await self._wait_for(reply, action, sending)
            case Broken(problem):
                raise ProcessorEndedError(f"{self._name}: {problem}")
            case Ignored() | Postponed():
                pass
        return False

    async def _next_message(self, action: Action, sending: asyncio.Future[None]) -> ChildMessage:
        """Wait for a message. Raises if the child has ended, does not read, or takes too long."""
        found = await self._wait_for(asyncio.ensure_future(self._messages.get()), action, sending)
        if found is None:
            raise ProcessorEndedError(f"{self._name} ended during {action.name.value}")
        return found

    async def _wait_for(self, wait: asyncio.Future[T], action: Action, sending: asyncio.Future[None]) -> T:
        """Wait for something that the child must do, and cancel it if that takes too long. Raises if it does."""
        loop, limit_s = asyncio.get_running_loop(), self._settings.timeout_s
        began_s, warn_after_s = loop.time(), _FIRST_WARNING_S
        try:
            while not wait.done():
                waited_s = loop.time() - began_s
                if limit_s is not None and waited_s >= limit_s:
                    raise ProcessorEndedError(
                        f"{self._name} has not answered {action.name.value} for {limit_s:g} s (timeoutInSeconds)"
                    )
                if waited_s >= warn_after_s:
                    LOGGER.warning(
                        "%s has not answered %s for %.0f s", self._name, action.name.value, waited_s
                    )
                    warn_after_s *= 2
                until_s = warn_after_s if limit_s is None else min(warn_after_s, limit_s)
                # A child that has closed its input and not its output would never answer.
                waits: set[asyncio.Future[Any]] = {wait} if sending.done() else {wait, sending}
                await asyncio.wait(waits, timeout=until_s - waited_s, return_when=asyncio.FIRST_COMPLETED)
                if sending.done() and not wait.done():
                    sending.result()
            return wait.result()
        finally:
            wait.cancel()


def _as_early(message: ChildMessage) -> ChildMessage:
    """Mark a checkpoint request that came before the action during which it is answered."""
    return replace(message, is_early=True) if isinstance(message, CheckpointRequest) else message
