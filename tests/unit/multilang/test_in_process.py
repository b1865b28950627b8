"""Record processors of kclpy run in this process as they do in theirs, with kclpy's own module or with ours."""

import asyncio
import io
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from leasehold import Consumer
from leasehold.core.events import LeaseLost
from leasehold.kclpy import dispatch, kcl, messages
from leasehold.kclpy.v2 import processor as v2
from leasehold.kclpy.v3 import processor as v3
from leasehold.multilang.in_process_client import InProcessProcessors
from leasehold.multilang.shard_consumer import MultiLangHandler
from leasehold.testing import ConsumerRun, consume
from leasehold.worker.user_code.handler_runners import ThreadedRunners
from tests.unit.worker.worker_world import WorkerWorld

DATA = [b"a", b"b", b"c"]


def run(
    make: Callable[[], Any], *, end_shards: bool = True, limit: str = "2m", **options: Any
) -> ConsumerRun:
    consumer = Consumer(
        stream="orders",
        application="billing",
        max_records=2,
        max_wait=0,
        retry_initial_wait="10ms",
        cooldown_after_failure="1s",
    )
    consumer.deliver_to(MultiLangHandler(clients=InProcessProcessors(make, **options)))
    return consume(consumer, DATA, end_shards=end_shards, limit=limit)


class V1(kcl.RecordProcessorBase):
    """Records its calls."""

    calls: list[str]

    def initialize(self, shard_id: str) -> None:
        self.calls.append(f"initialize {shard_id}")

    def process_records(self, records: list[messages.Record], checkpointer: Any) -> None:
        self.calls.append("records " + "".join(record.get("data") for record in records))
        checkpointer.checkpoint(records[-1]["sequenceNumber"])

    def shutdown(self, checkpointer: Any, reason: str) -> None:
        self.calls.append(reason)
        if reason == "TERMINATE":
            checkpointer.checkpoint()

    def shutdown_requested(self, checkpointer: Any) -> None:
        self.calls.append("shutdown requested")


class V2(v2.RecordProcessorBase):
    """Records its calls."""

    calls: list[str]

    def initialize(self, initialize_input: messages.InitializeInput) -> None:
        self.calls.append(f"initialize {initialize_input.shard_id}")

    def process_records(self, process_records_input: messages.ProcessRecordsInput) -> None:
        self.calls.append("records " + "".join(each.data for each in process_records_input.records))
        assert process_records_input.checkpointer is not None
        process_records_input.checkpointer.checkpoint()

    def shutdown(self, shutdown_input: messages.ShutdownInput) -> None:
        self.calls.append(shutdown_input.reason)
        if shutdown_input.reason == "TERMINATE":
            shutdown_input.checkpointer.checkpoint()
        else:
            with pytest.raises(kcl.CheckpointError, match="not allowed when the lease is lost"):
                shutdown_input.checkpointer.checkpoint()
            self.calls.append("refused")


class V3(v3.RecordProcessorBase):
    """Records its calls."""

    calls: list[str]

    def initialize(self, initialize_input: messages.InitializeInput) -> None:
        self.calls.append(f"initialize {initialize_input.shard_id}")

    def process_records(self, process_records_input: messages.ProcessRecordsInput) -> None:
        self.calls.append("records " + "".join(each.data for each in process_records_input.records))

    def lease_lost(self, lease_lost_input: messages.LeaseLostInput) -> None:
        self.calls.append("lease lost")

    def shard_ended(self, shard_ended_input: messages.ShardEndedInput) -> None:
        self.calls.append("shard ended")
        assert shard_ended_input.checkpointer is not None
        shard_ended_input.checkpointer.checkpoint()

    def shutdown_requested(self, shutdown_requested_input: messages.ShutdownRequestedInput) -> None:
        self.calls.append("shutdown requested")
        assert shutdown_requested_input.checkpointer is not None
        shutdown_requested_input.checkpointer.checkpoint()


@pytest.mark.parametrize(
    ("kind", "end"), [(V1, ["TERMINATE"]), (V2, ["TERMINATE"]), (V3, ["shard ended"])], ids=["v1", "v2", "v3"]
)
def test_a_processor_of_each_version_to_the_end_of_its_shard(kind: type[Any], end: list[str]) -> None:
    """The calls and their order are those of kclpy."""
    calls: list[str] = []
    kind.calls = calls
    assert run(kind).is_done
    first = calls[: 3 + len(end)]
    assert first == ["initialize shardId-000000000000", "records YQ==Yg==", "records Yw==", *end]


def test_a_stop_of_a_processor_of_version_2() -> None:
    """`shutdown_requested` is optional, and a lost lease refuses checkpoints with kclpy's sentence."""
    V2.calls = []
    assert run(V2, end_shards=False).is_done
    assert V2.calls[-2:] == ["ZOMBIE", "refused"]


