"""docs/spark.md documents every column with its type."""

from pathlib import Path

from leasehold.archive.columns import ALL_COLUMNS, spark_ddl

PAGE = (Path(__file__).parents[2] / "docs" / "spark.md").read_text()


def rows_after(heading: str) -> dict[str, list[str]]:
    """The rows of the table in a section, by the name in their first cell."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("| `")]
    return {row[0].strip(" `"): row[1:] for row in rows}


def test_every_column_is_documented_with_its_type() -> None:
    """The table has the columns in the order of the schema."""
    documented = {name: cells[0].strip() for name, cells in rows_after("Columns").items()}
    assert tuple(documented) == ALL_COLUMNS
    for name, type_ in documented.items():
        assert spark_ddl([name]).startswith(f"{name} {type_}")
