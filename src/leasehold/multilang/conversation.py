"""Holds the dialogue with one child: sends an action, answers checkpoint requests, and waits for the status.

`Dialogue` decides; this module waits. Writing and reading run side by side: a child that prints much while a large
action is written to it must not block.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from leasehold.core.multilang.dialogue import Answer, Broken, Dialogue, Finished, Ignored, Postponed
from leasehold.core.multilang.messages import (
    Action,
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

Send = Callable[[bytes], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ConversationSettings:
    """How to speak with a child."""

    timeout_s: float | None = None  # for each message of the child while an action waits for its status
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

    async def accept(self, message: ChildMessage) -> None:
        """Take a message that was read from the child. Waits while too many are not handled yet."""
        if self._dialogue.awaited is None:
            match self._dialogue.react(message):
                case Ignored(problem):
                    LOGGER.warning("%s: ignored %s", self._name, problem)
                    return
                case _:
                    pass
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
            while not await self._handle(await self._next_message(action, sending), sending):
                pass
            await sending
            self._drop_more_statuses()
        finally:
            await cancel_and_wait(sending)

    def _drop_more_statuses(self) -> None:
        """Drop what was read together with the status, except for checkpoint requests: it answers no later action."""
        waiting = [self._messages.get_nowait() for _ in range(self._messages.qsize())]
        for message in waiting:
            if isinstance(message, Status):
                LOGGER.warning("%s: ignored a second status for one action", self._name)
            else:
                self._messages.put_nowait(message)

    async def _handle(self, message: ChildMessage, sending: asyncio.Future[None]) -> bool:
        """React to one message. Returns whether it finishes the action."""
        match self._dialogue.react(message):
            case Finished():
                return True
            case Answer(request, during):
                error = await self._execute(request, during)
                await sending  # the reply comes after the action, even if the child did not wait for it
                await self._send(encode_checkpoint_reply(request, error))
            case Broken(problem):
                raise ProcessorEndedError(f"{self._name}: {problem}")
            case Ignored() | Postponed():
                pass
        return False

    async def _next_message(self, action: Action, sending: asyncio.Future[None]) -> ChildMessage:
        """Wait for a message. Raises if the child has ended, does not read, or takes too long."""
        loop, limit_s = asyncio.get_running_loop(), self._settings.timeout_s
        began_s, warn_after_s = loop.time(), _FIRST_WARNING_S
        message = asyncio.ensure_future(self._messages.get())
        try:
            while not message.done():
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
                waits: set[asyncio.Future[Any]] = {message} if sending.done() else {message, sending}
                await asyncio.wait(waits, timeout=until_s - waited_s, return_when=asyncio.FIRST_COMPLETED)
                if sending.done() and not message.done():
                    sending.result()
            found = message.result()
        finally:
            message.cancel()
        if found is None:
            raise ProcessorEndedError(f"{self._name} ended during {action.name.value}")
        return found
