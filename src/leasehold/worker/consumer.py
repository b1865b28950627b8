"""`Consumer`, the entry point of a program: combines user code, settings and the engine."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime, timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, Unpack, overload

from leasehold.core.events import Observer
from leasehold.errors import ConfigError
from leasehold.garbage_collection import tune_garbage_collection
from leasehold.loop_thread import LoopThread
from leasehold.memory_allocation import keep_freed_memory
from leasehold.worker.batch import Batch
from leasehold.worker.batch_handler import BatchHandler
from leasehold.worker.delivered_record import DeliveredRecord
from leasehold.worker.delivery.shard_consumer import HandlerKind
from leasehold.worker.engine.engine_thread import EngineThread, stop_on_signals
from leasehold.worker.engine.run_worker import WorkerPorts, run_worker
from leasehold.worker.options import ConsumerOptions, HandlingOptions, consumer_settings, handling_settings
from leasehold.worker.processes.member_link import MemberLink
from leasehold.worker.processors import ProcessorFactory, ProcessorHandler
from leasehold.worker.record_handler import RecordHandler
from leasehold.worker.settings import (
    Checkpointing,
    CheckpointSettings,
    ConsumerSettings,
    HandlingSettings,
    StreamsFunction,
)
from leasehold.worker.shard_iteration import ShardBatches, ShardIterationHandler
from leasehold.worker.uncaught_errors import report_in_one_sentence
from leasehold.worker.user_code.handler_runners import HandlerRunners, ThreadedRunners

# A plain or async function. An awaitable result is awaited; any other result is ignored.
Handler = TypeVar("Handler", bound=Callable[[Batch], object])
RecordFunction = TypeVar("RecordFunction", bound=Callable[[DeliveredRecord], object])
# The same with a `pyarrow.RecordBatch`, which has no types.
ArrowHandler = TypeVar("ArrowHandler", bound=Callable[[Any], object])
Processor = TypeVar("Processor", bound=ProcessorFactory)

_CLOSE_HANDLER_LOOP_TIMEOUT_S: Final = 1.0


class Consumer:
    """Consumes one or more streams for an application, together with all other workers of that application.

    Give it a handler with `@consumer.batch()`, `@consumer.record()` or `@consumer.processor`, then `run()`; or iterate
    over `shards()`.
    Settings come from keywords, from LEASEHOLD_* environment variables, and from the TOML file `config`.
    """

    def __init__(
        self,
        *,
        stream: str | None = None,
        streams: Sequence[str] | Mapping[str, str | datetime | None] | StreamsFunction | None = None,
        application: str | None = None,
        config: str | Path | None = None,
        observe: Observer | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        report_in_one_sentence()  # also an error in the settings
        named = {"stream": stream, "streams": streams, "application": application, "config": config}
        keywords: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        self.settings = consumer_settings(keywords | dict(options), os.environ)
        self._observe = observe
        self._handler: HandlerKind | None = None
        self._handling = self.settings.handling
        self._engine: EngineThread | None = None

    # -- handlers -------------------------------------------------------------------------------------------------

    @overload
    def batch(self, handler: Handler, /) -> Handler: ...

    @overload
    def batch(
        self, /, *, arrow: Literal[False] = False, **options: Unpack[HandlingOptions]
    ) -> Callable[[Handler], Handler]: ...

    @overload
    def batch(
        self, /, *, arrow: Literal[True], **options: Unpack[HandlingOptions]
    ) -> Callable[[ArrowHandler], ArrowHandler]: ...

    def batch(
        self, handler: Any = None, /, *, arrow: bool = False, **options: Unpack[HandlingOptions]
    ) -> Any:
        """Decorate the plain or async function that handles batches. The function itself is unchanged.

        A batch is done when the function returns, and not done when it raises. With `arrow`, the function gets the
        records as a `pyarrow.RecordBatch` instead of a `Batch`.
        """

        def decorate(function: Any) -> Any:
            handling = handling_settings(self.settings.handling, options)
            _refuse_concurrency(handling, "batch")
            if arrow:
                _require_arrow(handling.checkpoints)
            self._set_handler(BatchHandler(function, is_columnar=arrow), handling)
            return function

        return decorate if handler is None else decorate(handler)

    @overload
    def record(self, handler: RecordFunction, /) -> RecordFunction: ...

    @overload
    def record(self, /, **options: Unpack[HandlingOptions]) -> Callable[[RecordFunction], RecordFunction]: ...

    def record(
        self, handler: RecordFunction | None = None, /, **options: Unpack[HandlingOptions]
    ) -> RecordFunction | Callable[[RecordFunction], RecordFunction]:
        """Decorate the plain or async function that handles single records. The function itself is unchanged.

        A record is done when the function returns, and not done when it raises. With `concurrency`, records of
        different partition keys are handled at the same time; those of one key in their order.
        """

        def decorate(function: RecordFunction) -> RecordFunction:
            handling = handling_settings(self.settings.handling, options)
            _refuse_manual_checkpoints(handling)
            # Single records gain nothing by waiting for others.
            batch = replace(handling.batch, max_wait=timedelta(0))
            self._set_handler(RecordHandler(function), replace(handling, batch=batch))
            return function

        return decorate if handler is None else decorate(handler)

    @overload
    def processor(self, make: Processor, /) -> Processor: ...

    @overload
    def processor(self, /, **options: Unpack[HandlingOptions]) -> Callable[[Processor], Processor]: ...

    def processor(
        self, make: Processor | None = None, /, **options: Unpack[HandlingOptions]
    ) -> Processor | Callable[[Processor], Processor]:
        """Decorate a `RecordProcessor` class, or a function that makes a processor for each shard."""

        def decorate(factory: Processor) -> Processor:
            handling = handling_settings(self.settings.handling, options)
            _refuse_automatic_checkpoints(options, handling.checkpoints)
            _refuse_concurrency(handling, "processor")
            self._set_handler(ProcessorHandler(factory), _with_manual_checkpoints(handling))
            return factory

        return decorate if make is None else decorate(make)

    def deliver_to(self, handler: HandlerKind) -> None:
        """Deliver to a handler of another kind, which makes its own checkpoints, such as those in `multilang`."""
        _refuse_concurrency(self.settings.handling, "deliver_to")
        self._set_handler(handler, _with_manual_checkpoints(self.settings.handling))

    def _set_handler(self, handler: HandlerKind, handling: HandlingSettings) -> None:
        if self._handler is not None:
            raise ConfigError(
                "this consumer has a handler already: make another Consumer for another handler"
            )
        self._handler, self._handling = handler, handling

    # -- running -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Consume until SIGTERM or SIGINT, then drain, checkpoint, release all leases and return.

        A second signal ends the process at once. Raises HandlerError if the settings say to stop at a poison record.
        """
        self._run(None)

    def run_as_member(self, link: MemberLink) -> None:
        """Consume like `run`, as one of several processes of `leasehold run --processes`."""
        self.settings = link.own_settings(self.settings)
        self._run(link)

    def _run(self, link: MemberLink | None) -> None:
        # Not in `serve` and `shards`, which are a part of another program.
        tune_garbage_collection()
        keep_freed_memory()
        handler_loop = LoopThread("leasehold-handlers")
        engine = self._make_engine(self._require_handler(), ThreadedRunners(handler_loop.loop), link)
        try:
            with stop_on_signals(engine.stop, is_announced=link is None):
                if link is not None:
                    link.stop_with_supervisor(engine.stop)
                engine.start()
                reason = engine.finished.result()
        finally:
            engine.stop()
            handler_loop.close(timeout_s=_CLOSE_HANDLER_LOOP_TIMEOUT_S)
        if reason is not None:
            raise reason

    async def serve(self) -> None:
        """Consume like `run`, for a program with its own event loop. Async handlers run on that loop.

        Returns after `stop()`. If it is cancelled, it stops cleanly before it raises.
        """
        engine = self._make_engine(self._require_handler(), ThreadedRunners(asyncio.get_running_loop()))
        engine.start()
        await self._wait_for(engine)

    async def shards(self, **options: Unpack[HandlingOptions]) -> AsyncGenerator[ShardBatches, None]:
        """Yield each shard as soon as this consumer serves it. Work on the shards in concurrent tasks.

        Ends with `stop()`, or when the generator is closed (`aclose`). Then all leases are released.
        """
        loop = asyncio.get_running_loop()
        offered: asyncio.Queue[ShardBatches | None] = asyncio.Queue()

        def offer(shard: ShardBatches | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(offered.put_nowait, shard)

        handling = handling_settings(self.settings.handling, options)
        _refuse_concurrency(handling, "shards")
        self._set_handler(ShardIterationHandler(offer), handling)
        engine = self._make_engine(self._require_handler(), ThreadedRunners(loop))
        engine.finished.add_done_callback(lambda _: offer(None))
        engine.start()
        try:
            while (shard := await offered.get()) is not None:
                yield shard
        finally:
            engine.stop()
            self._handler = None
            await self._wait_for(engine)

    async def run_with_ports(
        self,
        ports: WorkerPorts,
        runners: HandlerRunners,
        stop: asyncio.Event,
        *,
        settings: ConsumerSettings | None = None,
    ) -> BaseException | None:
        """Consume through the given ports instead of those that the settings name, and if given with other settings.

        `leasehold.testing` and replays use it. Returns the error that made the worker stop by itself, if there was one.
        """
        chosen = replace(settings or self.settings, handling=self._handling)
        return await run_worker(chosen, self._require_handler(), ports, runners, stop)

    def stop(self) -> None:
        """Request a clean stop. May be called from any thread."""
        if self._engine is not None:
            self._engine.stop()

    def _require_handler(self) -> HandlerKind:
        if self._handler is None:
            raise ConfigError("this consumer has no handler: decorate a function with @consumer.batch()")
        return self._handler

    def _make_engine(
        self, handler: HandlerKind, runners: HandlerRunners, link: MemberLink | None = None
    ) -> EngineThread:
        settings = replace(self.settings, handling=self._handling)

        async def main(stop: asyncio.Event) -> BaseException | None:
            return await _connect_and_run(settings, handler, runners, self._observe, stop, link=link)

        self._engine = EngineThread(main)
        return self._engine

    async def _wait_for(self, engine: EngineThread) -> None:
        """Wait until the engine has finished. If cancelled, stop the engine and wait for that before raising."""
        finished = asyncio.wrap_future(engine.finished)
        try:
            reason = await asyncio.shield(finished)
        except asyncio.CancelledError:
            engine.stop()
            await asyncio.wait({finished})
            finished.exception()  # retrieved, so that asyncio does not log it; the cancellation is raised instead
            raise
        if reason is not None:
            raise reason


def _require_arrow(checkpoints: CheckpointSettings) -> None:
    """Raise ConfigError if a handler cannot get Arrow batches."""
    if find_spec("pyarrow") is None:
        raise ConfigError(
            "@consumer.batch(arrow=True): pyarrow is not installed: pip install 'leasehold[archive]'"
        )
    if checkpoints.checkpoint is Checkpointing.MANUAL:
        raise ConfigError(
            "@consumer.batch(arrow=True) with checkpoint='manual': an Arrow batch has no checkpoint(); decorate with "
            "@consumer.batch(checkpoint='manual'), and call batch.to_arrow() in the handler"
        )


def _with_manual_checkpoints(handling: HandlingSettings) -> HandlingSettings:
    """Only a class with the KCL's life cycle knows which records are done."""
    return replace(handling, checkpoints=CheckpointSettings(checkpoint=Checkpointing.MANUAL))


def _refuse_concurrency(handling: HandlingSettings, kind: str) -> None:
    if handling.records.concurrency > 1:
        raise ConfigError(
            f"consumer.{kind} with concurrency={handling.records.concurrency}: only single records are handled "
            "concurrently; use @consumer.record, or remove concurrency here and from the settings of the consumer"
        )


def _refuse_manual_checkpoints(handling: HandlingSettings) -> None:
    if handling.checkpoints.checkpoint is Checkpointing.MANUAL:
        raise ConfigError(
            "@consumer.record with checkpoint='manual': a record is done when its handler returns, and the checkpoint "
            "follows the first record that is not done; use @consumer.batch for manual checkpoints"
        )


def _refuse_automatic_checkpoints(options: Mapping[str, object], requested: CheckpointSettings) -> None:
    """Raise ConfigError for checkpoint settings of a processor or its consumer, since they would have no effect."""
    names, default = [each.name for each in fields(CheckpointSettings)], CheckpointSettings()
    refused = {name for name in names if getattr(requested, name) != getattr(default, name)} | (
        options.keys() & set(names)
    )
    if requested.checkpoint is Checkpointing.MANUAL:
        refused.discard("checkpoint")
    for name in sorted(refused):
        raise ConfigError(
            f"@consumer.processor with {name}={options.get(name, getattr(requested, name))!r}: a processor checkpoints "
            f"manually, because only the class knows which records are done; remove {name} here and from the settings "
            "of the consumer, and call checkpointer.checkpoint()"
        )


async def _connect_and_run(
    settings: ConsumerSettings,
    handler: HandlerKind,
    runners: HandlerRunners,
    observe: Observer | None,
    stop: asyncio.Event,
    *,
    link: MemberLink | None,
) -> BaseException | None:
    # Imported late, because boto3 is slow to import and a module that only declares a consumer does not need it.
    from leasehold.worker.connect import connect  # noqa: PLC0415

    async with connect(settings, observe, None if link is None else link.offer_status) as ports:
        if link is not None:
            link.report_connected(settings)
        return await run_worker(settings, handler, ports, runners, stop)
