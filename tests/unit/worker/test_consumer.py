"""`Consumer` takes one handler, refuses settings without effect, and runs an engine that can be stopped at any time."""

import asyncio
import signal
import subprocess
import sys
import threading

import pytest

from leasehold import Batch, ConfigError, Consumer, RecordProcessor
from leasehold.worker.batch_handler import BatchHandler
from leasehold.worker.engine.engine_thread import EngineThread, stop_on_signals
from leasehold.worker.options import HandlingOptions
from leasehold.worker.processors import ProcessorHandler
from leasehold.worker.settings import Checkpointing

TIMEOUT_S = 20


def make() -> Consumer:
    return Consumer(stream="orders", application="billing", max_records=7)


def test_a_decorated_function_is_unchanged() -> None:
    """With and without parentheses, it can be called and tested like any function."""
    consumer = make()

    @consumer.batch(max_wait="2s")
    def save(batch: Batch) -> None: ...

    bare = make()

    @bare.batch
    async def save_async(batch: Batch) -> None: ...

    assert consumer._handler == BatchHandler(save)
    assert (consumer._handling.batch.max_records, consumer._handling.batch.max_wait.seconds) == (7, 2)
    assert bare._handler == BatchHandler(save_async)


def test_a_processor_has_manual_checkpoints() -> None:
    """Only the class knows which records are done."""
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
def test_a_processor_refuses_options_for_automatic_checkpoints(options: HandlingOptions, named: str) -> None:
    """They would have no effect, and the error says so."""
    with pytest.raises(ConfigError, match=f"{named}.*a processor checkpoints manually"):
        make().processor(**options)(RecordProcessor)


def test_a_processor_refuses_a_consumer_with_automatic_checkpoint_settings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever the setting comes from, it would have no effect."""
    with pytest.raises(ConfigError, match=r"checkpoint_records=5.*from the settings of the consumer"):
        Consumer(stream="orders", application="billing", checkpoint_records=5).processor(RecordProcessor)
    monkeypatch.setenv("LEASEHOLD_CHECKPOINT_EVERY", "1s")
    with pytest.raises(ConfigError, match="checkpoint_every"):
        make().processor(RecordProcessor)


def test_a_processor_accepts_manual_checkpoints() -> None:
    """The option says what a processor does anyway."""
    consumer = make()
    consumer.processor(checkpoint="manual", max_records=3)(RecordProcessor)
    assert consumer._handling.checkpoints.checkpoint is Checkpointing.MANUAL
    assert consumer._handling.batch.max_records == 3


def test_one_consumer_has_one_handler() -> None:
    """A second handler is refused, because it would get no records."""
    consumer = make()
    consumer.batch(print)
    with pytest.raises(ConfigError, match="already"):
        consumer.batch(print)
    with pytest.raises(ConfigError, match="already"):
        consumer.processor(RecordProcessor)


def test_a_consumer_without_a_handler_does_not_run() -> None:
    """The error says how to set a handler."""
    with pytest.raises(ConfigError, match="decorate a function"):
        make().run()
    with pytest.raises(ConfigError, match="decorate a function"):
        asyncio.run(make().serve())


def test_run_and_serve_raise_errors_of_the_connection() -> None:
    """A mistake in the settings that only `connect` can find is raised by `run` and `serve`."""
    for start in (Consumer.run, lambda consumer: asyncio.run(consumer.serve())):
        consumer = Consumer(stream="orders", application="billing", dead_letters="/nowhere/letters.jsonl")
        consumer.batch(print)
        with pytest.raises(ConfigError, match="create it first"):
            start(consumer)


async def _until_stopped(stop: asyncio.Event) -> BaseException | None:
    await stop.wait()
    return None


def test_an_engine_can_be_stopped_at_any_time() -> None:
    """Before its start, while it runs, after its end, and twice."""
    early = EngineThread(_until_stopped)
    early.stop()
    early.start()
    assert early.finished.result(TIMEOUT_S) is None
    engine = EngineThread(_until_stopped)
    engine.start()
    engine.stop()
    engine.stop()
    assert engine.finished.result(TIMEOUT_S) is None
    engine._thread.join(TIMEOUT_S)
    engine.stop()


def test_an_engine_returns_reasons_and_raises_bugs() -> None:
    """A reason to stop is the result of the future, and a bug is its exception."""

    async def give_reason(stop: asyncio.Event) -> BaseException | None:
        return SystemExit(3)

    async def break_down(stop: asyncio.Event) -> BaseException | None:
        raise AssertionError("a bug")

    with_reason, broken = EngineThread(give_reason), EngineThread(break_down)
    for engine in (with_reason, broken):
        engine.start()
    assert isinstance(with_reason.finished.result(TIMEOUT_S), SystemExit)
    with pytest.raises(AssertionError, match="a bug"):
        broken.finished.result(TIMEOUT_S)


def test_signal_handlers_are_restored() -> None:
    """Afterwards the signals have their former handlers."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    stops: list[bool] = []
    with stop_on_signals(lambda: stops.append(True)):
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)  # `timeout` sends two signals for one request
    assert stops == [True]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == before


def test_a_second_request_ends_the_process() -> None:
    """At least a second after the first one; by the signal, as if there were no handler."""
    program = (
        "import signal, time; from leasehold.worker.engine.engine_thread import SAME_REQUEST_S, stop_on_signals\n"
        "with stop_on_signals(lambda: None):\n"
        "    signal.raise_signal(signal.SIGINT); time.sleep(SAME_REQUEST_S + 0.1); signal.raise_signal(signal.SIGTERM)"
    )
    done = subprocess.run([sys.executable, "-c", program], timeout=TIMEOUT_S, check=False)
    assert done.returncode == -signal.SIGTERM


def test_signal_handlers_are_unchanged_outside_of_the_main_thread() -> None:
    """A consumer may run in any thread. Then the program has to stop it."""
    before = signal.getsignal(signal.SIGTERM)
    seen: list[object] = []

    def run() -> None:
        with stop_on_signals(lambda: None):
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(TIMEOUT_S)
    assert seen == [before]
