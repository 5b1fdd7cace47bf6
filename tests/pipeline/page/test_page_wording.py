"""Numbers and foreign texts as pages show them."""

import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from purgatory_pipeline.page import wording

NBSP = "\u00a0"
DASH = "\u2013"


WRITTEN: dict[Callable[[object], str], dict[object, str]] = {
    wording.count: {0: "0", 12_345: "12,345", 12_345.4: "12,345", None: DASH, float("nan"): DASH, pd.NA: DASH},
    wording.rough_count: {999_999: "999,999", 12_345_678: "12.3 million", 4e9: "4 billion"},
    wording.share: {
        0: "0 %", 1: "100 %", 0.031: "3.1 %", 0.00373: "0.37 %", 0.63: "63.0 %", 0.985: "98.5 %", 0.99951: "99.95 %",
        1e-7: "< 0.01 %", 1 - 1e-7: "> 99.99 %", 0.99996: "> 99.99 %", 0.00004: "< 0.01 %", 0.9988: "99.9 %",
    },
    wording.share_in_sentence: {0.63: "63 %", 0.631: "63.1 %"},
    wording.milliseconds: {
        0: "0 ms", 0.4: "0.4 ms", 740: "740 ms", 1_240: "1,240 ms", 12_400: "12.4 s", 210_000: "3.5 min",
        7_560_000: "2.1 h", float("inf"): "\u221e",
    },
    wording.total_time: {
        740: "740 ms", 7_379: "7.4 s", 144_000: "2.4 min", 6_300_000: "105 min", 51_120_000: "14.2 h",
        1_080_000_000: "12.5 days",
    },
}  # fmt: skip


@pytest.mark.parametrize(
    ("written", "value", "shown"),
    [
        pytest.param(written, value, shown, id=f"{written.__name__}-{value}-is-{shown}")
        for written, cases in WRITTEN.items()
        for value, shown in cases.items()
    ],
)
def test_figures(written: Callable[[object], str], value: object, shown: str) -> None:
    """Figures have commas, suitable units and precision; shares are never rounded to 0 % or 100 %.

    Missing values are a dash, and a figure stays on one line with its unit.
    """
    assert written(value) == shown.replace(" ", NBSP)


@given(st.floats(min_value=0, max_value=1))
def test_a_share_is_all_or_nothing_only_if_it_is(value: float) -> None:
    shown = wording.share(value)
    assert (shown in {f"0{NBSP}%", f"100{NBSP}%"}) == (value in {0, 1})
    assert not shown.startswith(("0.00", "100.0"))


@pytest.mark.parametrize(
    "value",
    [
        datetime(2026, 7, 1, 14, 0, tzinfo=UTC),
        datetime(2026, 7, 1, 16, 0, tzinfo=timezone(timedelta(hours=2))),
        datetime(2026, 7, 1, 14, 0),
        pd.Timestamp("2026-07-01T14:00:00Z"),
        "2026-07-01T14:00:00+00:00",
    ],
)
def test_instants_are_utc(value: object) -> None:
    """An instant of any type is shown in UTC; a missing one is a dash."""
    assert wording.instant(value) == "2026-07-01 14:00"
    assert {wording.instant(missing) for missing in (pd.NaT, None)} == {DASH}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("orders", "orders"),
        ("\u00fcber-\u6ce8\u6587", "\u00fcber-\u6ce8\u6587"),
        ("", "(empty)"),
        ("a\u202eb", "a\\u202eb"),
        ("a\nb\x00", "a\\u000ab\\u0000"),
        ("\ud800", "\\ud800"),
        ("x" * 120, "x" * 120),
        ("x" * 121, "x" * 119 + "\u2026"),
    ],
)
def test_texts_are_fit_to_be_shown(value: str, shown: str) -> None:
    assert wording.text(value) == shown


@given(st.text(st.characters()), st.integers(2, 50))
def test_any_text_is_bounded_visible_and_encodable(value: str, length_max: int) -> None:
    shown = wording.text(value, length_max)
    assert 0 < len(shown) <= max(length_max, len("(empty)"))
    assert not [character for character in shown if unicodedata.category(character).startswith("C")]
    shown.encode()


@given(st.text())
def test_names_escape_markup(value: str) -> None:
    """A topic inside a sentence adds no element."""
    marked = wording.name(value)
    assert isinstance(marked, Markup)
    assert marked.count("<") == 4
    assert marked.striptags().split() == wording.text(value).split()


def test_sentences() -> None:
    """Lines are not broken between a figure and its unit, words in backticks are names, and lists have an "and"."""
    assert wording.unbroken("the 500 ms in use expire 3.1 %.") == f"the 500{NBSP}ms in use expire 3.1{NBSP}%."
    code = "more than <code><bdi>slow_over_ms</bdi></code> &lt; 5"
    assert wording.with_code_names("more than `slow_over_ms` < 5") == code
    assert wording.listed(["a", "<b>", "c"]) == "a, &lt;b&gt; and c"
    assert wording.listed(["a"]) == "a"
    assert wording.listed([]) == ""
    assert wording.plural(1, "file") == f"1{NBSP}file"
    assert wording.plural(2, "file") == f"2{NBSP}files"
