"""Parts of a page as HTML: escaping, bounds, no external resources; numbers and foreign texts as pages show them."""

import base64
import hashlib
import itertools
import json
import re
import unicodedata
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from html.parser import HTMLParser

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from purgatory_pipeline.page import document, wording
from purgatory_pipeline.page.parts import Finding, Grid, Headline, LegendEntry, Page, PageTable, Plot, Section, columns

HOSTILE = "</script><script>alert(1)</script>"
TABLE_TAGS = {"figure", "figcaption", "div", "table", "thead", "tbody", "tr", "th", "td", "code", "bdi"}


class Elements(HTMLParser):
    """Collects the elements, and the text of cells and of scripts with data."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.data: list[str] = []
        self.inside: list[str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "td":
            self.inside = self.cells
            self.cells.append("")
        elif tag == "script" and ("type", "application/json") in attrs:
            self.inside = self.data
            self.data.append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in {"td", "script"}:
            self.inside = None

    def handle_data(self, data: str) -> None:
        if self.inside is not None:
            self.inside[-1] += data


def render_part(part: PageTable) -> str:
    """The part as it appears in a page."""
    template = "{% from 'parts.html.jinja' import part_of with context %}{{ part_of(part) }}"
    return document._templates().from_string(template).render(part=part, numbers=itertools.count(1))


def page_of(*parts: Plot | PageTable | Grid, title: str = "A page") -> Page:
    section = Section("one", "One section", ("A sentence.",), parts, notices=(HOSTILE,))
    return Page(
        title=title,
        subtitle=wording.name(HOSTILE),
        headlines=(Headline("operations", HOSTILE, "note", alarming=True),),
        findings=(Finding(Markup("{} stands out.").format(wording.name(HOSTILE)), "one"),),
        sections=(section,),
    )


def table_of(values: list[str], rows_max: int = 12) -> PageTable:
    frame = pd.DataFrame({"topic": values, "number": range(len(values))})
    shown = (*columns(wording.name, "topic"), *columns(wording.count, "number"))
    return PageTable("Topics", frame, shown, rest="topics.csv", rows_max=rows_max)


@given(st.text(st.characters()))
def test_any_text_is_one_cell(value: str) -> None:
    elements = Elements(render_part(table_of([value])))
    assert elements.cells == [wording.text(value), "0"]
    assert set(elements.tags) <= TABLE_TAGS


@given(st.recursive(st.text(st.characters()) | st.none() | st.booleans() | st.integers(), st.lists))
def test_any_json_survives_inside_a_script(value: object) -> None:
    text = str(document.to_json(value))
    assert not {"<", ">", "&"} & set(text)
    assert json.loads(text) == value


def test_nan_is_an_error() -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        document.to_json({"value": float("nan")})


def test_hostile_text_adds_no_element() -> None:
    plot = Plot(HOSTILE, {"title": HOSTILE}, HOSTILE, HOSTILE, (LegendEntry(HOSTILE, "red"),))
    harmless = Plot("x", {"title": "x"}, "x", "x", (LegendEntry("x", "red"),))
    hostile = Elements(document.render(page_of(plot, Grid((plot, table_of([HOSTILE]))), title=HOSTILE)))
    plain = Elements(document.render(page_of(harmless, Grid((harmless, table_of(["x"]))), title="x")))
    assert hostile.tags == plain.tags
    assert [json.loads(data) for data in hostile.data] == [{"title": HOSTILE}] * 2


def test_only_the_two_scripts_of_the_page_may_run() -> None:
    html = document.render(page_of(table_of(["orders"])))
    policy = re.findall(r'Content-Security-Policy" content="([^"]*)"', html)[0].replace("&#39;", "'")
    scripts = re.findall(r"<script>(.*?)</script>", html, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    assert len(scripts) == 2
    assert f"script-src 'sha256-{digests[0]}' 'sha256-{digests[1]}'" in policy
    assert "default-src 'none'" in policy
    assert "unsafe-eval" not in policy


def test_nothing_is_fetched() -> None:
    """Outside of its scripts a page has no URL. Vega is included once."""
    html = document.render(page_of(table_of(["orders"]), table_of(["payments"])))
    without_scripts = re.sub(r"<script>.*?</script>", "", html, flags=re.DOTALL)
    assert "://" not in without_scripts
    assert html.count("window.vegaEmbed=") == 1


def test_tables_are_bounded_and_say_so() -> None:
    many = render_part(table_of([f"t{number}" for number in range(1_000)], rows_max=5))
    assert len(Elements(many).cells) == 10
    assert "5 of 1,000 rows; all of them: topics.csv" in many
    assert "rows" not in render_part(table_of(["orders"]))
    assert render_part(table_of([])).endswith('</figcaption><p class="note">Nothing.</p></figure>')


def test_long_texts_may_be_broken_and_marked_rows_stand_out() -> None:
    frame = pd.DataFrame({"topic": ["x" * 60, "y"], "odd": [False, True]})
    html = render_part(PageTable("Topics", frame, columns(wording.text, "topic"), marked="odd"))
    assert html.count('<td class="long">') == 1
    assert html.count('<tr class="marked">') == 1


NBSP = "\u00a0"
DASH = "\u2013"


WRITTEN: dict[Callable[[object], str], dict[object, str]] = {
    wording.count: {0: "0", 12_345: "12,345", 12_345.4: "12,345", None: DASH, float("nan"): DASH, pd.NA: DASH},
    wording.rough_count: {999_999: "999,999", 12_345_678: "12.3 million", 4e9: "4 billion"},
    wording.decimal: {0: "0", 5: "5", 1_234.5: "1,234", 0.12: "0.12", 0.0083: "0.0083", 1e-5: "0.000010"},
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
