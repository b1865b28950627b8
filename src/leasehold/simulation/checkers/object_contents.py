"""An archived object is never replaced, and every attempt to write it has the same records."""

from __future__ import annotations

from leasehold.simulation.checkers.base import Checker
from leasehold.simulation.environment.archived_objects import ArchivedObject, read_archived_object
from leasehold.simulation.environment.objects import Put


class ObjectsAreNeverReplaced(Checker):
    """Compares the object before and after each put."""

    promise = "objects-are-never-replaced"

    def object_put(self, put: Put, stored: ArchivedObject | None) -> None:  # noqa: ARG002 - part of the hook
        if put.before is not None and put.after is not put.before:
            self.report(f"{put.by.name} replaced {put.key}")


class NamesHaveOneContent(Checker):
    """Compares the records of each put with the records of the object that has its name."""

    promise = "names-have-one-content"

    def object_put(self, put: Put, stored: ArchivedObject | None) -> None:
        if stored is None or put.body == put.after:
            return
        again = read_archived_object(put.key, put.body)
        if again is None or again.records != stored.records:
            self.report(f"{put.by.name} has other records for {put.key} than an earlier attempt")
