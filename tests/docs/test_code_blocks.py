"""The code blocks of the documentation are valid: Python compiles, TOML and JSON parse, commands and options exist."""

import json
import re
import shlex
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from leasehold.cli.command import leasehold

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "examples").glob("*.md"))]
BLOCK = re.compile(r"^(?P<indent> *)```(?P<language>\w+)\n(?P<body>.*?)^ *```", re.MULTILINE | re.DOTALL)


def blocks(language: str) -> Iterator[tuple[str, str]]:
    """The blocks of a language, each with the name of its page and its line."""
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for block in BLOCK.finditer(text):
            if block["language"] == language:
                line = text.count("\n", 0, block.start()) + 1
                yield f"{page.relative_to(ROOT)}:{line}", textwrap.dedent(block["body"])


@pytest.mark.parametrize(("place", "code"), list(blocks("python")), ids=lambda value: value[:40])
def test_python_compiles(place: str, code: str) -> None:
    """A block may use names that the page explains, but it is a program."""
    compile(code, place, "exec", flags=0x2000)  # top-level await is allowed: PyCF_ALLOW_TOP_LEVEL_AWAIT


@pytest.mark.parametrize(("place", "code"), list(blocks("toml")), ids=lambda value: value[:40])
def test_toml_parses(place: str, code: str) -> None:
    """A reader can save the block as a file."""
    assert tomllib.loads(code), place


@pytest.mark.parametrize(("place", "code"), list(blocks("json")), ids=lambda value: value[:40])
def test_json_parses(place: str, code: str) -> None:
    """Each block is one document."""
    assert json.loads(code), place


def test_commands_and_options_exist() -> None:
    """Every `leasehold` command at a prompt names an existing command with existing options."""
    checked = 0
    for place, code in blocks("console"):
        for words in _commands(code):
            command, rest = _resolve(words)
            assert command is not leasehold or not rest or rest[0].startswith("-"), (
                f"{place}: no command {rest[0]}"
            )
            known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)} | {
                "--help"
            }
            unknown = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in known]
            assert unknown == [], f"{place}: {' '.join(words)}"
            checked += 1
    assert checked > 50


def _commands(code: str) -> Iterator[list[str]]:
    """The commands after a prompt, without comments, redirections and what a pipe feeds."""
    for line in re.sub(r"\\\n\s*", " ", code).splitlines():
        if line.startswith("$ leasehold "):
            text = re.split(r"\s[&|>#]|\s\d>", line.removeprefix("$ leasehold "))[0]
            yield shlex.split(text)


def _resolve(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words name, and the rest of them."""
    command: click.Command = leasehold
    context = click.Context(leasehold)
    while words and isinstance(command, click.Group) and (found := command.get_command(context, words[0])):
        command, words = found, words[1:]
    return command, words


def test_no_block_installs_the_package_of_another_project() -> None:
    """On PyPI, our name belongs to another project. Blocks install from a checkout or from a wheel."""
    blocks_and_files = [
        (page.name, match["body"]) for page in PAGES for match in BLOCK.finditer(page.read_text())
    ]
    images = [*(ROOT / "examples").glob("*ockerfile*"), *(ROOT / "deploy").rglob("*ockerfile*")]
    blocks_and_files += [(path.name, path.read_text()) for path in images]
    by_name = re.compile(r"pip install [^\n]*(?<![\w/.-])leasehold(?![\w/-])")
    assert len(images) > 0
    assert [place for place, text in blocks_and_files if by_name.search(text)] == []
