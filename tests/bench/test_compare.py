"""The regression check: which changes count as worse, and which rows are never compared."""

import dataclasses

import pytest

from bench.compare import BETTER, NOT_COMPARED, SAME, WORSE, compared, shown
from bench.measure.instructions import UNIT
from bench.measure.result_rows import Row

COUNTED = Row("instructions/x", "engine", None, 1_000.0, UNIT, None, 1, 1_000.0, 1_000.0, "valgrind, cc 12")
RATIO = Row("guard/x", "engine", "self", 5e6, "ops/s", 2.0, 5, 1.8, 2.2, "here")
BYTES = Row("guard/memory", "engine", None, 100.0, "B", None, 1, 100.0, 100.0, "here")


@pytest.mark.parametrize(("value", "said"), [(1_149.0, SAME), (1_151.0, WORSE), (851.0, SAME), (849.0, BETTER)])
def test_instructions(value: float, said: str) -> None:
    """An instruction count is worse if it is over 15 % higher."""
    [verdict] = compared([COUNTED], [dataclasses.replace(COUNTED, value=value)])
    assert (verdict.said, verdict.before, verdict.now) == (said, 1_000.0, value)


def test_instructions_of_another_toolchain() -> None:
    """Counts of another compiler or Python version are reported as not compared, and nothing fails."""
    [verdict] = compared([COUNTED], [dataclasses.replace(COUNTED, value=9_000.0, machine="valgrind, cc 13")])
    assert verdict.said == NOT_COMPARED
    assert "cc 13" in verdict.why


@pytest.mark.parametrize(
    ("ratio", "best", "said"), [(1.5, 1.8, SAME), (1.5, 1.69, WORSE), (2.2, 3.0, SAME), (2.4, 3.0, BETTER)]
)
def test_ratios(ratio: float, best: float, said: str) -> None:
    """A ratio is worse if even the best of its pairs is over 15 % lower."""
    [verdict] = compared([RATIO], [dataclasses.replace(RATIO, ratio=ratio, max=best)])
    assert verdict.said == said


@pytest.mark.parametrize(("value", "said"), [(114.0, SAME), (116.0, WORSE)])
def test_bytes(value: float, said: str) -> None:
    """Memory does not depend on the machine's speed, so its value is compared."""
    [verdict] = compared([BYTES], [dataclasses.replace(BYTES, value=value)])
    assert verdict.said == said


def test_absolute_rates_are_never_compared() -> None:
    """Absolute rates are never compared, no matter how slow the machine is."""
    rate = dataclasses.replace(RATIO, peer=None, ratio=None)
    [verdict] = compared([rate], [dataclasses.replace(rate, value=1.0)])
    assert verdict.said == NOT_COMPARED


def test_the_absolute_value_beside_a_ratio_is_not_compared() -> None:
    """On a machine that is half as fast, the same ratio counts as unchanged."""
    [verdict] = compared([RATIO], [dataclasses.replace(RATIO, value=1.0)])
    assert verdict.said == SAME


def test_what_is_missing_or_new_is_named() -> None:
    """A row not measured here is not compared, a row without a baseline is new, and both are shown."""
    verdicts = compared([COUNTED], [BYTES])
    assert [(verdict.name, verdict.said) for verdict in verdicts] == [
        ("instructions/x", NOT_COMPARED),
        ("guard/memory", "new"),
    ]
    assert "not measured here" in shown(verdicts)


def test_rows_of_one_name_beside_two_peers_are_told_apart() -> None:
    """Rows with the same name and different peers are compared separately."""
    other = dataclasses.replace(RATIO, peer="heapq", ratio=9.0, max=9.0)
    verdicts = compared([RATIO, other], [dataclasses.replace(other, ratio=1.0, max=1.0), RATIO])
    assert [verdict.said for verdict in verdicts] == [SAME, WORSE]