def test_errors_of_a_checkpoint_have_the_names_of_the_kcl() -> None:
    """In `initialize` there is no checkpointer; positions must be delivered and not move back."""
    errors: list[str] = []

    class Curious(V3):
        def _try(self, checkpointer: Any, *position: Any) -> None:
            try:
                checkpointer.checkpoint(*position)
            except kcl.CheckpointError as error:
                errors.append(error.value)
            else:
                errors.append("")

        def process_records(self, process_records_input: messages.ProcessRecordsInput) -> None:
            checkpointer, last = process_records_input.checkpointer, process_records_input.records[-1]
            if not errors:
                number = int(last.sequence_number)
                for position in ((str(number + 1),), ("x",), (number, 0), (last.sequence_number, -1), ("1",)):
                    self._try(checkpointer, *position)

    Curious.calls = []
    run(Curious)
    assert errors == ["IllegalArgumentException"] * 2 + [""] + ["IllegalArgumentException"] * 2


def test_what_a_processor_raises_is_logged_and_ignored(caplog: pytest.LogCaptureFixture) -> None:
    """As in kclpy. The log has no message, which may contain a payload."""
    payload = "top-secret"  # not in the line that raises, because the traceback shows that

    class Fails(V3):
        def process_records(self, process_records_input: messages.ProcessRecordsInput) -> None:
            super().process_records(process_records_input)
            raise ValueError(payload)

    Fails.calls = []
    assert run(Fails).is_done
    assert Fails.calls[:4] == [
        "initialize shardId-000000000000",
        "records YQ==Yg==",
        "records Yw==",
        "shard ended",
    ]
    assert "processRecords raised ValueError at" in caplog.text
    assert payload not in caplog.text


@pytest.mark.parametrize("error", [ValueError, SystemExit])
def test_a_processor_that_fails_begins_again_from_its_checkpoint(error: type[BaseException]) -> None:
    """After SystemExit always, after another error if asked for: no record is skipped."""
    failures = [1, 2]

    class Fails(V1):
        def process_records(self, records: list[messages.Record], checkpointer: Any) -> None:
            if records[0].binary_data == b"c" and failures:
                failures.pop()
                raise error
            super().process_records(records, checkpointer)

    Fails.calls = []
    assert run(Fails, restart_failed=error is ValueError).is_done
    assert [call for call in Fails.calls if "shardId-000000000000" in call or "records" in call] == [
        "initialize shardId-000000000000",
        "records YQ==Yg==",
        "initialize shardId-000000000000",
        "initialize shardId-000000000000",
        "records Yw==",
    ]


def test_a_processor_that_is_working_when_its_lease_is_lost(caplog: pytest.LogCaptureFixture) -> None:
    """Its checkpoints get ShutdownException to the end of the call, as in kclpy. Then it is told, and may fail."""
    errors: list[str] = []

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        world = WorkerWorld(runners=ThreadedRunners(loop))

        class Works(V2):
            def process_records(self, process_records_input: messages.ProcessRecordsInput) -> None:
                asyncio.run_coroutine_threadsafe(world.steal_lease(), loop).result()
                assert process_records_input.checkpointer is not None
                calls_after_the_loss = 0
                while calls_after_the_loss < 5:
                    calls_after_the_loss += bool(worker.events_of(LeaseLost))
                    with pytest.raises(kcl.CheckpointError) as caught:
                        process_records_input.checkpointer.checkpoint()
                    errors.append(caught.value.value)
                    time.sleep(0.02)

            def shutdown(self, shutdown_input: messages.ShutdownInput) -> None:
                self.calls.append(shutdown_input.reason)
                raise ValueError

        Works.calls = []
        world.put("a")
        worker = world.start(
            MultiLangHandler(clients=InProcessProcessors(Works)),
            checkpoint="manual",
            max_wait=0,
        )
        await world.until(lambda: "ZOMBIE" in Works.calls)
        await worker.stop_and_wait()

    asyncio.run(asyncio.wait_for(scenario(), 60))
    assert set(errors) == {"ShutdownException"}
    assert "leaseLost raised ValueError at" in caplog.text


def test_a_checkpoint_inside_a_coroutine_waits_as_everywhere() -> None:
    """A processor may run async code of its own; the checkpointer of kclpy knows none."""

    class RunsALoop(V3):
        def process_records(self, process_records_input: messages.ProcessRecordsInput) -> None:
            async def work() -> None:
                assert process_records_input.checkpointer is not None
                process_records_input.checkpointer.checkpoint()
                self.calls.append("stored")

            asyncio.run(work())

    RunsALoop.calls = []
    assert run(RunsALoop, end_shards=False).is_done
    assert RunsALoop.calls.count("stored") == 2


