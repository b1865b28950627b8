"""`leasehold run`: a worker from the command line, its consumer found by name or made from a file."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys
import tomllib
import traceback
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import click

from leasehold.errors import ConfigError
from leasehold.worker.consumer import Consumer

LOG_FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
LEVELS: Final = ("debug", "info", "warning", "error")


@click.command()
@click.argument("target", required=False, metavar="[MODULE:CONSUMER]")
@click.option(
    "--config",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Settings and handler from this TOML file.",
)
@click.option(
    "--log-level",
    type=click.Choice(LEVELS, case_sensitive=False),
    default="info",
    show_default=True,
    help="How much is logged, to stderr.",
)
def run(*, target: str | None, config: Path | None, log_level: str) -> None:
    """Run a worker.

    It consumes until SIGTERM or SIGINT; then it drains, checkpoints, releases its leases and exits with 0.

    MODULE:CONSUMER names a Consumer in a module of the current directory or of an installed package. With --config
    the consumer is made from the file, whose table [run] names the handler: handler = "module:function".
    """
    if (target is None) == (config is None):
        raise click.UsageError("Name one of the two: MODULE:CONSUMER or --config FILE.")
    logging.basicConfig(level=log_level.upper(), format=LOG_FORMAT)
    consumer = _consumer_named(target) if target is not None else _consumer_from(Path(str(config)))
    consumer.run()


def _consumer_named(target: str) -> Consumer:
    found = load_target(target)
    if not isinstance(found, Consumer):
        raise ConfigError(
            f"{target} is {_kind(found)}, not a Consumer: name the variable that holds the consumer"
        )
    return found


def _consumer_from(config: Path) -> Consumer:
    handler_name = _handler_name(config)
    consumer = Consumer(config=config)
    handler = load_target(handler_name)
    if not callable(handler):
        raise ConfigError(
            f"{config} [run] handler={handler_name!r} is {_kind(handler)}, not a function or class"
        )
    is_processor = inspect.isclass(handler)
    if is_processor:
        consumer.processor(handler)
    else:
        consumer.batch(handler)
    return consumer


def _handler_name(config: Path) -> str:
    try:
        content = tomllib.loads(config.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {config} is not TOML: {error}") from error
    table = content.get("run")
    name = table.get("handler") if isinstance(table, dict) else None
    if not isinstance(name, str):
        raise ConfigError(f'configuration file {config}: expected [run] with handler = "module:function"')
    unknown = [key for key in content["run"] if key != "handler"]
    if unknown:
        raise ConfigError(
            f"configuration file {config} [run] {unknown[0]} is no setting: there is only handler"
        )
    return name


def load_target(target: str) -> Any:
    """The thing that `module:name` names, looked for in the current directory first."""
    module_name, _, path = target.partition(":")
    if not module_name or not path:
        raise ConfigError(f"{target!r}: expected MODULE:NAME, for example billing:consumer")
    found: Any = _module(module_name)
    for name in path.split("."):
        found = _attribute(found, name, target)
    return found


def _module(name: str) -> ModuleType:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ConfigError(
                f"module {name} is neither in {folder} nor installed: check the name, or change to its folder"
            ) from error
        raise ConfigError(_import_problem(name, error)) from error
    except Exception as error:
        raise ConfigError(_import_problem(name, error)) from error


def _import_problem(name: str, error: Exception) -> str:
    """Where it happened, which is what a traceback would be read for."""
    if isinstance(error, SyntaxError):
        return f"module {name} cannot be imported: {error.msg} ({error.filename}, line {error.lineno})"
    last = traceback.extract_tb(error.__traceback__)[-1]
    kind = type(error).__name__
    return f"module {name} cannot be imported: {kind}: {error} ({last.filename}, line {last.lineno})"


def _attribute(owner: Any, name: str, target: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError as error:
        near = get_close_matches(name, [each for each in dir(owner) if not each.startswith("_")], n=1)
        hint = f"did you mean {near[0]}?" if near else "check the name"
        raise ConfigError(f"{target}: there is no {name!r}: {hint}") from error


def _kind(found: object) -> str:
    return f"a {type(found).__name__}"
