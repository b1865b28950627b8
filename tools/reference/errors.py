"""The errors of the package, with what each is a kind of."""

import inspect
from collections.abc import Iterator

from leasehold import errors
from leasehold.errors import LeaseholdError
from tools.reference.tables import code_list, markdown_table


def table() -> str:
    """All errors, in the order of the code."""
    return markdown_table(("error", "is a", "meaning"), _rows())


def _rows() -> Iterator[tuple[str, ...]]:
    for name, kind in vars(errors).items():
        if isinstance(kind, type) and issubclass(kind, LeaseholdError):
            bases = [base.__name__ for base in kind.__bases__ if base is not Exception]
            yield f"`{name}`", code_list(bases), inspect.getdoc(kind) or ""
