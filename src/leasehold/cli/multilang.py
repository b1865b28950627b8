"""`leasehold multilang` and `leasehold import-properties`: for programs that were written for the KCL's daemon."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import click

from leasehold.cli.run import LEVELS, configure_logging
from leasehold.errors import ConfigError
from leasehold.multilang.daemon import DaemonOptions, log_notes, make_daemon, read_properties
from leasehold.multilang.toml_export import to_toml

_ROOT_LEVEL: Final = re.compile(r"<root\s+level\s*=\s*[\"'](\w+)[\"']", re.IGNORECASE)
_LEVELS_OF_LOGBACK: Final = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "error": "error",
}


@click.command()
@click.argument("file", required=False, metavar="[FILE]", type=click.Path(path_type=Path))
@click.option(
    "-p",
    "--properties-file",
    "--properties",
    "properties_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="The properties file; another way to name it.",
)
@click.option(
    "-l",
    "--log-configuration",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A logback file of the Java daemon. Only the level of its root logger is used.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    help="Lowest level to log, to stderr. [default: info]",
)
@click.option(
    "--exit-on-failure",
    is_flag=True,
    help="Stop with exit code 1 if a child fails, as the Java daemon does. Otherwise its shard begins again.",
)
@click.option(
    "--legacy-shutdown",
    is_flag=True,
    help="Send `shutdown` as the daemon 1.x did, for clients of that time.",
)
def multilang(
    *,
    file: Path | None,
    properties_file: Path | None,
    log_configuration: Path | None,
    log_level: str | None,
    **options: Any,
) -> None:
    """Run the MultiLang daemon of the KCL, without Java.

    FILE is the properties file of a KCL for Python, Node, Ruby, .NET or Go. Its executableName is started once for each
    shard, and speaks the MultiLang protocol on its standard input and output. Settings without a key come from the
    LEASEHOLD_* variables.
    """
    path = properties_file or file
    if path is None:
        raise click.UsageError("Give the properties file.")
    level = log_level or _root_level(log_configuration) or "info"
    configure_logging(level.upper(), log_aws=False)
    if properties_file is not None and file is not None:
        click.echo(f"{file} is ignored, because --properties-file is given", err=True)
    properties = read_properties(path)
    log_notes(properties)
    make_daemon(properties, DaemonOptions(**options)).run()


@click.command("import-properties")
@click.argument("file", metavar="FILE", type=click.Path(path_type=Path))
@click.option(
    "--output",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Write to this new file. [default: stdout]",
)
def import_properties(*, file: Path, output: Path | None) -> None:
    """Write the TOML file of `leasehold run` for a properties file of the KCL.

    A comment says for each key without a setting why it has none.
    """
    text = to_toml(read_properties(file), str(file))
    if output is None:
        click.echo(text, nl=False)
        return
    try:
        with output.open("x", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error.strerror}") from error


def _root_level(log_configuration: Path | None) -> str | None:
    """Return the level of the root logger in a logback file."""
    if log_configuration is None:
        return None
    try:
        content = log_configuration.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(f"log configuration {log_configuration}: {error.strerror}") from error
    found = _ROOT_LEVEL.search(content)
    level = _LEVELS_OF_LOGBACK.get(found[1].lower()) if found else None
    if level is None:
        click.echo(f"{log_configuration}: no root level was found, and nothing else of it is used", err=True)
    return level
