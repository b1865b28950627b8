"""`Consumer`: what a program holds. Puts user code, settings and the engine together; decides nothing else."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar, Unpack, overload

from leasehold.core.events import Observer
from leasehold.errors import ConfigError
from leasehold.loop_thread import LoopThread
from leasehold.worker.batch import Batch
from leasehold.worker.batch_handler import BatchHandler
from leasehold.worker.delivery.served_shard import HandlerKind
from leasehold.worker.engine.engine_thread import EngineThread, stop_on_signals
from leasehold.worker.engine.run_worker import WorkerPorts, run_worker
from leasehold.worker.options import ConsumerOptions, HandlingOptions, consumer_settings, handling_settings
from leasehold.worker.processors import ProcessorFactory, ProcessorHandler
from leasehold.worker.settings import Checkpointing, CheckpointSettings, ConsumerSettings, HandlingSettings
from leasehold.worker.shard_iteration import ShardBatches, ShardIterationHandler
from leasehold.worker.user_code.handler_runners import HandlerRunners, ThreadedRunners

# Plain or async: whatever it returns is awaited if it can be, and otherwise of no interest.
Handler = TypeVar("Handler", bound=Callable[[Batch], object])
Processor = TypeVar("Processor", bound=ProcessorFactory)

_HANDLER_LOOP_PATIENCE_S: Final = 1.0


class Consumer:
    """Consumes a stream, or several, in the name of one application, together with all others of that name.

    Give it a handler with `@consumer.batch()` or `@consumer.processor`, then `run()`; or iterate over `shards()`.
    Settings come from keywords, from LEASEHOLD_* variables, and from a TOML file named by `config`.
    """

    def __init__(
        self,
        *,
        stream: str | None = None,
        streams: Sequence[str] | Mapping[str, str | datetime | None] | None = None,
        application: str | None = None,
        config: str | Path | None = None,
        observe: Observer | None = None,
        **options: Unpack[ConsumerOptions],
    ) -> None:
        named = {"stream": stream, "streams": streams, "application": application, "config": config}
        keywords: dict[str, Any] = {name: value for name, value in named.items() if value is not None}
        self.settings: Final = consumer_settings(keywords | dict(options), os.environ)
        self._observe = observe
        self._form: HandlerKind | None = None
        self._handling = self.settings.handling
        self._engine: EngineThread | None = None

    # -- what to do with records -------------------------------------------------------------------------------

    @overload
    def batch(self, handler: Handler, /) -> Handler: ...

    @overload
    def batch(self, /, **options: Unpack[HandlingOptions]) -> Callable[[Handler], Handler]: ...

    def batch(
        self, handler: Handler | None = None, /, **options: Unpack[HandlingOptions]
    ) -> Handler | Callable[[Handler], Handler]:
        """Decorates the function, plain or async, that handles batches. The function stays as it is.

        Returning means that the batch is done; raising, that it is not.
        """

        def decorate(function: Handler) -> Handler:
            self._give(BatchHandler(function), handling_settings(self.settings.handling, options))
            return function

        return decorate if handler is None else decorate(handler)

    @overload
    def processor(self, make: Processor, /) -> Processor: ...

    @overload
    def processor(self, /, **options: Unpack[HandlingOptions]) -> Callable[[Processor], Processor]: ...

    def processor(
        self, make: Processor | None = None, /, **options: Unpack[HandlingOptions]
    ) -> Processor | Callable[[Processor], Processor]:
        """Decorates a `RecordProcessor` class, or takes a function that makes one for each shard."""

        def decorate(factory: Processor) -> Processor:
            handling = handling_settings(self.settings.handling, options)
            _refuse_automatic_checkpoints(options, handling.checkpoints)
            # Only the class knows what it has done.
            by_hand = CheckpointSettings(checkpoint=Checkpointing.MANUAL)
            self._give(ProcessorHandler(factory), replace(handling, checkpoints=by_hand))
            return factory

        return decorate if make is None else decorate(make)

    def _give(self, form: HandlerKind, handling: HandlingSettings) -> None:
        if self._form is not None:
            raise ConfigError(
                "this consumer has a handler already: make another Consumer for another handler"
            )
        self._form, self._handling = form, handling

    # -- running -----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Consume until SIGTERM or SIGINT: then drain, checkpoint, release and return. A second signal ends it now.

        Raises HandlerError if the settings say to stop at a record that cannot be handled.
        """
        handlers = LoopThread("leasehold-handlers")
        engine = self._make_engine(self._required_form(), ThreadedRunners(handlers.loop))
        try:
            with stop_on_signals(engine.stop):
                engine.start()
                reason = engine.ended.result()
        finally:
            engine.stop()
            handlers.close(timeout_s=_HANDLER_LOOP_PATIENCE_S)
        if reason is not None:
            raise reason

    async def serve(self) -> None:
        """The same for a program with an event loop of its own, on which async handlers then run.

        Ends with `stop()`. When it is cancelled, it stops cleanly before it lets go.
        """
        engine = self._make_engine(self._required_form(), ThreadedRunners(asyncio.get_running_loop()))
        engine.start()
        await self._ended(engine)

    async def shards(self, **options: Unpack[HandlingOptions]) -> AsyncGenerator[ShardBatches, None]:
        """The shards that this consumer serves, each as soon as it does. Work on them in tasks, side by side.

        Ends with `stop()`, or when the loop over it is left (`aclose`): then everything is released.
        """
        loop = asyncio.get_running_loop()
        offered: asyncio.Queue[ShardBatches | None] = asyncio.Queue()

        def offer(shard: ShardBatches | None) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(offered.put_nowait, shard)

        self._give(ShardIterationHandler(offer), handling_settings(self.settings.handling, options))
        engine = self._make_engine(self._required_form(), ThreadedRunners(loop))
        engine.ended.add_done_callback(lambda _: offer(None))
        engine.start()
        try:
            while (shard := await offered.get()) is not None:
                yield shard
        finally:
            engine.stop()
            self._form = None
            await self._ended(engine)

    async def run_with_ports(
        self, ports: WorkerPorts, user_code: HandlerRunners, stop: asyncio.Event
    ) -> BaseException | None:
        """Consume through other ports than the settings name: for the test kit and the simulator.

        Returns what made the worker stop before it was told to, if something did.
        """
        settings = replace(self.settings, handling=self._handling)
        return await run_worker(settings, self._required_form(), ports, user_code, stop)

    def stop(self) -> None:
        """Ask for a clean end; from any thread."""
        if self._engine is not None:
            self._engine.stop()

    def _required_form(self) -> HandlerKind:
        if self._form is None:
            raise ConfigError("this consumer has no handler: decorate a function with @consumer.batch()")
        return self._form

    def _make_engine(self, form: HandlerKind, user_code: HandlerRunners) -> EngineThread:
        settings = replace(self.settings, handling=self._handling)

        async def main(stop: asyncio.Event) -> BaseException | None:
            return await _run(settings, form, user_code, self._observe, stop)

        self._engine = EngineThread(main)
        return self._engine

    async def _ended(self, engine: EngineThread) -> None:
        """Wait for the engine. Whoever cancels this asks it to stop, and waits for that, too."""
        ended = asyncio.wrap_future(engine.ended)
        try:
            reason = await asyncio.shield(ended)
        except asyncio.CancelledError:
            engine.stop()
            await asyncio.wait({ended})
            ended.exception()  # the cancellation is what counts now
            raise
        if reason is not None:
            raise reason


def _refuse_automatic_checkpoints(options: Mapping[str, object], asked_for: CheckpointSettings) -> None:
    """Whether they stand in the decorator or among the consumer's settings: they would have no effect."""
    names, default = [each.name for each in fields(CheckpointSettings)], CheckpointSettings()
    refused = {name for name in names if getattr(asked_for, name) != getattr(default, name)} | (
        options.keys() & set(names)
    )
    if asked_for.checkpoint is Checkpointing.MANUAL:
        refused.discard("checkpoint")
    for name in sorted(refused):
        raise ConfigError(
            f"@consumer.processor with {name}={options.get(name, getattr(asked_for, name))!r}: a processor checkpoints "
            f"by hand, since only the class knows what it has done; leave {name} out, here and among the settings of "
            "the consumer, and call checkpointer.checkpoint()"
        )


async def _run(
    settings: ConsumerSettings,
    form: HandlerKind,
    user_code: HandlerRunners,
    observe: Observer | None,
    stop: asyncio.Event,
) -> BaseException | None:
    # boto3 takes its time to import; whoever only declares a consumer does not need it.
    from leasehold.worker.connect import connect  # noqa: PLC0415

    async with connect(settings, observe) as ports:
        return await run_worker(settings, form, ports, user_code, stop)
