"""A program that cannot start its worker, or make it, reports it in one sentence."""

import subprocess
import sys
from pathlib import Path

from tests.integration.cli_process import environment

PROGRAM = """
{first}
from leasehold import Consumer
consumer = Consumer(stream="orders", application="billing"{settings})
consumer.batch(print)
consumer.run()
"""


def _run(folder: Path, first: str = "", settings: str = "") -> tuple[int, str]:
    program = PROGRAM.format(first=first, settings=settings)
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(folder), timeout=60, check=False
    )
    return done.returncode, done.stderr


def test_a_missing_region_is_one_sentence(tmp_path: Path) -> None:
    """It names the remedy, and the exit code is 1."""
    code, shown = _run(tmp_path)
    assert code == 1
    assert "Traceback" not in shown
    assert shown.splitlines()[-1].startswith("Error: no region is set for dynamodb: set AWS_DEFAULT_REGION")


def test_a_wrong_setting_is_one_sentence(tmp_path: Path) -> None:
    code, shown = _run(tmp_path, settings=", max_record=5")
    assert (code, shown) == (1, "Error: max_record is not a setting: did you mean max_records?\n")


def test_the_traceback_is_shown_at_debug(tmp_path: Path) -> None:
    level = "import logging; logging.getLogger('leasehold').setLevel('DEBUG')"
    assert "Traceback" in _run(tmp_path, level)[1]


def test_the_hook_of_a_program_is_kept(tmp_path: Path) -> None:
    hook = "import sys; sys.excepthook = lambda *given: sys.stderr.write('my own hook')"
    assert _run(tmp_path, hook)[1].endswith("my own hook")
