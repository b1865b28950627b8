"""A Spark query and its operator: the operator restarts the query, and decides what to do after an error.

An error that no fault explains breaks a promise.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import timedelta
from typing import Final

from leasehold.archive.columns import ARCHIVE_COLUMNS
from leasehold.config.settings import ReadSettings
from leasehold.core.exactly_once.slice_limits import BatchLimits
from leasehold.errors import ConfigError, DataLossError, OffsetMismatchError
from leasehold.simulation.environment.process import SimulatedProcess
from leasehold.simulation.environment.services import APPLICATION
from leasehold.simulation.environment.trace import WORLD
from leasehold.simulation.spark.checkpoint_location import CheckpointLocation, ConcurrentRunError
from leasehold.simulation.spark.driver import DriverSettings, SparkDriver, Trigger
from leasehold.simulation.world import World
from leasehold.spark.options import SourceOptions
from leasehold.spark.query_settings import OnLeasesBehind, QuerySettings

_RESTART_MS: Final = (100, 2_000, 15_000)


class OperatedQuery:
    """One query with one checkpoint location, and every run of it."""

    def __init__(self, world: World) -> None:
        self.is_held = False  # the operator does not restart it
        self.drivers: list[SparkDriver] = []
        self.location = CheckpointLocation()
        self._world = world
        self._rng = world.spec.rng_for("operator")
        self._settings = _draw_driver_settings(self._rng)
        self._trigger_rng = world.spec.rng_for("triggers")
        self._triggers = _draw_triggers(self._trigger_rng)
        self._options = _draw_options(world, self._rng)
        self._backup = CheckpointLocation()
        self._newest: CheckpointLocation | None = None  # set while the backup is in its place
        self._had_two_drivers = False

    @property
    def running(self) -> list[SimulatedProcess]:
        """The processes of drivers that are alive and were not asked to stop."""
        return [
            each.process for each in self.drivers if each.process.is_alive and not each.process.is_stopping
        ]

    def start(self) -> None:
        """Start a driver. Another driver may still be alive."""
        self._had_two_drivers = self._had_two_drivers or any(each.process.is_alive for each in self.drivers)
        settings = replace(self._settings, trigger=self._trigger_rng.choice(self._triggers))
        driver = SparkDriver(self._world, self.location, self._options, settings)
        driver.start()
        self.drivers.append(driver)
        driver.process.on_exit.append(lambda: self._driver_ended(driver))

    def ensure_running(self) -> None:
        """Start a driver, unless one runs."""
        if not self.is_held and not self.running:
            self.start()

    def run_continuously(self) -> None:
        """Start no more bounded runs: between two of them no shard has an owner."""
        self._triggers = (Trigger.CONTINUOUS,)

    def back_up_log(self) -> None:
        """Copy the checkpoint location, as a backup does."""
        if self._newest is None:
            self._backup = self.location.copy()

    def has_old_log(self) -> bool:
        """Return whether the backup lacks batches that are in the log."""
        return self._newest is None and -1 < self._backup.last_batch < self.location.last_batch

    def put_back_old_log(self) -> None:
        """Replace the checkpoint location by the backup, if it is still an old one. No driver may be alive."""
        if not self.has_old_log():
            return
        self._newest, self.location = self.location, self._backup.copy()
        self._world.query.had_old_log = True

    def delete_log(self) -> None:
        """Delete the checkpoint location. No driver may be alive."""
        self.location, self._backup, self._newest = CheckpointLocation(), CheckpointLocation(), None
        self._world.query.may_repeat = True

    def keep_one_driver(self) -> None:
        """Kill all drivers except the newest."""
        for process in self.running[:-1]:
            process.kill()

    def _driver_ended(self, driver: SparkDriver) -> None:
        if driver.error is not None:
            self._react(driver)
        delay_ms = self._rng.choice(_RESTART_MS)
        self._world.services.network.call_later(delay_ms, self.ensure_running)

    def _react(self, driver: SparkDriver) -> None:
        """Do what an operator does who reads the error."""
        match driver.error:
            case OffsetMismatchError():
                self._after_mismatch(driver)
            case DataLossError():
                if not self._world.shards_were_trimmed:
                    self._report(driver, "no record was trimmed")
                self._options = replace(self._options, fail_on_data_loss=False)
            case ConcurrentRunError():
                if not self._had_two_drivers:
                    self._report(driver, "no other driver has run")
            case ConfigError():
                self._report(driver, "the options are right")

    def _after_mismatch(self, driver: SparkDriver) -> None:
        if self._newest is not None and driver.location is self.location:
            self._world.trace.add(WORLD, "restores", "", "the newest copy of the checkpoint location")
            self.location, self._newest = self._newest, None
        elif self._world.rows_were_destroyed:
            choice = self._rng.choice((OnLeasesBehind.OFFSETS, OnLeasesBehind.LEASES))
            self._world.trace.add(WORLD, "sets", "", f"onLeasesBehind={choice.value}")
            self._world.query.may_repeat = True
            self._options = replace(
                self._options, query=replace(self._options.query, on_leases_behind=choice)
            )
        elif not self._had_two_drivers:
            self._report(driver, "neither the log nor the table is old")

    def _report(self, driver: SparkDriver, reason: str) -> None:
        error = driver.error
        detail = f"the query failed with {type(error).__name__} although {reason}: {error}"
        self._world.promises.report("runs-until-stopped", detail)


def _draw_driver_settings(rng: random.Random) -> DriverSettings:
    return DriverSettings(
        executors=rng.randint(1, 3),
        poll_ms=rng.choice((200, 1_000, 4_000)),
        copy_after_ms=rng.choice((None, 300, 2_000)),
        zombie_share=rng.choice((0.0, 0.5)),
        has_pipeline=rng.random() < 0.5,
    )


def _draw_triggers(rng: random.Random) -> tuple[Trigger, ...]:
    """Draw the triggers of the runs before the faults end."""
    bounded = (Trigger.AVAILABLE_NOW, Trigger.AVAILABLE_NOW, Trigger.ONCE, Trigger.CONTINUOUS)
    return bounded if rng.random() < 0.3 else (Trigger.CONTINUOUS,)


def _draw_options(world: World, rng: random.Random) -> SourceOptions:
    limits = BatchLimits(
        records=rng.choice((None, 40, 200)),
        size_bytes=64 * 1024 * 1024,
        arrival_span_ms=rng.choice((None, None, 5_000)),
    )
    identity = world.settings.identity
    assert not callable(identity.streams)
    return SourceOptions(
        stream=identity.stream,
        streams=identity.streams,
        application=APPLICATION,
        query=QuerySettings(
            initial=identity.initial_position,
            poll_every=timedelta(seconds=rng.choice((1, 2))),
        ),
        limits=limits,
        columns=ARCHIVE_COLUMNS,
        partitions=rng.randint(1, 3),
        fleet=world.settings.fleet,
        read=ReadSettings(idle_poll_every=timedelta(seconds=1)),
    )
