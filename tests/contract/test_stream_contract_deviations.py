"""The table of known deviations is itself kept honest."""

from pathlib import Path

from tests.contract.streams import KNOWN_DEVIATIONS


def test_every_declared_deviation_is_asserted_somewhere() -> None:
    """A deviation that no test asks for is a leftover, and would hide the day it is mended."""
    asked = "".join(path.read_text() for path in Path(__file__).parent.glob("test_stream_contract_*.py"))
    declared = {behaviour for deviations in KNOWN_DEVIATIONS.values() for behaviour in deviations}
    assert {behaviour for behaviour in declared if f'"{behaviour}"' not in asked} == set()


def test_every_declared_deviation_has_a_reason() -> None:
    """Whoever meets a deviation learns why it is there."""
    assert all(deviation.because for kinds in KNOWN_DEVIATIONS.values() for deviation in kinds.values())
