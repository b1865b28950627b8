"""`leasehold archive read`, with columns that a program has changed."""

from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
from click.testing import CliRunner, Result

from leasehold.archive import Archive, ArchiveSettings
from leasehold.archive.rows import PinnedRange
from leasehold.cli.command import leasehold
from tests.unit.archive.archive_world import A, records, run, table

ROWS = table(records([1, 2]))


def read(folder: Path, rows: Any, *options: str) -> Result:
    archive = Archive.open(ArchiveSettings(url=str(folder)))
    run(archive.write([PinnedRange(A, "one", rows)]))
    return CliRunner().invoke(leasehold, ["archive", "read", str(folder), *options])


def with_data(values: Any) -> Any:
    return ROWS.set_column(ROWS.column_names.index("data"), "data", values)


def test_payloads_that_are_text_are_printed(tmp_path: Path) -> None:
    rows = with_data(pa.array(["one", None]))
    assert read(tmp_path, rows, "--raw").stdout_bytes == b"one\n\n"
    found = [orjson.loads(line) for line in read(tmp_path, rows, "--text").stdout_bytes.splitlines()]
    assert [each["data"] for each in found] == ["one", None]


def test_an_archive_without_payloads_is_an_error_that_says_so(tmp_path: Path) -> None:
    rows = ROWS.drop_columns(["data"])
    result = read(tmp_path, rows, "--raw")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "have no column 'data': read them without --raw" in result.stderr
    assert len(read(tmp_path, rows, "--text").stdout.splitlines()) == 2


def test_payloads_of_another_type_are_an_error_that_says_so(tmp_path: Path) -> None:
    result = read(tmp_path, with_data(pa.array([1, 2])), "--raw")
    assert result.exit_code == 1
    assert "column 'data' is of type int64" in result.stderr


def test_a_column_of_the_records_is_not_replaced(tmp_path: Path) -> None:
    rows = with_data(pa.array([b"one", b"\xff"])).append_column("dataBase64", pa.array(["a", "b"]))
    found = [orjson.loads(line) for line in read(tmp_path, rows, "--text").stdout_bytes.splitlines()]
    assert [(each["data"], each["dataBase64"], each["_dataBase64"]) for each in found] == [
        ("one", "a", None),
        (None, "b", "/w=="),
    ]
