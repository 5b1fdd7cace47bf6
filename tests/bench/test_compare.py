"""The regression check: which changes count as worse, and which rows are never compared."""

import pytest

from bench.compare import BETTER, NOT_COMPARED, SAME, WORSE, compared, shown
from bench.measure.instructions import UNIT
from bench.measure.result_rows import Row

COUNTED = Row("instructions/x", "engine", None, 1_000.0, UNIT, None, 1, 1_000.0, 1_000.0, "valgrind, cc 12")
RATIO = Row("guard/x", "engine", "self", 5e6, "ops/s", 2.0, 5, 1.8, 2.2, "here")
BYTES = Row("guard/memory", "engine", None, 100.0, "B", None, 1, 100.0, 100.0, "here")


def changed(row: Row, **values: object) -> tuple[Row, Row]:
    return row, Row(**(vars(row) | values))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        *[
            (changed(COUNTED, value=value), said)
            for value, said in ((1_149.0, SAME), (1_151.0, WORSE), (849.0, BETTER))
        ],
        (changed(COUNTED, value=9_000.0, machine="valgrind, cc 13"), NOT_COMPARED),
        (changed(RATIO, ratio=1.5, max=1.8), SAME),  # the best of its pairs is within 15 %
        (changed(RATIO, ratio=1.5, max=1.69), WORSE),
        (changed(RATIO, ratio=2.4, max=3.0), BETTER),
        (changed(RATIO, value=1.0), SAME),  # the machine is slower, its peer too
        *[(changed(BYTES, value=value), said) for value, said in ((114.0, SAME), (116.0, WORSE))],
        (changed(Row(**(vars(RATIO) | {"peer": None, "ratio": None})), value=1.0), NOT_COMPARED),  # type: ignore[arg-type]
    ],
)
def test_a_change_over_15_percent_counts(rows: tuple[Row, Row], said: str) -> None:
    """Instructions of the same toolchain, ratios and bytes are compared; absolute rates are not."""
    [verdict] = compared([rows[0]], [rows[1]])
    assert verdict.said == said


def test_what_is_missing_or_new_is_named() -> None:
    """A row not measured here is not compared, a row without a baseline is new, and both are shown."""
    verdicts = compared([COUNTED], [BYTES])
    assert [(verdict.name, verdict.said) for verdict in verdicts] == [
        ("instructions/x", NOT_COMPARED),
        ("guard/memory", "new"),
    ]
    assert "not measured here" in shown(verdicts)
