"""A producer with a steady rate, in its own thread. It reaches Kinesis without a proxy."""

import threading
from dataclasses import dataclass, field

from tests.fleet.record_producer import RecordProducer


@dataclass
class SteadyProducer:
    """Puts records every second until it is stopped. Half of them are aggregated. Reshards on request."""

    producer: RecordProducer
    records_per_s: int
    failure: BaseException | None = None
    _requested_reshards: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._thread.start()

    def reshard(self) -> None:
        """Request a split or a merge before the next records."""
        self._requested_reshards += 1

    def stop(self) -> None:
        """Stop, and raise the error of the thread if it has failed. May be called twice."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stop.wait(1.0):
                while self._requested_reshards:
                    self.producer.reshard()
                    self._requested_reshards -= 1
                self.producer.put(self.records_per_s // 2, self.records_per_s // 2)
        except Exception as error:  # noqa: BLE001 - `stop` raises it again in the main thread
            self.failure = error
