"""Loads the consumer of `leasehold run` and of a replay: a variable of a module, or built from a TOML file."""

from __future__ import annotations

import importlib
import inspect
import sys
import tomllib
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from leasehold.cli.option_values import check_target
from leasehold.config.did_you_mean import did_you_mean
from leasehold.errors import ConfigError
from leasehold.kclpy.alias import NAME as KCLPY
from leasehold.worker.consumer import Consumer


def load_consumer(target: str | None, config: Path | None) -> Consumer:
    """Load a consumer by name, or build it from a file."""
    return _load_consumer(target) if target is not None else _build_consumer(Path(str(config)))


def _load_consumer(target: str) -> Consumer:
    found = load_target(target)
    if not isinstance(found, Consumer):
        raise ConfigError(
            f"{target} is {_describe_type(found)}, not a Consumer: name the variable that contains the consumer"
        )
    return found


def _build_consumer(config: Path) -> Consumer:
    table = _read_run_table(config)
    if "processor" in table:
        from leasehold.cli.kclpy_processors import make_processor_consumer, parse_options  # noqa: PLC0415 - rarely needed

        # First the options: the alias must exist before the module is imported.
        options = parse_options({key: table[key] for key in table if key != "processor"}, str(config))
        return make_processor_consumer(
            load_target(table["processor"]), options, config=config, properties=None
        )
    handler_name = table["handler"]
    consumer = Consumer(config=config)
    handler = load_target(handler_name)
    if not callable(handler):
        raise ConfigError(
            f"{config} [run] handler={handler_name!r} is {_describe_type(handler)}, not a function or class"
        )
    is_processor = inspect.isclass(handler)
    if is_processor:
        consumer.processor(handler)
    else:
        consumer.batch(handler)
    return consumer


def _read_run_table(config: Path) -> dict[str, Any]:
    """Return the table [run]: with `handler` alone, or with `processor` and its options."""
    try:
        content = tomllib.loads(config.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"configuration file {config} is not TOML: {error}") from error
    table = content.get("run")
    named = [
        key for key in ("handler", "processor") if isinstance(table, dict) and isinstance(table.get(key), str)
    ]
    if not isinstance(table, dict) or len(named) != 1:
        raise ConfigError(
            f'configuration file {config}: expected [run] with handler = "module:function", or with '
            'processor = "module:Class"'
        )
    unknown = [key for key in table if key != "handler"]
    if named == ["handler"] and unknown:
        raise ConfigError(
            f"configuration file {config} [run] {unknown[0]} is not a setting: the only setting is handler"
        )
    return table


def load_target(target: str) -> Any:
    """Import `module:name`, from the current directory first."""
    check_target(target)
    module_name, _, path = target.partition(":")
    found: Any = _import_module(module_name)
    for name in path.split("."):
        found = _get_attribute(found, name, target)
    return found


def _import_module(name: str) -> ModuleType:
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
        raise ConfigError(_describe_import_error(name, error)) from error
    except Exception as error:
        raise ConfigError(_describe_import_error(name, error)) from error


def _describe_import_error(name: str, error: Exception) -> str:
    """Describe the error and where it was raised, instead of a traceback."""
    if isinstance(error, SyntaxError):
        return f"module {name} cannot be imported: {error.msg} ({error.filename}, line {error.lineno})"
    last = traceback.extract_tb(error.__traceback__)[-1]
    kind = type(error).__name__
    is_kclpy = isinstance(error, ModuleNotFoundError) and (error.name or "").startswith(KCLPY)
    remedy = f": give --kclpy-alias (kclpy_alias = true), or install {KCLPY}" if is_kclpy else ""
    return f"module {name} cannot be imported: {kind}: {error} ({last.filename}, line {last.lineno}){remedy}"


def _get_attribute(owner: Any, name: str, target: str) -> Any:
    try:
        return getattr(owner, name)
    except AttributeError as error:
        public = [each for each in dir(owner) if not each.startswith("_")]
        hint = did_you_mean(name, public, otherwise="check the name")
        raise ConfigError(f"{target}: there is no {name!r}: {hint}") from error


def _describe_type(found: object) -> str:
    return f"a {type(found).__name__}"
