"""Makes mutants of a module: copies of its source with one small change each.

A mutant changes a comparison, `and`, `or`, `not`, an arithmetic operator, a number, a boolean, a condition, `min` or
`any`, or deletes a call or an assignment, or an entry of a tuple or dictionary that is passed by keyword, such as a
condition of a write. Annotations, docstrings, decorators and logging calls are not changed.
"""

from __future__ import annotations

import ast
import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

_COMPARISONS: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.Mult,
}
_FUNCTIONS: Final = {"min": "max", "max": "min", "any": "all", "all": "any"}
# The text of messages is not checked by tests, and these calls only report.
_REPORTS: Final = frozenset({"debug", "info", "warning", "error", "exception"})

Change = Callable[[ast.AST], ast.AST]


@dataclass(frozen=True, slots=True)
class Mutant:
    """One changed copy of a module. `name` stays the same when lines above it are added or removed."""

    path: str
    function: str
    line: int
    statement: tuple[
        int, int
    ]  # the first and the last line of the innermost statement that contains the change
    change: str
    number: int  # among the mutants of the module

    @property
    def name(self) -> str:
        return f"{self.path} {self.function}: {self.change}"


def mutants_of(file: Path, path: str) -> Iterator[Mutant]:
    """Every mutant of a module. `path` is its name in reports."""
    seen: Counter[str] = Counter()
    for number, (place, change) in enumerate(_possible_changes(_parse(file))):
        text = _describe(place.node, change)
        seen[f"{place.function}: {text}"] += 1
        times = seen[f"{place.function}: {text}"]
        numbered = text if times == 1 else f"{text} ({times})"
        yield Mutant(path, place.function, place.node.lineno, place.statement, numbered, number)


def trees_of(mutant: Mutant, file: Path) -> tuple[ast.Module, ast.Module]:
    """The original tree of the module, and the changed one. Lines have the same numbers in both."""
    tree = _parse(file)
    place, change = next(islice(_possible_changes(tree), mutant.number, None))
    return tree, _apply(tree, place.node, change)


def source_of(mutant: Mutant, file: Path) -> str:
    """The changed source of a mutant."""
    return ast.unparse(trees_of(mutant, file)[1])


def _parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def _possible_changes(tree: ast.Module) -> Iterator[tuple[_Place, Change]]:
    return ((place, change) for place in _places(tree) for change in _changes(place.node))


@dataclass(frozen=True, slots=True)
class _Place:
    node: ast.expr | ast.stmt
    function: str
    statement: tuple[int, int]


def _places(tree: ast.Module) -> Iterator[_Place]:
    """The nodes that may be changed, each with the function that contains it."""

    def walk(node: ast.AST, function: str, statement: tuple[int, int]) -> Iterator[_Place]:
        for name, value in ast.iter_fields(node):
            if name in {"annotation", "returns", "decorator_list", "type_comment", "bases"}:
                continue
            for child in value if isinstance(value, list) else [value]:
                if not isinstance(child, ast.AST) or _is_ignored(child):
                    continue
                inner = function
                if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    inner = child.name if function == "<module>" else f"{function}.{child.name}"
                lines = _lines(child) if isinstance(child, ast.stmt) else statement
                if isinstance(child, ast.expr | ast.stmt):
                    yield _Place(child, inner, lines)
                yield from walk(child, inner, lines)

    return walk(tree, "<module>", (1, 1))


def _lines(statement: ast.stmt) -> tuple[int, int]:
    """The lines of a statement; of one with a body, only its head."""
    body = getattr(statement, "body", None) or getattr(statement, "cases", None)
    if not body:
        return statement.lineno, statement.end_lineno or statement.lineno
    first = body[0].pattern.lineno if isinstance(body[0], ast.match_case) else body[0].lineno
    return statement.lineno, max(statement.lineno, first - 1)


def _is_ignored(node: ast.AST) -> bool:
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.AnnAssign):
        return False
    is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    return is_text or (isinstance(node, ast.Expr) and _reports(node.value))


def _reports(node: ast.expr) -> bool:
    call = node.value if isinstance(node, ast.Await) else node
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _REPORTS


