"""Tables on a terminal that is too narrow for them."""

import re

import pytest

from leasehold.cli.output import print_table

SHARDS = [f"shardId-{number:012}" for number in range(12)]
COLUMNS = ("shard", "owner", "now", "new", "effect")


def printed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A terminal of 80 columns, as rich sees it."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize("stream", ["", "123456789012:a-stream-with-a-long-name:1700000000:"])
def test_the_end_of_each_shard_id_is_shown(capsys: pytest.CaptureFixture[str], stream: str) -> None:
    owner, now = (
        "worker-host-17.example.internal:4711:0a1b2c3d",
        "record 49590338271490256608559692538361571095921",
    )
    rows = [(f"{stream}{shard}", owner, now, now, "12 min 4 s of records come again") for shard in SHARDS]
    print_table(COLUMNS, rows)
    lines = printed(capsys)
    assert all(len(line) <= 80 for line in lines)
    assert [line.split()[0][-20:] for line in lines[1:]] == SHARDS
    assert all(line.split()[0].startswith(stream[:1]) for line in lines[1:])


@pytest.mark.usefixtures("terminal")
def test_shards_in_other_columns_differ_too(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([*"abcdefghi"], [(shard, *[shard] * 8) for shard in SHARDS])
    assert len({line.split()[-1] for line in printed(capsys)[1:]}) == len(SHARDS)


def test_nothing_is_cut_in_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(COLUMNS, [(SHARDS[0], "w" * 150, "1", "22", "x" * 150)])
    assert printed(capsys)[1].split() == [SHARDS[0], "w" * 150, "1", "22", "x" * 150]
