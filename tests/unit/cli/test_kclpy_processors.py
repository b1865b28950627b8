"""`leasehold run --kclpy` and `[run] processor`: what they need, and what they refuse."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from leasehold.cli.command import leasehold
from leasehold.cli.kclpy_processors import ProcessorOptions, make_processor_consumer, parse_options
from leasehold.cli.run import AWS_LOGGERS
from leasehold.errors import ConfigError

LOGGERS = (None, *AWS_LOGGERS)
CONSUMER = '[consumer]\nstream = "orders"\napplication = "billing"\n[run]\n'


@pytest.fixture(autouse=True)
def levels() -> Iterator[None]:
    """Restore the levels and the output of the log after a test: a command configures them."""
    root = logging.getLogger()
    before, handlers = [logging.getLogger(name).level for name in LOGGERS], list(root.handlers)
    yield
    for name, level in zip(LOGGERS, before, strict=True):
        logging.getLogger(name).setLevel(level)
    for handler in set(root.handlers) - set(handlers):
        root.removeHandler(handler)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (
            ("app:consumer", "--kclpy", "app:Processor"),
            2,
            "With --kclpy give one of --config and --properties",
        ),
        (("app:consumer", "--restart-failed"), 2, "--restart-failed need --kclpy"),
        (("--kclpy", "nothing_here:Processor"), 1, "module nothing_here is neither in"),
        (
            ("--kclpy", "needs_kclpy:Processor"),
            1,
            "give --kclpy-alias (kclpy_alias = true), or install amazon_kclpy",
        ),
        (
            ("--config", "typo.toml"),
            1,
            "restart_faild is not a setting of a processor: did you mean restart_failed?",
        ),
        (("--config", "no_flag.toml"), 1, "[run] restart_failed='perhaps': expected true or false"),
        (("--config", "both.toml"), 1, 'or with processor = "module:Class"'),
        (
            ("--config", "no_class.toml"),
            1,
            "a record processor is a class, or a function that makes one, not 5",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_a_wrong_processor_is_refused_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: int, text: str
) -> None:
    """Before any lease is taken."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "needs_kclpy.py").write_text("from amazon_kclpy import kcl\n")
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "kclpy_app_of_this_test.py").write_text("five = 5\n")
    name = "kclpy_app_of_this_test:five"
    for file, run in {
        "typo.toml": f'processor = "{name}"\nrestart_faild = true',
        "no_flag.toml": f'processor = "{name}"\nrestart_failed = "perhaps"',
        "both.toml": f'processor = "{name}"\nhandler = "{name}"',
        "no_class.toml": f'processor = "{name}"',
    }.items():
        (tmp_path / file).write_text(CONSUMER + run)
    done = CliRunner().invoke(leasehold, ["run", *arguments])
    assert done.exit_code == code
    assert text in " ".join(done.output.split())


def test_the_settings_come_from_either_file(tmp_path: Path) -> None:
    """The TOML file of `leasehold run`, or the properties file of the KCL."""
    toml, properties = tmp_path / "app.toml", tmp_path / "app.properties"
    toml.write_text(CONSUMER + 'processor = "a:b"\n')
    properties.write_text("applicationName=a\nstreamName=s\nexecutableName=x\nmaxRecords=7\n")
    first = make_processor_consumer(dict, ProcessorOptions(), config=toml, properties=None)
    assert first.settings.identity.stream == "orders"
    second = make_processor_consumer(dict, ProcessorOptions(), config=None, properties=properties)
    assert second.settings.handling.batch.max_records == 7
    assert parse_options({"restart_failed": True}, "x.toml") == ProcessorOptions(restart_failed=True)
    with pytest.raises(ConfigError, match="not a setting of a processor"):
        parse_options({"color": 1}, "x.toml")
