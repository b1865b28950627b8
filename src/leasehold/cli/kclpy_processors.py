"""Consumers for record processors of kclpy that run in this process: `leasehold run --kclpy`, and `[run] processor`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from leasehold.config import values
from leasehold.config.did_you_mean import did_you_mean
from leasehold.errors import ConfigError
from leasehold.kclpy.alias import install_alias
from leasehold.multilang.daemon import log_notes, read_properties
from leasehold.multilang.in_process_client import InProcessProcessors
from leasehold.multilang.kcl_properties import consumer_options
from leasehold.multilang.shard_consumer import MultiLangHandler
from leasehold.worker.consumer import Consumer


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessorOptions:
    """How a record processor of kclpy is run. The names are those in the table [run]."""

    kclpy_alias: bool = False  # imports of amazon_kclpy find leasehold.kclpy
    restart_failed: bool = (
        False  # a batch that fails is not skipped: the shard begins again from its checkpoint
    )
    empty_batches: bool = False  # the processor is also called if a read returned no records

    def __post_init__(self) -> None:
        if self.kclpy_alias:  # before user code is imported
            install_alias()


def parse_options(table: Mapping[str, Any], source: str) -> ProcessorOptions:
    """Parse the options in a table [run], besides `processor`."""
    known = [each.name for each in fields(ProcessorOptions)]
    parsed = {}
    for name, value in table.items():
        if name not in known:
            hint = did_you_mean(name, known, otherwise=f"expected {', '.join(known)}")
            raise ConfigError(f"{source} [run] {name} is not a setting of a processor: {hint}")
        try:
            parsed[name] = values.boolean(value)
        except ConfigError as error:
            raise ConfigError(f"{source} [run] {name}={value!r}: {error}") from None
    return ProcessorOptions(**parsed)


def make_processor_consumer(
    make: Any, options: ProcessorOptions, *, config: Path | None, properties: Path | None
) -> Consumer:
    """Create the consumer of a processor. Its settings come from one of the files, and from the environment."""
    if not callable(make):
        raise ConfigError(f"a record processor is a class, or a function that makes one, not {make!r:.100}")
    with_empty_batches = options.empty_batches
    if properties is None:
        consumer = Consumer(config=config)
    else:
        translated = read_properties(properties)
        log_notes(translated)
        with_empty_batches = with_empty_batches or translated.with_empty_batches
        consumer = Consumer(**consumer_options(translated))
    consumer.deliver_to(
        MultiLangHandler(
            clients=InProcessProcessors(make, restart_failed=options.restart_failed),
            with_empty_batches=with_empty_batches,
        )
    )
    return consumer
