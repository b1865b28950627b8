"""What a program holds: one handler, sensible refusals, and an engine that stops when told."""

import asyncio
import signal
import threading

import pytest

from leasehold import Batch, ConfigError, Consumer, RecordProcessor
from leasehold.worker.batch_handler import BatchHandler
from leasehold.worker.engine.engine_thread import EngineThread, stop_on_signals
from leasehold.worker.options import HandlingOptions
from leasehold.worker.processors import ProcessorHandler
from leasehold.worker.settings import Checkpointing

PATIENCE_S = 20


def make() -> Consumer:
    return Consumer(stream="orders", application="billing", max_records=7)


def test_a_decorated_function_stays_what_it_was() -> None:
    """With and without parentheses; it can be called and tested as any function."""
    consumer = make()

    @consumer.batch(max_wait="2s")
    def save(batch: Batch) -> None: ...

    bare = make()

    @bare.batch
    async def save_async(batch: Batch) -> None: ...

    assert consumer._handler == BatchHandler(save)
    assert (consumer._handling.batch.max_records, consumer._handling.batch.max_wait.seconds) == (7, 2)
    assert bare._handler == BatchHandler(save_async)


def test_a_processor_checkpoints_by_itself_alone() -> None:
    """It is not asked when; the class says it."""
    consumer = make()

    @consumer.processor
    class Processor(RecordProcessor): ...

    assert consumer._handler == ProcessorHandler(Processor)
    assert consumer._handling.checkpoints.checkpoint is Checkpointing.MANUAL


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"checkpoint": "automatic"}, "checkpoint='automatic'"),
        ({"checkpoint_every": "1s"}, "checkpoint_every='1s'"),
        ({"checkpoint_records": 5}, "checkpoint_records=5"),
        ({"checkpoint": "manual", "checkpoint_records": 5}, "checkpoint_records=5"),
    ],
)
def test_a_processor_cannot_be_told_when_to_checkpoint(options: HandlingOptions, named: str) -> None:
    """What would have no effect is refused, with the reason."""
    with pytest.raises(ConfigError, match=f"{named}.*a processor checkpoints manually"):
        make().processor(**options)(RecordProcessor)


def test_a_processor_is_not_for_a_consumer_that_says_when_to_checkpoint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever the setting comes from: it would have no effect, so it is refused."""
    with pytest.raises(ConfigError, match=r"checkpoint_records=5.*from the settings of the consumer"):
        Consumer(stream="orders", application="billing", checkpoint_records=5).processor(RecordProcessor)
    monkeypatch.setenv("LEASEHOLD_CHECKPOINT_EVERY", "1s")
    with pytest.raises(ConfigError, match="checkpoint_every"):
        make().processor(RecordProcessor)


def test_a_processor_may_be_told_what_it_is_anyway() -> None:
    """Manual checkpoints are what a processor has; saying so is no mistake."""
    consumer = make()
    consumer.processor(checkpoint="manual", max_records=3)(RecordProcessor)
    assert consumer._handling.checkpoints.checkpoint is Checkpointing.MANUAL
    assert consumer._handling.batch.max_records == 3


def test_one_consumer_has_one_handler() -> None:
    """A second one would get half of the records in silence; it is refused."""
    consumer = make()
    consumer.batch(print)
    with pytest.raises(ConfigError, match="already"):
        consumer.batch(print)
    with pytest.raises(ConfigError, match="already"):
        consumer.processor(RecordProcessor)


def test_a_consumer_without_a_handler_does_not_run() -> None:
    """It says how to give it one."""
    with pytest.raises(ConfigError, match="decorate a function"):
        make().run()
    with pytest.raises(ConfigError, match="decorate a function"):
        asyncio.run(make().serve())


def test_what_keeps_a_worker_from_starting_is_raised_where_it_was_started() -> None:
    """A mistake in the settings that only the wiring can find comes out of `run` and `serve`."""
    for start in (Consumer.run, lambda consumer: asyncio.run(consumer.serve())):
        consumer = Consumer(stream="orders", application="billing", dead_letters="/nowhere/letters.jsonl")
        consumer.batch(print)
        with pytest.raises(ConfigError, match="create it first"):
            start(consumer)


async def _until_stopped(stop: asyncio.Event) -> BaseException | None:
    await stop.wait()
    return None


def test_an_engine_stops_whenever_it_is_told() -> None:
    """Before it started, while it runs, after it ended, and twice."""
    early = EngineThread(_until_stopped)
    early.stop()
    early.start()
    assert early.finished.result(PATIENCE_S) is None
    engine = EngineThread(_until_stopped)
    engine.start()
    engine.stop()
    engine.stop()
    assert engine.finished.result(PATIENCE_S) is None
    engine._thread.join(PATIENCE_S)
    engine.stop()


def test_an_engine_passes_on_what_happened() -> None:
    """A reason to stop is a result, a bug is an exception; both reach whoever waits."""

    async def give_reason(stop: asyncio.Event) -> BaseException | None:
        return SystemExit(3)

    async def break_down(stop: asyncio.Event) -> BaseException | None:
        raise AssertionError("a bug")

    with_reason, broken = EngineThread(give_reason), EngineThread(break_down)
    for engine in (with_reason, broken):
        engine.start()
    assert isinstance(with_reason.finished.result(PATIENCE_S), SystemExit)
    with pytest.raises(AssertionError, match="a bug"):
        broken.finished.result(PATIENCE_S)


def test_signal_handlers_are_put_back() -> None:
    """Afterwards signals mean what they meant before."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    stops: list[bool] = []
    with stop_on_signals(lambda: stops.append(True)):
        signal.raise_signal(signal.SIGTERM)
        assert signal.getsignal(signal.SIGTERM) == signal.getsignal(signal.SIGINT) == signal.SIG_DFL
    assert stops == [True]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_signals_are_left_alone_outside_of_the_main_thread() -> None:
    """A consumer may run in any thread; then the program stops it."""
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def run() -> None:
        with stop_on_signals(lambda: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE_S)
    assert seen == [before]
