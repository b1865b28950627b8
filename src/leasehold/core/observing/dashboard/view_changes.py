"""The difference between two views: what a browser that has the first one needs to get the second.

A view is a dictionary of JSON values. Its tables (`shards`, `workers`) have a dictionary for each row; in a change such
a row has only the fields that differ, and None for a row that is gone. All other values are sent whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

View = Mapping[str, Any]
TABLES: Final = ("shards", "workers")


def diff_views(before: View, after: View) -> View:
    """The change from one view to the next.

    >>> before = {"at": 1, "shards": {"1": {"lag": 5, "owner": "a"}, "2": {}}}
    >>> diff_views(before, {"at": 2, "shards": {"1": {"lag": 6, "owner": "a"}}})
    {'at': 2, 'shards': {'1': {'lag': 6}, '2': None}}
    """
    change = {
        name: value
        for name, value in after.items()
        if name not in TABLES and (name not in before or before[name] != value)
    }
    for name in TABLES:
        if rows := _diff_rows(before.get(name, {}), after.get(name, {})):
            change[name] = rows
    return change


def apply_change(view: View, change: View) -> View:
    """The view after a change: the inverse of `diff_views`.

    >>> apply_change({"at": 1, "shards": {"1": {"lag": 5, "owner": "a"}}}, {"at": 2, "shards": {"1": {"lag": 6}}})
    {'at': 2, 'shards': {'1': {'lag': 6, 'owner': 'a'}}}
    """
    result = dict(view)
    for name, value in change.items():
        if name not in TABLES:
            result[name] = value
            continue
        rows = dict(view.get(name, {}))
        for key, row in value.items():
            if row is None:
                rows.pop(key, None)
            else:
                rows[key] = {**rows.get(key, {}), **row}
        result[name] = rows
    return result


def _diff_rows(before: Mapping[str, Any], after: Mapping[str, Any]) -> Mapping[str, Any]:
    rows: dict[str, Any] = {}
    for key, row in after.items():
        known = before.get(key)
        if known is None:
            rows[key] = row
        elif known != row:
            rows[key] = {
                field: value for field, value in row.items() if field not in known or known[field] != value
            }
    rows.update(dict.fromkeys(before.keys() - after.keys()))
    return rows
