"""Every planted bug can be planted: the code that it patches exists. tests/simulation checks that each is caught."""

import pytest

from tests.simulation.planted_bugs import PLANTED_BUGS, PlantedBug


@pytest.mark.parametrize("planted_bug", PLANTED_BUGS.values(), ids=lambda planted_bug: planted_bug.name)
def test_a_planted_bug_can_be_planted(planted_bug: PlantedBug) -> None:
    """A renamed function must be renamed in tests/simulation/planted_bugs.py, too."""
    with planted_bug.plant():
        pass
