"""The operations of the API: each converts a request to calls of the model, and the result to a response."""

from __future__ import annotations

from typing import Final

from leasehold.local.operations import consumers, records, shards, streams
from leasehold.local.operations.call import Call, Operation

__all__ = ["OPERATIONS", "Call", "Handler"]

OPERATIONS: Final[dict[str, Operation]] = {
    **streams.OPERATIONS,
    **shards.OPERATIONS,
    **records.OPERATIONS,
    **consumers.OPERATIONS,
}
