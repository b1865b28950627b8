"""The interface between a shard and its record processor, which is a child process or an object of this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from leasehold.core.multilang.messages import Action, ActionName, CheckpointRequest
from leasehold.worker.delivery.served_shard import ServedShard

# Executes a checkpoint that is requested during an action. Returns the name of a KCL exception, or None.
ExecuteCheckpoint = Callable[[CheckpointRequest, ActionName], Awaitable[str | None]]


class ProcessorClient(Protocol):
    """One record processor, for one shard and one lease session."""

    async def start(self) -> None:
        """Create the processor. Raises ProcessorEndedError if that fails."""
        ...

    async def perform(self, action: Action) -> None:
        """Let the processor perform an action. Raises ProcessorEndedError if it can perform no more.

        If the wait is cancelled, the processor still finishes the action.
        """
        ...

    def end(self) -> None:
        """Begin to end the processor in an orderly way: it has performed its last action."""
        ...

    def lose(self) -> None:
        """Begin to end the processor after the lease was lost, or after it failed.

        A processor that works is told so when its current action is finished.
        """
        ...


class ProcessorClients(Protocol):
    """Makes the client of each shard."""

    def __call__(self, shard: ServedShard, execute: ExecuteCheckpoint) -> ProcessorClient:
        """Make the client. It does nothing before `start`."""
        ...

    async def close(self) -> None:
        """Wait a while until all processors have ended, and end the others by force."""
        ...
