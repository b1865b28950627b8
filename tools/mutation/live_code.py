"""Gives the functions of an imported module the code of a mutant.

A warm process has imported every module and test, so a mutant costs a fork instead of imports. Other modules hold
references to the functions, therefore the functions stay, and only their code changes.
"""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType

# The file, the qualified name, and the first line of a function.
CodeKey = tuple[str, str, int]


class CannotReplaceError(Exception):
    """The mutant changes code that ran at import, so the module must be imported again."""


class LiveFunctions:
    """All functions of this process, found once: later, objects are hidden from the garbage collector."""

    def __init__(self) -> None:
        self._functions: defaultdict[CodeKey, list[FunctionType]] = defaultdict(list)
        for each in gc.get_objects():
            if isinstance(each, FunctionType):
                self._functions[_key(each.__code__)].append(each)

    def replace(self, file: str, original: ast.Module, mutated: ast.Module) -> None:
        """Change every function whose code differs between the two trees of a file."""
        for before, after in _changed_code(file, original, mutated):
            functions = self._functions.get(_key(before), [])
            if not functions:
                raise CannotReplaceError(before.co_qualname)
            for function in functions:
                if len(function.__code__.co_freevars) != len(after.co_freevars):
                    raise CannotReplaceError(before.co_qualname)
                function.__code__ = after


def _changed_code(
    file: str, original: ast.Module, mutated: ast.Module
) -> Iterator[tuple[CodeType, CodeType]]:
    """The outermost functions that differ. Functions within them are made again when the outer one runs."""
    befores, afters = _code_by_key(file, original), _code_by_key(file, mutated)
    if befores.keys() != afters.keys():
        raise CannotReplaceError(file)
    for key, before in befores.items():
        after = afters[key]
        if before == after:
            continue
        if _own_parts(before) != _own_parts(after) and not _is_function(before):
            raise CannotReplaceError(before.co_qualname)
        if _is_function(before):
            yield before, after


def _code_by_key(file: str, tree: ast.Module) -> Mapping[CodeKey, CodeType]:
    found: dict[CodeKey, CodeType] = {}

    def walk(code: CodeType) -> None:
        key = _key(code)
        if key in found:  # two lambdas or comprehensions in one line
            found[key] = found[key].replace(co_consts=(*found[key].co_consts, code))
        else:
            found[key] = code
        if not _is_function(code):
            for inner in code.co_consts:
                if isinstance(inner, CodeType):
                    walk(inner)

    walk(compile(tree, file, "exec"))
    return found


def _is_function(code: CodeType) -> bool:
    is_optimized = 0x1  # CO_OPTIMIZED: set for functions, not for the bodies of modules and classes
    return bool(code.co_flags & is_optimized)


def _own_parts(code: CodeType) -> tuple[object, ...]:
    """What a body of a module or class contains, without the functions in it."""
    constants = tuple(each for each in code.co_consts if not isinstance(each, CodeType))
    return (code.co_code, constants, code.co_names)


def _key(code: CodeType) -> CodeKey:
    return (code.co_filename, code.co_qualname, code.co_firstlineno)
