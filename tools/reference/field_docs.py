"""Reads the docstring of each field of a class: the text below it, and lines such as `Unit: bytes` at its end."""

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

_NOTE: Final = re.compile(r"^(Unit|Default|KCL): (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class FieldDoc:
    """What the docstring of a field says. `default` is empty if the value itself says it."""

    text: str
    unit: str = ""
    default: str = ""
    kcl: tuple[str, ...] = ()


def field_docs(kind: type) -> Mapping[str, FieldDoc]:
    """The docstrings of the fields of a class, by name. Fields without a docstring are left out."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    assert isinstance(tree, ast.ClassDef)
    return dict(_found(tree))


def _found(tree: ast.ClassDef) -> Iterator[tuple[str, FieldDoc]]:
    for statement, following in zip(tree.body, tree.body[1:], strict=False):
        match statement, following:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                yield name, _parsed(inspect.cleandoc(text))


def _parsed(text: str) -> FieldDoc:
    notes = dict(_NOTE.findall(text))
    kcl = tuple(name.strip() for name in notes.get("KCL", "").split(",") if name.strip())
    sentences = " ".join(_NOTE.sub("", text).split())
    return FieldDoc(sentences, notes.get("Unit", ""), notes.get("Default", ""), kcl)
