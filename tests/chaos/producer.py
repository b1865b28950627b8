"""A producer at a steady pace, in a thread of its own. It reshards when told to, and talks to Kinesis directly."""

import threading
from dataclasses import dataclass, field

from tests.fleet.record_producer import RecordProducer


@dataclass
class Producer:
    """Puts records every second until it is stopped; half of them are aggregated."""

    production: RecordProducer
    records_per_s: int
    failure: BaseException | None = None
    _reshards_wanted: int = 0
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)
        self._thread.start()

    def reshard(self) -> None:
        """Split or merge before the next records."""
        self._reshards_wanted += 1

    def stop(self) -> None:
        """Put no more. Safe to call twice."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stop.wait(1.0):
                while self._reshards_wanted:
                    self.production.reshard()
                    self._reshards_wanted -= 1
                self.production.put(self.records_per_s // 2, self.records_per_s // 2)
        except Exception as error:  # noqa: BLE001 - `stop` raises it again, in the thread that can do something about it
            self.failure = error
