"""Every operation: AWS's names in, calls on the stream model, AWS's names out."""

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
