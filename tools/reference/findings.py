"""The findings of `leasehold explain`: code, severity, meaning."""

from leasehold.core.finding import FINDING_KINDS
from tools.reference.tables import markdown_table


def table() -> str:
    """All codes, in the order of the code."""
    rows = ((f"`{code}`", kind.severity, kind.text, kind.source) for code, kind in FINDING_KINDS.items())
    return markdown_table(("code", "severity", "meaning", "where it is seen"), rows)