@pytest.mark.parametrize("kind", [V1, V2, V3])
def test_a_processor_that_always_raises_goes_on_to_the_end_of_its_shard(
    kind: type[Any], caplog: pytest.LogCaptureFixture
) -> None:
    """In every method: each error is logged. Only the end of the shard is sent again, until it is stored."""
    attempts: list[str] = []

    class Fails(kind):  # type: ignore[misc]
        def initialize(self, *given: Any) -> None:
            raise ValueError

        def process_records(self, *given: Any) -> None:
            raise ValueError

        def _end(self, end: Callable[..., None], *given: Any) -> None:
            attempts.append("end")
            if len(attempts) < 3:
                raise ValueError
            end(*given)

        def shutdown(self, *given: Any) -> None:
            self._end(super().shutdown, *given)

        def shard_ended(self, *given: Any) -> None:
            self._end(super().shard_ended, *given)

    Fails.calls = []
    assert run(Fails).is_done
    for name in ("initialize", "processRecords", "shardEnded"):
        assert f"{name} raised ValueError at" in caplog.text


def test_a_processor_that_cannot_be_made_is_tried_again() -> None:
    """A class without a version is not one of kclpy's."""
    made: list[object] = []

    def make() -> Any:
        made.append(object())
        return made[-1] if len(made) == 1 else V1()

    V1.calls = []
    assert run(make).is_done


def test_a_record_has_all_members() -> None:
    """By attributes and by the names of the protocol."""
    found: list[Any] = []

    class Keeps(V3):
        def process_records(self, process_records_input: messages.ProcessRecordsInput) -> None:
            found.extend(process_records_input.records)

    Keeps.calls = []
    run(Keeps)
    record = found[0]
    as_json = {name: record[name] for name in (
        "data", "partitionKey", "sequenceNumber", "subSequenceNumber", "approximateArrivalTimestamp", "action",
    )}  # fmt: skip
    ours = dispatch.message_decode(as_json)
    for name in ("binary_data", "data", "partition_key", "sequence_number", "sub_sequence_number",
                 "timestamp_millis", "approximate_arrival_timestamp"):  # fmt: skip
        assert getattr(record, name) == getattr(ours, name)
    with pytest.raises(KeyError):
        record.get("explicitHashKey")


def test_our_process_speaks_the_protocol() -> None:
    """`KCLProcess` on files: a status for each action, also after an error."""
    lines = [
        {"action": "initialize", "shardId": "s", "sequenceNumber": "1", "subSequenceNumber": 0},
        {"action": "shutdownRequested"},
        {
            "action": "checkpoint",
            "sequenceNumber": None,
            "subSequenceNumber": None,
            "error": "ThrottlingException",
        },
        {"action": "leaseLost"},
    ]
    source, output, errors = (
        io.StringIO("".join(json.dumps(line) + "\n" for line in lines)),
        io.StringIO(),
        io.StringIO(),
    )
    V3.calls = []
    kcl.KCLProcess(V3(), source, output, errors).run()
    written = [json.loads(line) for line in output.getvalue().split("\n") if line]
    assert [each.get("responseFor") for each in written] == [
        "initialize",
        None,
        "shutdownRequested",
        "leaseLost",
    ]
    assert "CheckpointError: 'ThrottlingException'" in errors.getvalue()
    with pytest.raises(dispatch.MalformedAction):
        dispatch.message_decode({"action": "shutdown"})


def test_the_alias_is_installed_only_if_asked_for_and_not_over_the_real_package(tmp_path: Path) -> None:
    """In a fresh interpreter."""
    code = """
import sys, leasehold.kclpy.kcl
assert 'amazon_kclpy' not in sys.modules
from leasehold.kclpy.alias import install_alias
install_alias(); install_alias()
from amazon_kclpy import kcl
from amazon_kclpy.v3 import processor
from amazon_kclpy.checkpoint_error import CheckpointError
assert kcl.CheckpointError is CheckpointError is leasehold.kclpy.kcl.CheckpointError
"""
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)
    (tmp_path / "helper.py").write_text("from amazon_kclpy.v3.processor import RecordProcessorBase as Base\n")
    (tmp_path / "app.py").write_text(
        "from amazon_kclpy import kcl\n"
        "from helper import Base\n"
        "class Silent(Base):\n"
        "    def initialize(self, initialize_input): pass\n"
        "kcl.KCLProcess(Silent()).run()\n"
    )
    line = '{"action":"initialize","shardId":"s","sequenceNumber":"1","subSequenceNumber":0}\n'
    command = [sys.executable, "-m", "leasehold.kclpy", "app.py"]
    told = subprocess.run(command, cwd=tmp_path, input=line, capture_output=True, text=True, check=True)
    assert json.loads(told.stdout) == {"action": "status", "responseFor": "initialize"}
    (tmp_path / "amazon_kclpy").mkdir()
    (tmp_path / "amazon_kclpy" / "__init__.py").touch()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "amazon_kclpy is installed, so its imports need no alias" in done.stderr