def _changes(node: ast.expr | ast.stmt) -> Iterator[Change]:
    match node:
        case ast.Compare(ops=[op]) if type(op) in _COMPARISONS:
            yield _set("ops", [_COMPARISONS[type(op)]()])
        case ast.Compare(ops=[first, second]) if type(first) in _COMPARISONS and type(second) in _COMPARISONS:
            yield _set("ops", [_COMPARISONS[type(first)](), second])
            yield _set("ops", [first, _COMPARISONS[type(second)]()])
        case ast.BoolOp(op=ast.And()):
            yield _set("op", ast.Or())
        case ast.BoolOp(op=ast.Or()):
            yield _set("op", ast.And())
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield _become(operand)
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            yield _set("op", _OPERATORS[type(op)]())
        case ast.Constant(value=bool(value)):
            yield _set("value", not value)
        case ast.Constant(value=int(value)):
            yield _set("value", value + 1)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test) if _is_plain(test):
            yield _set("test", ast.UnaryOp(ast.Not(), test))
        case ast.Expr(value=ast.Await() | ast.Call()) | ast.AugAssign():
            yield _become(ast.Pass())
        case ast.Assign(targets=[ast.Attribute()]):
            yield _become(ast.Pass())
        case ast.Call(func=ast.Name(id=name), args=[*_]) if name in _FUNCTIONS:
            yield _set("func", ast.Name(_FUNCTIONS[name], ast.Load()))
        case ast.Call(keywords=keywords):
            for position, keyword in enumerate(keywords):
                yield from (_drop_entry(position, entry) for entry in range(_count_entries(keyword.value)))


def _count_entries(value: ast.expr) -> int:
    match value:
        case ast.Tuple(elts=entries) | ast.Dict(values=entries):
            return len(entries)
    return 0


def _drop_entry(position: int, entry: int) -> Change:
    def change(node: ast.AST) -> ast.AST:
        assert isinstance(node, ast.Call)
        keyword = node.keywords[position]
        match keyword.value:
            case ast.Tuple(elts=entries, ctx=context):
                keyword.value = ast.Tuple([*entries[:entry], *entries[entry + 1 :]], context)
            case ast.Dict(keys=keys, values=values):
                keyword.value = ast.Dict(
                    [*keys[:entry], *keys[entry + 1 :]], [*values[:entry], *values[entry + 1 :]]
                )
        return node

    return change


def _is_plain(test: ast.expr) -> bool:
    return isinstance(test, ast.Name | ast.Attribute | ast.Call | ast.NamedExpr | ast.Await)


def _set(field: str, value: object) -> Change:
    def change(node: ast.AST) -> ast.AST:
        setattr(node, field, value)
        return node

    return change


def _become(other: ast.AST) -> Change:
    return lambda node: ast.copy_location(other, node)


def _apply(tree: ast.Module, target: ast.AST, change: Change) -> ast.Module:
    """A copy of the tree in which the target is changed."""
    path = _path_to(tree, target)
    mutated = copy.deepcopy(tree)
    parent: ast.AST = mutated
    for field, index in path[:-1]:
        value = getattr(parent, field)
        parent = value if index is None else value[index]
    field, index = path[-1]
    value = getattr(parent, field)
    if index is None:
        setattr(parent, field, change(value))
    else:
        value[index] = change(value[index])
    return ast.fix_missing_locations(mutated)


def _path_to(tree: ast.AST, target: ast.AST) -> list[tuple[str, int | None]]:
    for field, value in ast.iter_fields(tree):
        children = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        for index, child in children:
            if child is target:
                return [(field, index)]
            if isinstance(child, ast.AST) and (below := _path_to(child, target)):
                return [(field, index), *below]
    return []


def _describe(node: ast.expr | ast.stmt, change: Change) -> str:
    changed = change(copy.deepcopy(node))
    if isinstance(node, ast.Call) and isinstance(changed, ast.Call):
        for before, after in zip(node.keywords, changed.keywords, strict=True):
            if ast.dump(before.value) != ast.dump(after.value):
                return (
                    f"{_short(node.func)}({before.arg}=...): {_short(before.value)} -> {_short(after.value)}"
                )
    return f"{_short(node)} -> {_short(changed)}"


def _short(node: ast.AST) -> str:
    if isinstance(node, ast.If | ast.While):
        return f"{type(node).__name__.lower()} {ast.unparse(node.test)}"
    return " ".join(ast.unparse(ast.fix_missing_locations(node)).split())[:110]
