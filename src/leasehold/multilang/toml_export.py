"""Writes translated properties as the TOML file of `leasehold run`, with a comment for each key without a setting."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import PurePath
from typing import Final

from leasehold.multilang.kcl_properties import KclProperties, consumer_options

_WIDTH: Final = 100


def to_toml(properties: KclProperties, source: str) -> str:
    r"""Return the text of the file. `source` names the properties file in a comment.

    >>> print(to_toml(KclProperties(settings={"stream": "orders"}, command=("app.py",)), "x.properties"))
    # Written by `leasehold import-properties x.properties`.
    [consumer]
    max_records = 10000
    max_bytes = 10485760
    max_wait = "0s"
    stream = "orders"
    <BLANKLINE>
    [run]
    # executableName = app.py: the processor runs in this process. Check the name of its class. For a
    # program in another language, keep the properties file and use `leasehold multilang`.
    processor = "app:RecordProcessor"
    <BLANKLINE>
    """
    return "\n".join([f"# Written by `leasehold import-properties {source}`.", *_lines(properties), ""])


def _lines(properties: KclProperties) -> Iterator[str]:
    yield "[consumer]"
    for name, value in consumer_options(properties).items():
        # A JSON string, number or boolean is one of TOML, too.
        yield f"{name} = {json.dumps(value, ensure_ascii=False)}"
    for note in properties.notes:
        yield from _comment(str(note))
    yield from ("", "[run]")
    yield from _comment(
        f"executableName = {' '.join(properties.command)}: the processor runs in this process. Check the name of its "
        "class. For a program in another language, keep the properties file and use `leasehold multilang`."
    )
    yield f'processor = "{_module_of(properties.command)}:RecordProcessor"'
    if properties.with_empty_batches:
        yield "empty_batches = true"
    if properties.timeout_s is not None:
        yield from _comment(
            f"timeoutInSeconds = {properties.timeout_s:g}: a thread cannot be killed. A shard without progress is "
            "given up after stalled_after."
        )


def _module_of(command: tuple[str, ...]) -> str:
    scripts = [PurePath(part).stem for part in command if part.endswith(".py")]
    return scripts[0] if scripts and scripts[0].isidentifier() else "my_module"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
        break_on_hyphens=False,
    )
