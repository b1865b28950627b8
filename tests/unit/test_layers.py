"""The house keeps its shape: imports go one way, and the core reaches neither clock, network, thread nor chance."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src" / "leasehold"
# Each may import itself and what stands before it; `worker` and `local` do not know each other.
LAYERS = (
    "errors",
    "settings",
    "core",
    "ports",
    "columns",
    "adapters",
    "fleet",
    "worker",
    "archive",
    "spark",
    "local",
    "simulation",
    "testing",
    "cli",
)
STRANGERS = {
    ("local", "worker"),
    ("local", "archive"),
    ("local", "spark"),
    ("testing", "local"),
    ("simulation", "local"),
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
    """Full names of what a module imports, at any place in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _layer(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_go_one_way(path: Path) -> None:
    """A module imports only from its own layer and from those below it."""
    here = _layer(path)
    if here == "__init__":
        return  # the facade may name everything
    for name in _imports(path):
        if not name.startswith("leasehold."):
            continue
        there = name.split(".")[1]
        assert LAYERS.index(there) <= LAYERS.index(here), f"{path.name} imports {name}"
        assert (here, there) not in STRANGERS, f"{path.name} imports {name}"


@pytest.mark.parametrize(
    "path", [path for path in MODULES if _layer(path) == "core"], ids=lambda path: path.name
)
def test_the_core_has_no_effects(path: Path) -> None:
    """Nothing under core imports a module that touches the world."""
    found = {name.split(".")[0] for name in _imports(path)} & EFFECTS
    assert not found


@pytest.mark.parametrize(
    "path", [path for path in MODULES if _layer(path) == "fleet"], ids=lambda path: path.name
)
def test_the_fleet_reaches_the_world_through_ports(path: Path) -> None:
    """Only tasks and a random source that is passed in; time, sockets and threads come through the ports."""
    found = {name.split(".")[0] for name in _imports(path)} & EFFECTS
    assert found <= {"asyncio", "random"}


# The parts of the worker that are not in the simulator: processes, threads, files, and how they are put together.
OUTER_WORKER = {
    "connecting.py",
    "consumer.py",
    "dead_letters.py",
    "engine.py",
    "engine_calls.py",
    "user_code.py",
}
INNER = [
    path
    for path in MODULES
    if _layer(path) in {"core", "fleet"} or (_layer(path) == "worker" and path.name not in OUTER_WORKER)
]


@pytest.mark.parametrize("path", INNER, ids=lambda path: str(path.relative_to(SOURCE)))
def test_one_seed_decides_everything(path: Path) -> None:
    """What the simulator runs knows no time but its clock, no thread, no socket, no chance but what it is given."""
    allowed = {"asyncio", "logging", "os", "pathlib", "random"}
    assert {name.split(".")[0] for name in _imports(path)} & EFFECTS <= allowed
    tree = ast.parse(path.read_text(encoding="utf-8"))
    reached = [
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    ]
    chance = [name for name in reached if name.startswith("random.") and name != "random.Random"]
    waiting = [name for name in reached if name in {"asyncio.sleep", "asyncio.timeout", "asyncio.wait_for"}]
    threads = [name for name in reached if name in {"asyncio.to_thread", "asyncio.open_connection"}]
    assert (chance, waiting, threads) == ([], [], [])
