"""What batches and single records have in common: a call needs a valid lease, and a call that raised is reported."""

from __future__ import annotations

import logging
from typing import Final

from leasehold.core.events import HandlerFailed
from leasehold.errors import LeaseLostError, own_sentence
from leasehold.fleet.held_lease import HeldLease
from leasehold.worker.batch import Batch
from leasehold.worker.delivery.served_shard import ServedShard
from leasehold.worker.user_code.handler_runners import Raised, traceback_without_message

LOGGER: Final = logging.getLogger("leasehold.worker")


def require_valid_lease(held: HeldLease) -> None:
    """Raise if the lease may have another owner. Call it immediately before user code."""
    if not held.is_valid():
        raise LeaseLostError(
            f"lease {held.lease.key} may have another owner by now: its handler gets no more records"
        )


def report_failure(shard: ServedShard, batch: Batch, outcome: Raised) -> Exception:
    """Report that a handler raised, and return its error. Raises if the shard must not go on."""
    error = shard.require_retryable(outcome)
    name = type(error).__name__
    LOGGER.debug(
        "handler failed shard=%s %s at\n%s", shard.held.lease.key, name, traceback_without_message(error)
    )
    shard.observe(
        HandlerFailed(
            batch.shard, batch.start, batch.end, len(batch), batch.attempt, name, own_sentence(error)
        )
    )
    return error
