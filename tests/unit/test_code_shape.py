"""Functions are short and take few parameters, classes have few attributes, and generators close what they iterate."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src" / "leasehold"
LINES_MAX = 50
PARAMETERS_MAX = 7
ATTRIBUTES_MAX = 12

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> list[Path]:
    """Every module of the package."""
    return sorted(SOURCE.rglob("*.py"))


def functions(tree: ast.AST) -> Iterator[Function]:
    """Every function and method of a module."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def count_lines(function: Function) -> int:
    """The lines of a function without decorators and docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return (function.end_lineno or 0) - body[0].lineno + 1 if body else 0


def count_parameters(function: Function) -> int:
    """The parameters without `self` and `cls`."""
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in {"self", "cls"}])


def attributes(node: ast.ClassDef) -> set[str]:
    """The attributes that a class declares in its body or assigns in its methods."""
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    assigned = {
        target.attr
        for function in functions(node)
        for statement in ast.walk(function)
        if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign)
        for target in assigned_targets(statement)
        if isinstance(target.value, ast.Name) and target.value.id == "self"
    }
    return declared | assigned


def assigned_targets(statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[ast.Attribute]:
    """The attributes that a statement assigns."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return (node for target in targets for node in ast.walk(target) if isinstance(node, ast.Attribute))


def gives_a_reason(node: ast.ClassDef) -> bool:
    """Whether the docstring of a class explains why it has many attributes."""
    return "attribute" in (ast.get_docstring(node) or "").lower()


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_module_keeps_the_limits(path: Path) -> None:
    """A value class with more attributes gives the reason in its docstring."""
    tree = ast.parse(path.read_text())
    long = [each.name for each in functions(tree) if count_lines(each) > LINES_MAX]
    wide = [each.name for each in functions(tree) if count_parameters(each) > PARAMETERS_MAX]
    large = [
        f"{node.name}: {len(attributes(node))}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and len(attributes(node)) > ATTRIBUTES_MAX
        and not gives_a_reason(node)
    ]
    assert (long, wide, large) == ([], [], [])


def test_the_limits_are_measured() -> None:
    """The measurements see a class that breaks every limit."""
    names = [f"a{number}" for number in range(13)]
    body = "\n".join(f"        self.{name} = {name}" for name in names)
    lines = "\n".join("        pass" for _ in range(51))
    tree = ast.parse(
        f"class C:\n    def f(self, {', '.join(names)}):\n{body}\n    def g(self):\n        'Doc.'\n{lines}\n"
    )
    (node,) = tree.body
    assert isinstance(node, ast.ClassDef)
    first, second = functions(tree)
    assert (count_parameters(first), count_lines(second), len(attributes(node))) == (13, 51, 13)
    assert not gives_a_reason(node)


# The listing of a library, which is no generator.
CLOSED_BY_ITS_LIBRARY = {("obstore_objects.py", "list_after")}


def may_end_early(node: ast.AsyncFor) -> bool:
    """Whether the body of a loop can leave it before its end. A cancelled task leaves it at any `await` or `yield`."""
    leaving = ast.Yield | ast.Await | ast.Break | ast.Return | ast.Raise
    return any(isinstance(each, leaving) for statement in node.body for each in ast.walk(statement))


def names_closed_at_the_end(function: Function) -> set[str]:
    """The names that `async with` binds in a function."""
    return {
        item.optional_vars.id
        for node in ast.walk(function)
        if isinstance(node, ast.AsyncWith)
        for item in node.items
        if isinstance(item.optional_vars, ast.Name)
    }


def loops_left_open(tree: ast.AST) -> set[str]:
    """The functions with a loop over a generator that nobody closes if the loop ends early."""
    return {
        function.name
        for function in functions(tree)
        for node in ast.walk(function)
        if isinstance(node, ast.AsyncFor) and may_end_early(node)
        if not (isinstance(node.iter, ast.Name) and node.iter.id in names_closed_at_the_end(function))
    }


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(SOURCE)))
def test_a_loop_closes_the_generator_that_it_iterates(path: Path) -> None:
    """A generator that is dropped is closed by a task of the event loop, after an unknown time or never."""
    found = loops_left_open(ast.parse(path.read_text()))
    assert {name for name in found if (path.name, name) not in CLOSED_BY_ITS_LIBRARY} == set()


def test_loops_that_leave_a_generator_open_are_found() -> None:
    """The measurement tells the two ways to iterate apart."""
    source = """
async def leaves():
    async for each in pages():
        yield each
async def closes():
    async with aclosing(pages()) as found:
        async for each in found:
            yield each
async def runs_to_the_end():
    async for each in pages():
        print(each)
"""
    assert loops_left_open(ast.parse(source)) == {"leaves"}
