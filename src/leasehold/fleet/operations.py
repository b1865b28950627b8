"""Runs the operations of a member. Service failures are reported and survived; programming errors end the member."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from leasehold.core.backoff import backoff_ms
from leasehold.core.events import Observer, OperationFailed, with_stream
from leasehold.core.model import StreamIdentifier
from leasehold.errors import ConfigError, LeaseholdError, RecreatedStreamError
from leasehold.ports import Clock
from leasehold.tasks import first_of

Operation = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Operations:
    """Runs operations and reports those that fail. Also carries the clock, the random source and the observer."""

    clock: Clock
    rng: random.Random
    observe: Observer

    async def attempt(self, name: str, operation: Operation) -> bool:
        """Run an operation once. Report a `LeaseholdError` and return False.

        Every other error is raised, and so is a RecreatedStreamError, which ends the member.
        """
        try:
            await operation()
        except RecreatedStreamError:
            raise
        except LeaseholdError as error:
            self.report_failure(name, error)
            return False
        return True

    async def retry_until_success(self, name: str, operation: Operation, stop: asyncio.Event) -> None:
        """Run an operation until it succeeds or `stop` is set. An error that a retry would not cure is raised."""
        attempt = 0
        while not stop.is_set():
            try:
                await operation()
            except (ConfigError, RecreatedStreamError):
                raise
            except LeaseholdError as error:
                self.report_failure(name, error)
                pause_ms = backoff_ms(attempt, self.rng.random())
                await first_of(stop.wait(), self.clock.sleep_ms(pause_ms))
                attempt += 1
            else:
                return

    def report_failure(self, name: str, error: LeaseholdError) -> None:
        """Report that an operation failed."""
        self.observe(OperationFailed(name, str(error)))

    def for_stream(self, stream: StreamIdentifier | None) -> Operations:
        """The same, with an observer that adds the stream to every event."""
        return replace(self, observe=with_stream(stream, self.observe))
