"""Every scenario file of lease writes, on every store: memory, SQLite, DynamoDB Local, ministack."""

import asyncio
import base64
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from leasehold import errors
from leasehold.core.leases.lease_row import KEY, lease_from_row
from leasehold.core.leases.row_writes import Row, are_equal
from leasehold.core.model import HashRange, Lease, LeaseSessionId, Shard, ShardId, WorkerId, lease_key
from leasehold.core.position import TRIM_HORIZON, Position
from leasehold.core.shards.lease_creation import CreateChildren
from leasehold.fleet.table.lease_table import Contended, LeaseTable
from tests.contract.lease_scenarios import Scenario, load
from tests.contract.lease_stores import ALL, create_filled, new_location

SCENARIOS = load()


@pytest.mark.parametrize("kind", ALL)
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_lease_write(scenario: Scenario, kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The write has the expected result, and changes no other row."""
    asyncio.run(_run_scenario(scenario, request, kind, tmp_path))


async def _run_scenario(scenario: Scenario, request: pytest.FixtureRequest, kind: str, folder: Path) -> None:
    location = new_location(request, kind, folder)
    before = [row for row in (scenario.before, *scenario.others) if row is not None]
    store = await create_filled(location.open, before)
    table = LeaseTable(store)
    lease = lease_from_row(scenario.seen)
    try:
        if scenario.error is not None:
            with pytest.raises(getattr(errors, scenario.error)):
                await _write(table, lease, scenario)
        else:
            outcome = await _write(table, lease, scenario)
            assert _is_refusal(outcome) == scenario.refused
            if isinstance(outcome, Lease):
                assert scenario.after is not None
                assert outcome == lease_from_row(scenario.after)
            if isinstance(outcome, Contended):
                assert outcome.current == (lease_from_row(scenario.before) if scenario.before else None)
        expected = [row for row in (scenario.after, *scenario.others_after) if row is not None]
        assert_same_rows(await store.scan(), expected)
    finally:
        await table.close()


async def _write(table: LeaseTable, lease: Lease, scenario: Scenario) -> Any:
    arguments = {name: _argument(lease, name, value) for name, value in scenario.arguments.items()}
    if scenario.operation == "set_children":
        arguments["children"] = frozenset(scenario.arguments["children"])
    elif scenario.operation == "finish":
        arguments["plan"] = arguments.pop("children")
    return await getattr(table, scenario.operation)(lease, **arguments)


def _argument(parent: Lease, name: str, value: Any) -> Any:
    match name:
        case "by" | "to":
            return WorkerId(value)
        case "session":
            return LeaseSessionId(value)
        case "at" | "end":
            return Position(*value)
        case "nudge":
            return str(value)
        case "generation":
            return tuple(value)
        case "state":
            return base64.b64decode(value)
        case "throughput_kbps":
            return Decimal(value)
        case "hash_range":
            return HashRange(int(value[0]), int(value[1]))
        case "shard":
            keys = HashRange(*map(int, value["hash_range"]))
            return Shard(parent.shard_id, keys, "1", parents=tuple(map(ShardId, value["parents"])))
        case "children":
            new = tuple(_child(parent, child) for child in value if isinstance(child, dict))
            return CreateChildren(new, frozenset(lease.shard_id for lease in new))
        case _:
            raise AssertionError(f"unknown argument {name}")


def _child(parent: Lease, entry: Mapping[str, Any]) -> Lease:
    shard = ShardId(entry["shard"])
    start, end = entry["hash_range"]
    return Lease(
        key=lease_key(shard),
        shard_id=shard,
        checkpoint=TRIM_HORIZON,
        parents=frozenset({parent.shard_id}),
        hash_range=HashRange(int(start), int(end)),
    )


def _is_refusal(outcome: Any) -> bool:
    return outcome is False or isinstance(outcome, Contended)


def assert_same_rows(found: Any, expected: list[Row]) -> None:
    """The table holds exactly these rows, attribute by attribute."""
    by_key = {row[KEY]["S"]: row for row in found}
    assert by_key.keys() == {row[KEY]["S"] for row in expected}
    for row in expected:
        actual = by_key[row[KEY]["S"]]
        assert actual.keys() == row.keys()
        differing = {name for name, value in row.items() if not are_equal(actual[name], value)}
        assert not differing, {name: (actual[name], row[name]) for name in differing}
