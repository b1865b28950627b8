"""The daemon: a consumer whose shards are processed by child processes, as a KCL properties file says."""

from __future__ import annotations

import logging
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from leasehold.config.java_properties import parse_properties
from leasehold.errors import ConfigError
from leasehold.multilang.child_client import ChildProcesses, ChildSettings
from leasehold.multilang.conversation import ConversationSettings
from leasehold.multilang.kcl_properties import KclProperties, consumer_options, translate_properties
from leasehold.multilang.shard_consumer import MultiLangHandler
from leasehold.worker.consumer import Consumer

LOGGER: Final = logging.getLogger("leasehold.multilang")


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonOptions:
    """What a properties file cannot say."""

    exit_on_failure: bool = False  # a child that fails ends the daemon, as in Java
    legacy_shutdown: bool = False


def read_properties(path: Path) -> KclProperties:
    """Read and translate a properties file."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"properties file {path}: {error.strerror}") from error
    try:
        return translate_properties(parse_properties(content))
    except ConfigError as error:
        raise ConfigError(f"properties file {path}: {error}") from error


def make_daemon(properties: KclProperties, options: DaemonOptions) -> Consumer:
    """Create the consumer that runs the program of the properties for each shard."""
    command = properties.command
    if shutil.which(command[0]) is None:
        raise ConfigError(
            f"executableName: {command[0]} is not a program on the PATH or below the working directory; a script needs "
            "the execute bit and a first line such as #!/usr/bin/env python3"
        )
    children = ChildProcesses(
        ChildSettings(
            command=command,
            conversation=ConversationSettings(
                timeout_s=properties.timeout_s, legacy_shutdown=options.legacy_shutdown
            ),
        )
    )
    consumer = Consumer(**consumer_options(properties))
    consumer.deliver_to(
        MultiLangHandler(
            clients=children,
            with_empty_batches=properties.with_empty_batches,
            stop_at_failure=options.exit_on_failure,
        )
    )
    return consumer


def log_notes(properties: KclProperties) -> None:
    """Log what differs from what the file asks for."""
    for note in properties.notes:
        LOGGER.log(logging.WARNING if note.is_warning else logging.INFO, "properties: %s", note)
