"""Parts of a page as HTML: escaping, bounds, no external resources; numbers and foreign texts as pages show them."""

import base64
import hashlib
import itertools
import json
import re
import unicodedata
from datetime import datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup
from purgatory_pipeline.page import document, wording
from purgatory_pipeline.page.parts import Finding, Headline, Page, PageTable, Section, columns
from purgatory_pipeline.replay.replay_page import Policies
from purgatory_pipeline.report import window_sections

from tests.kit.recorded import assert_recorded, cases_of, value_of

TABLE_TAGS = {"figure", "figcaption", "div", "table", "thead", "tbody", "tr", "th", "td", "code", "bdi"}


class Elements(HTMLParser):
    """Collects the elements, and the text of cells."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.is_in_cell = False
        self.feed(html)

    def handle_starttag(self, tag: str, _attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "td":
            self.is_in_cell = True
            self.cells.append("")

    def handle_endtag(self, tag: str) -> None:
        self.is_in_cell &= tag != "td"

    def handle_data(self, data: str) -> None:
        if self.is_in_cell:
            self.cells[-1] += data


def render_part(part: PageTable) -> str:
    """The part as it appears in a page."""
    template = "{% from 'parts.html.jinja' import part_of with context %}{{ part_of(part) }}"
    return document._templates().from_string(template).render(part=part, numbers=itertools.count(1))


def page_of(*parts: PageTable) -> Page:
    section = Section("one", "One section", ("A sentence.",), parts)
    headlines = (Headline("operations", "7", "note", alarming=True),)
    return Page("A page", wording.name("archive"), headlines, (Finding(Markup("One stands out."), "one"),), (section,))


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


WORDING = Path(__file__).with_name("wording.txt")


def test_figures_instants_and_texts_are_written_as_recorded() -> None:
    """As in wording.txt, where ~ is a space at which a line is not broken.

    Figures have commas, suitable units and precision; shares are never rounded to 0 % or 100 %. Instants of any type
    are shown in UTC, and missing values as a dash. Words in backticks are names, and lists have an "and".
    """
    names = {**vars(wording), "datetime": datetime, "timedelta": timedelta, "timezone": timezone, "pd": pd}
    names |= {"duration": window_sections.duration, "titled": titled, "nan": float("nan"), "inf": float("inf")}
    found = (value_of(case, names).replace(wording.NBSP, "~") for case in cases_of(WORDING))
    assert_recorded(WORDING, found)


def titled(*policies: str) -> str:
    """The title of a legend of policies, and their labels."""
    found = Policies.of(policies)
    return " ".join((f"{found.title}:", *found.labels))


@given(st.floats(min_value=0, max_value=1))
def test_a_share_is_all_or_nothing_only_if_it_is(value: float) -> None:
    shown = wording.share(value)
    assert (shown in {f"0{wording.NBSP}%", f"100{wording.NBSP}%"}) == (value in {0, 1})
    assert not shown.startswith(("0.00", "100.0"))


@given(st.text(st.characters()), st.integers(2, 50))
def test_any_text_is_bounded_visible_and_encodable(value: str, length_max: int) -> None:
    shown = wording.text(value, length_max)
    assert 0 < len(shown) <= max(length_max, len("(empty)"))
    assert not [character for character in shown if unicodedata.category(character).startswith("C")]
    shown.encode()
