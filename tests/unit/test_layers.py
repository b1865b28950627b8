"""Imports go one way, `core` has no effects, and simulated code uses neither real time nor threads."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src" / "leasehold"

# From low to high. A module belongs to the longest entry that its dotted name begins with. It may import its own layer
# and every layer above it in this list, except where SEPARATE forbids it.
LAYERS = (
    "errors",
    "config",
    "core",
    "core.records",
    "core.events",
    "core.shards",
    "core.leases",
    "core.coordinator",
    "core.assignment",
    "core.exactly_once",
    "core.observing",
    "core.steering",
    "core.supervision",
    "kinesis_model",
    "ports",
    "tasks",
    "adapters",
    "fleet.table",
    "fleet.reading",
    "garbage_collection",
    "memory_allocation",
    "loop_thread",
    "wiring",
    "fleet.operations",
    "fleet.streams",
    "fleet.lease_writer",
    "fleet.shard_activity",
    "fleet.held_lease",
    "fleet.table_contact",
    "fleet.read_health",
    "fleet.heartbeat_loop",
    "fleet.held_leases",
    "fleet.rare_facts",
    "fleet.finding_watch",
    "fleet.maintenance",
    "fleet.assignment",
    "fleet",
    "archive",
    "worker.user_code",
    "worker.dead_letters",
    "worker.settings",
    "worker.stream_lists",
    "worker.batching",
    "worker.checkpointing",
    "worker.batch",
    "worker.delivery",
    "worker.engine",
    "worker.processes",
    "worker",
    "kclpy",
    "multilang",
    "spark.query_settings",
    "spark.starting_positions",
    "spark.options",
    "spark.dashboard_command",
    "spark.delivery_reports",
    "spark.range_assembly",
    "spark.query",
    "spark",
    "spark.pipeline",
    "local",
    "simulation.virtual_time",
    "simulation.environment",
    "simulation.checkers",
    "simulation",
    "testing",
    "inspection",
    "dashboard",
    "steering",
    "cli",
    "__main__",
)
# The first of each pair never imports the second, although it stands above it.
SEPARATE = {
    ("kinesis_model", "config"),
    ("wiring", "fleet.reading"),
    ("local", "fleet"),
    ("local", "worker"),
    ("local", "archive"),
    ("local", "spark"),
    ("spark", "worker"),
    ("spark", "multilang"),
    ("local", "multilang"),
    ("kclpy", "worker"),
    # These need pyspark.
    ("simulation", "spark.source"),
    ("simulation", "spark.archive_sink"),
    ("simulation", "spark.pipeline"),
    ("simulation", "local"),
    ("testing", "spark"),
    ("testing", "local"),
}
EFFECTS = frozenset(
    [
        "asyncio",
        "boto3",
        "botocore",
        "concurrent",
        "http",
        "logging",
        "multiprocessing",
        "os",
        "pathlib",
        "random",
        "secrets",
        "selectors",
        "signal",
        "socket",
        "sqlite3",
        "subprocess",
        "tempfile",
        "threading",
        "time",
        "urllib",
        "uuid",
    ]
)
MODULES = sorted(SOURCE.rglob("*.py"))


def _imports(path: Path) -> Iterator[str]:
    """The full names of all imported modules, including imports inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from [name for name in submodules if _is_module(name)] or [node.module]


def _is_module(name: str) -> bool:
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.is_dir() or path.with_suffix(".py").exists()


def _name(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")


def _layer(name: str) -> str:
    """The layer of a module, named without its leading `leasehold.`."""
    layers = [layer for layer in LAYERS if _is_in(name, layer)]
    assert layers, f"{name} belongs to no layer: add it to LAYERS"
    return max(layers, key=len)


def _is_in(name: str, layer: str) -> bool:
    return f"{name}.".startswith(f"{layer}.")


def _package(path: Path) -> str:
    return _name(path).split(".", maxsplit=1)[0]


def _is_listed(pairs: set[tuple[str, str]], here: str, there: str) -> bool:
    return any(_is_in(here, first) and _is_in(there, second) for first, second in pairs)


@pytest.mark.parametrize("path", MODULES, ids=_name)
def test_imports_go_one_way(path: Path) -> None:
    """A module imports only its own layer and lower ones."""
    here = _name(path)
    if here in {"__init__", "spark"}:
        return  # the package's public names come from everywhere
    for imported in _imports(path):
        if not imported.startswith("leasehold."):
            continue
        there = imported.removeprefix("leasehold.")
        assert LAYERS.index(_layer(there)) <= LAYERS.index(_layer(here)), f"{here} imports {there}"
        assert not _is_listed(SEPARATE, here, there), f"{here} imports {there}"


def test_every_layer_exists() -> None:
    """A layer that was renamed or removed leaves this list too."""
    missing = [layer for layer in LAYERS if not _is_module(f"leasehold.{layer}")]
    assert not missing


@pytest.mark.parametrize(
    "path", [path for path in MODULES if _package(path) in {"core", "kinesis_model"}], ids=_name
)
def test_core_has_no_effects(path: Path) -> None:
    """Neither `core` nor the model of Kinesis imports a clock, a network, a thread or a random source."""
    found = {name.split(".")[0] for name in _imports(path)} & EFFECTS
    assert not found


@pytest.mark.parametrize("path", [path for path in MODULES if _package(path) == "fleet"], ids=_name)
def test_fleet_has_effects_only_through_ports(path: Path) -> None:
    """`fleet` uses tasks and a random source that is passed in; time, sockets and threads come through ports."""
    found = {name.split(".")[0] for name in _imports(path)} & EFFECTS
    assert found <= {"asyncio", "random"}


# The parts that do not run in the simulator: processes, threads, files, pyspark, and wiring.
NOT_SIMULATED = {
    "archive.archive",  # its default for `in_thread` is a thread
    "archive.reading",
    "archive.shard_rows",  # likewise
    "archive.compaction",  # likewise
    "archive.verification",
    "spark.archive_sink",
    "spark.archive_compaction",
    "spark.registration",
    "spark.source",
    "spark.query.driver",
    "spark.query.driver_lock",
    "spark.query.task_reader",  # the simulator runs its FetchWindow
    "spark.query.task_resources",
    "spark.query.time_range_read",
    "worker.consumer",
    "worker.dead_letters",
    "worker.engine.engine_thread",
    "worker.processes.member_link",
    "worker.processes.member_process",
    "worker.user_code.engine_calls",
    "worker.user_code.handler_runners",
}
SIMULATED = [
    path
    for path in MODULES
    if _package(path) in {"core", "kinesis_model", "tasks", "fleet", "worker", "archive", "spark"}
    and _name(path) not in NOT_SIMULATED
    and not _is_in(_name(path), "spark.pipeline")
]


@pytest.mark.parametrize("path", SIMULATED, ids=_name)
def test_simulated_code_is_deterministic(path: Path) -> None:
    """The simulated code uses the clock and the random source that it is given, and no thread or socket."""
    allowed = {"asyncio", "logging", "os", "pathlib", "random"}
    assert {name.split(".")[0] for name in _imports(path)} & EFFECTS <= allowed
    tree = ast.parse(path.read_text(encoding="utf-8"))
    used = [
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    randomness = [name for name in used if name.startswith("random.") and name != "random.Random"]
    waits = [name for name in used if name in {"asyncio.sleep", "asyncio.timeout", "asyncio.wait_for"}]
    threads = [name for name in used if name in {"asyncio.to_thread", "asyncio.open_connection"}]
    assert (randomness, waits, threads) == ([], [], [])
