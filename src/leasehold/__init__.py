"""Consume Amazon Kinesis Data Streams from Python, as one fleet with the Java Kinesis Client Library.

from leasehold import Batch, Consumer

consumer = Consumer(stream="orders", application="billing")

@consumer.batch(max_records=500, max_wait="1s")
def save(batch: Batch) -> None:
    ...

consumer.run()
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    __version__: str  # of the installed package
    # For type checkers and editors. At run time `__getattr__` imports a name when it is first used.
    from leasehold.core.model import Pin as Pin
    from leasehold.core.model import ShardId as ShardId
    from leasehold.core.position import Position as Position
    from leasehold.core.record import UserRecord as UserRecord
    from leasehold.errors import CheckpointRejectedError as CheckpointRejectedError
    from leasehold.errors import ConfigError as ConfigError
    from leasehold.errors import HandlerError as HandlerError
    from leasehold.errors import LeaseholdError as LeaseholdError
    from leasehold.errors import LeaseLostError as LeaseLostError
    from leasehold.worker.archive_handler import archive_batches as archive_batches
    from leasehold.worker.batch import Batch as Batch
    from leasehold.worker.batch import PreparedCheckpoint as PreparedCheckpoint
    from leasehold.worker.consumer import Consumer as Consumer
    from leasehold.worker.dead_letters import DeadLetter as DeadLetter
    from leasehold.worker.delivered_record import DeliveredRecord as DeliveredRecord
    from leasehold.worker.processors import Checkpointer as Checkpointer
    from leasehold.worker.processors import InitializeInput as InitializeInput
    from leasehold.worker.processors import LeaseLostInput as LeaseLostInput
    from leasehold.worker.processors import ProcessRecordsInput as ProcessRecordsInput
    from leasehold.worker.processors import RecordProcessor as RecordProcessor
    from leasehold.worker.processors import ShardEndedInput as ShardEndedInput
    from leasehold.worker.processors import ShutdownRequestedInput as ShutdownRequestedInput
    from leasehold.worker.shard_iteration import ShardBatches as ShardBatches

_MODULES: Final = {
    "Pin": "core.model",
    "ShardId": "core.model",
    "Position": "core.position",
    "UserRecord": "core.record",
    "CheckpointRejectedError": "errors",
    "ConfigError": "errors",
    "HandlerError": "errors",
    "LeaseLostError": "errors",
    "LeaseholdError": "errors",
    "archive_batches": "worker.archive_handler",
    "Batch": "worker.batch",
    "PreparedCheckpoint": "worker.batch",
    "Consumer": "worker.consumer",
    "DeadLetter": "worker.dead_letters",
    "DeliveredRecord": "worker.delivered_record",
    "Checkpointer": "worker.processors",
    "InitializeInput": "worker.processors",
    "LeaseLostInput": "worker.processors",
    "ProcessRecordsInput": "worker.processors",
    "RecordProcessor": "worker.processors",
    "ShardEndedInput": "worker.processors",
    "ShutdownRequestedInput": "worker.processors",
    "ShardBatches": "worker.shard_iteration",
}

__all__ = sorted(_MODULES)  # noqa: PLE0605 - a test compares it with what type checkers see


def __getattr__(name: str) -> object:
    """Import a public name on demand, because a Spark executor needs no worker, and a worker needs no Spark."""
    if name == "__version__":
        return import_module("importlib.metadata").version("leasehold")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(globals().keys() | _MODULES)
