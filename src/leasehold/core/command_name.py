"""The names of commands that take part in a fleet as members: `leasehold release` and `leasehold reset`.

Such a member serves no shard, and sends heartbeats only for leases that it holds. So others must not take it for a
worker: while it waits for an owner, nothing shows whether it still runs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from leasehold.core.model import WorkerId

_NAME: Final = re.compile(r"leasehold-(release|reset)-(.+):([0-9]+):[0-9a-f]{8}(?:\.[0-9]+)?")


@dataclass(frozen=True, slots=True)
class CommandName:
    """A command, and the process that runs it."""

    command: str
    host: str
    process: str

    def __str__(self) -> str:
        return f"the command `leasehold {self.command}` (process {self.process} on {self.host})"


def command_member(command: str, unique: str) -> WorkerId:
    """The name of a command as a member. `unique` is host, process and a random part, as `new_worker_id` makes it."""
    return WorkerId(f"leasehold-{command}-{unique}")


def request_name(member: WorkerId, number: int) -> WorkerId:
    """The name of a command's request for a lease: each request after the first has another one.

    >>> request_name(WorkerId("leasehold-reset-host-1:17:0a1b2c3d"), 2)
    'leasehold-reset-host-1:17:0a1b2c3d.2'
    """
    return member if number == 1 else WorkerId(f"{member}.{number}")


def parse_command(worker: WorkerId | None) -> CommandName | None:
    """The command with this name; None if it is a worker.

    >>> str(parse_command(WorkerId("leasehold-reset-host-1:17:0a1b2c3d")))
    'the command `leasehold reset` (process 17 on host-1)'
    >>> str(parse_command(WorkerId("leasehold-reset-host-1:17:0a1b2c3d.2")))
    'the command `leasehold reset` (process 17 on host-1)'
    """
    found = None if worker is None else _NAME.fullmatch(worker)
    return None if found is None else CommandName(*found.groups())
