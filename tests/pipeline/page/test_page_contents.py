"""The pages of report and replay: account, findings and sections, with much data, little data and none."""

from collections.abc import Iterator

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup
from purgatory_pipeline.page import document, wording
from purgatory_pipeline.page.parts import Finding, Grid, Page, PageTable, Plot, Section
from purgatory_pipeline.replay.replay_charts import Policies
from purgatory_pipeline.replay.replay_page import replay_page
from purgatory_pipeline.report import window_sections
from purgatory_pipeline.report.anomalies_section import anomaly_findings
from purgatory_pipeline.report.report_page import report_page
from purgatory_pipeline.report.stragglers_section import straggler_finding

from tests.pipeline.page.page_frames import (
    KINDS,
    OPERATIONS,
    START,
    SWEEP,
    WINDOW,
    empty_frames,
    empty_info,
    replay_frames,
    replay_info,
    report_frames,
    report_info,
    window,
)

SIZE_MAX = 3_000_000
"""Maximum size of the page of a very large report. Vega takes 900 kB of it."""


@pytest.fixture(scope="module")
def page() -> Page:
    return report_page(report_frames(), report_info())


def section_of(page: Page, anchor: str) -> Section:
    return next(section for section in page.sections if section.anchor == anchor)


def text_of(sentence: object) -> str:
    """A sentence without its markup, with plain spaces."""
    return Markup(sentence).striptags().replace(wording.NBSP, " ")


def parts_of(section: Section) -> Iterator[Plot | PageTable]:
    for part in section.parts:
        if isinstance(part, Grid):
            yield from part.parts
        else:
            yield part


def values_of(plot: Plot, layer: int = 0) -> list[dict[str, object]]:
    spec = plot.spec["layer"][layer] if "layer" in plot.spec else plot.spec
    data = spec["data"] if "data" in spec else plot.spec["data"]
    values: list[dict[str, object]] = data["values"] if "values" in data else plot.spec["datasets"][data["name"]]
    return values


def test_the_account_adds_up(page: Page) -> None:
    """Rows are used or set aside, operations ended or not, and files whose rows cannot be counted are mentioned."""
    rows, operations = (text_of(sentence) for sentence in section_of(page, "account").lead)
    assert page.notices == report_info().notes
    assert rows == (
        "15,721,269 rows = 15,721,057 used, from 240 files, + 212 set aside. The rows of 1 more file cannot be counted."
    )
    numbers = [int(word.replace(",", "")) for word in operations.split() if word[0].isdigit()]
    registered, refused, carried_in, ended, unfinished = numbers
    assert registered - refused + carried_in == ended + unfinished


def test_rows_set_aside_stand_out(page: Page) -> None:
    (table,) = section_of(page, "account").parts
    assert isinstance(table, PageTable)
    assert table.frame["aside"].tolist() == [False] * 5 + [True] * 2
    assert [(fact.value, fact.alarming) for fact in page.headlines if fact.label == "rows set aside"] == [
        ("212+", True)
    ]
    frames = report_frames()
    clean = frames | {"intake": frames["intake"][frames["intake"]["reason"] == "used"]}
    facts = report_page(clean, report_info()).headlines
    assert [(fact.value, fact.alarming) for fact in facts if fact.label == "rows set aside"] == [("0", False)]


def test_the_slow_replica_is_the_first_finding(page: Page) -> None:
    assert text_of(page.findings[0].sentence).startswith(
        "Replica 2 held back 63 % of the slow produces, by 41 ms at the median. Next is replica 1 with 22 %."
    )
    assert page.findings[0].anchor == "stragglers"


@pytest.mark.parametrize(
    ("held_back", "named"),
    [
        ((63, 22, 15), True),
        ((130, 100, 100), False),
        ((1_300, 1_000, 900), True),
        ((1_100, 1_000, 900), False),
        ((1, 0, 0), False),
    ],
)
def test_a_replica_is_named_if_it_stands_out(held_back: tuple[int, ...], named: bool) -> None:
    frames = report_frames()
    counts = frames["stragglers"].assign(held_back=held_back * 4)
    assert bool(straggler_finding(counts)) == named
    assert straggler_finding(counts.assign(total_ms=0)) == []


def test_causes_of_all_sorts_are_one_list_by_time_lost(page: Page) -> None:
    """A replica, a partition, a client and timeouts are in order of the time lost; fetches and gains are not there."""
    lost, waiting = section_of(page, "causes").parts
    assert isinstance(lost, PageTable)
    assert isinstance(waiting, PageTable)
    assert lost.frame["lost_ms"].is_monotonic_decreasing
    assert set(lost.frame["cause"]) == {"replica", "partition", "client", "timeout"}
    assert set(lost.frame["kind"]) == {"produce"}
    first = lost.frame.drop_duplicates("cause").set_index("cause")
    assert first["lost_ms"].to_dict() == {"replica": 25_830, "timeout": 20_000, "client": 7_000, "partition": 400}
    assert first.loc[["client", "partition", "replica"], "name"].tolist() == ["batch", "orders-0", "2"]
    assert len(waiting.frame) == 3


def test_an_error_budget_is_shown_if_there_is_an_objective(page: Page) -> None:
    """In a section and, if more than all is burnt by enough operations, in a finding."""
    assert "budget" not in [section.anchor for section in page.sections]
    report = report_page(report_frames(), report_info(objective=0.99))
    (table,) = section_of(report, "budget").parts
    assert isinstance(table, PageTable)
    assert [[text_of(text) for _, text in cells][5:] for _, cells in table.rows()] == [
        ["800.0 %", wording.MISSING, f"{wording.MISSING} of {wording.MISSING}"], ["320.0 %", "400.0 %", "2 of 3"],
    ]  # fmt: skip
    assert [text_of(finding.sentence) for finding in report.findings if finding.anchor == "budget"] == [
        "orders (produce, web) burnt 320 % of its error budget: 3.2 % expired, and 1 % may."
    ]


def test_timeouts_that_cut_off_most_are_findings(page: Page) -> None:
    """The findings are the topics and kinds with most expirations, at most one of them a fetch; then near misses."""
    told = [text_of(finding.sentence).partition(":")[0] for finding in page.findings if finding.anchor == "timeouts"]
    assert told == [
        *("clickstream (produce)", "payments (produce)", "clickstream (fetch)"),
        "Of 500 expired produce operations, 62 % were reached later, half of these within 40 ms of the timeout.",
    ]
    assert set(tables_of(section_of(page, "timeouts"))[0].frame["reached_share"]) == {0.62}


def test_anomalies_are_findings(page: Page) -> None:
    """The strongest anomaly of each measure, with the unusual and the usual value."""
    told = [text_of(finding.sentence) for finding in page.findings if finding.anchor == "anomalies"]
    hour = "In the 1 h from 2026-07-02 09:00, "
    assert told == [
        f"{hour}3.4 % of the produce operations expired, usually 0.04 %.",
        f"{hour}99 % of the produce operations on orders waited up to 480 ms, usually 160 ms.",
    ]


def test_shifts_come_before_windows_and_improvements_are_no_findings() -> None:
    rows = report_frames()["anomalies"].head(2).assign(topic=None)
    shift = rows.tail(1).assign(basis="shift", score=4.0, window_start=START, value=140.0, usual=100.0)
    better = rows.tail(1).assign(measure="wait_p50_ms", direction="down", score=90.0)
    found = anomaly_findings(pd.concat([better, rows.head(1), shift]), 3_600_000)
    assert [text_of(finding.sentence) for finding in found] == [
        "Since 2026-07-01 00:00, in each 1 h, 99 % of the produce operations waited up to 140 ms, before 100 ms.",
        "In the 1 h from 2026-07-02 09:00, 3.4 % of the produce operations expired, usually 0.04 %.",
    ]


def test_timeouts_that_disagree_with_what_was_seen_are_noted() -> None:
    frames = report_frames()
    advice = frames["advice"].assign(timeouts=[1, *[2] * (len(frames["advice"]) - 1)], timeout_observed=0.2)
    section = section_of(report_page(frames | {"advice": advice}, report_info()), "timeouts")
    assert [notice.replace(wording.NBSP, " ").partition(". ")[0] for notice in section.notices] == [
        "All topics (produce): 20.0 % expired, and the estimate for this timeout is 3.0 %"
    ]
    assert section_of(report_page(frames, report_info()), "timeouts").notices == ()


def test_findings_lead_to_sections_that_are_there(page: Page) -> None:
    anchors = [section.anchor for section in page.sections]
    assert len(set(anchors)) == len(anchors)
    assert {finding.anchor for finding in page.findings} <= set(anchors)


def test_every_table_of_the_report_is_listed(page: Page) -> None:
    """The last section names all tables with their rows, also where the page holds only the first of them."""
    (table,) = section_of(page, "tables").parts
    assert isinstance(table, PageTable)
    rows = dict(zip(table.frame["name"], table.frame["rows"], strict=True))
    assert list(rows) == list(empty_frames())
    assert rows["groups"] == 51_200
    assert rows["windows"] == 96


def test_the_timeout_in_use_is_marked_on_its_curve(page: Page) -> None:
    plots = [part for part in parts_of(section_of(page, "timeouts")) if isinstance(part, Plot)]
    (plot,) = [plot for plot in plots if plot.title == "clickstream · fetch"]
    (mark,) = values_of(plot, layer=3)
    assert (mark["at"], mark["written"]) == (800, f"800{wording.NBSP}ms; 5{wording.NBSP}% still wait")
    assert f"cuts off 5{wording.NBSP}%" in plot.description


def test_curves_fall_within_their_bounds(page: Page) -> None:
    curves = [part for part in parts_of(section_of(page, "timeouts")) if isinstance(part, Plot)]
    assert len(curves) == 6
    for curve in curves:
        values = values_of(curve)
        drawn = [float(str(value["drawn"])) for value in values]
        assert drawn[0] > 0.99
        assert drawn == sorted(drawn, reverse=True)
        assert all(float(str(value["low"])) <= float(str(value["high"])) for value in values)


def test_an_empty_archive() -> None:
    """Each section of an empty report is a sentence, without plots or findings, and the page can be rendered."""
    page = report_page(empty_frames(), empty_info())
    assert page.findings == ()
    assert [part for section in page.sections for part in parts_of(section) if isinstance(part, Plot)] == []
    assert [section.anchor for section in page.sections if not section.lead] == []
    assert document.render(page).endswith("</html>\n")


def test_a_huge_report_makes_a_page_of_bounded_size() -> None:
    frames = dict(report_frames(windows=1_000))
    for name in ("topics", "backlog", "hot_keys", "stragglers", "advice", "timeouts", "anomalies"):
        repeated = pd.concat([frames[name]] * (10_000 // len(frames[name])), ignore_index=True)
        if "topic" in repeated:
            long = [f"{topic}-{number}" * 9 for number, topic in enumerate(repeated["topic"])]
            repeated["topic"] = repeated["topic"].where(repeated["topic"].isna(), pd.Series(long))
        frames[name] = repeated
    assert len(document.render(report_page(frames, report_info()))) < SIZE_MAX


windows = st.dictionaries(
    st.tuples(st.integers(0, 1_000), st.sampled_from(["produce", "fetch"])), st.integers(0, 50), min_size=1, max_size=40
)


@settings(max_examples=40)
@given(windows)
def test_merged_windows_keep_their_sums(counts: dict[tuple[int, str], int]) -> None:
    rows = [window(number, kind) | {"registered": registered} for (number, kind), registered in counts.items()]
    lines = window_sections.timeline(pd.DataFrame(rows), 3_600_000)
    assert lines.frame["registered"].sum() == sum(counts.values())
    assert lines.total()["registered"].sum() == sum(counts.values())
    assert len(lines.total()) <= window_sections.POINTS_MAX
    assert len(set(lines.frame["until"] - lines.frame["at"])) == 1
    assert lines.span[0] <= START + min(number for number, _ in counts) * WINDOW
    assert lines.span[1] >= START + (max(number for number, _ in counts) + 1) * WINDOW


def test_lines_break_where_a_window_is_missing() -> None:
    rows = pd.DataFrame([window(number, "fetch") for number in (0, 1, 3)])
    values = [row["value"] for row in window_sections.timeline(rows, 3_600_000).lines("fetch", {"wait_p50_ms": "half"})]
    assert [wording.is_missing(value) for value in values] == [False, False, True, False]


def test_bars_are_stacked() -> None:
    """Each bar begins at the top of the one below, and the last ends at the sum."""
    rows = window_sections.timeline(pd.DataFrame([window(33, kind) for kind in KINDS]), 3_600_000)
    total = rows.total()
    bars = window_sections.stacked(total, {word: total[word] for word in window_sections.OUTCOMES})
    assert [bar["low"] for bar in bars] == [0, *(bar["high"] for bar in bars[:-1])]
    assert bars[-1]["high"] == total["ended"].iloc[0]


@pytest.mark.parametrize(
    ("step_ms", "words"),
    [
        (250, "250 ms"),
        (30_000, "30 s"),
        (300_000, "5 min"),
        (3_600_000, "1 h"),
        (86_400_000, "1 day"),
        (90_000, "90 s"),
    ],
)
def test_lengths_of_windows_in_words(step_ms: int, words: str) -> None:
    assert window_sections.duration(step_ms).replace(wording.NBSP, " ") == words


def test_findings_are_few() -> None:
    """At most eight findings are shown."""
    frames = report_frames(tuple(f"topic-{number}" for number in range(3)) * 6)
    findings: tuple[Finding, ...] = report_page(frames, report_info()).findings
    assert len(findings) <= 8


@pytest.fixture(scope="module")
def replayed() -> Page:
    return replay_page(replay_frames(), replay_info())


def tables_of(section: Section) -> list[PageTable]:
    return [part for part in section.parts if isinstance(part, PageTable)]


def test_the_unchanged_policy_comes_first(replayed: Page) -> None:
    assert [text_of(sentence) for sentence in replayed.sections[0].lead] == [
        f"Unchanged policy: 100 % of {2 * OPERATIONS:,} outcomes are equal.",
        "registrations: 800,012 in = 800,000 replayed + 12 recorded as refused",
    ]
    assert replayed.notices == ()
    assert not any(fact.alarming for fact in replayed.headlines)


def test_a_different_outcome_is_alarming() -> None:
    page = replay_page(replay_frames(), replay_info(equal=2 * OPERATIONS - 1, notes=("A note.",)))
    assert text_of(page.sections[0].lead[0]) == (
        f"Unchanged policy: > 99.99 % of {2 * OPERATIONS:,} outcomes are equal. 1 operation ended differently."
    )
    assert page.notices == ("A note.",)
    assert [fact.value for fact in page.headlines if fact.alarming] == [f">{wording.NBSP}99.99{wording.NBSP}%"]


def test_findings_compare_the_ends_of_a_sweep(replayed: Page) -> None:
    """Each kind has the share that expired unchanged and at both ends; the kind that changes most is first."""
    assert [text_of(finding.sentence) for finding in replayed.findings] == [
        "Of fetch operations 11.1 % expired if unchanged, 50 % with timeout_ms=100, 5.9 % with timeout_ms=1600.",
        "Of produce operations 9.1 % expired if unchanged, 16.7 % with timeout_ms=100, 1.2 % with timeout_ms=1600.",
    ]


def test_tables_begin_with_the_unchanged_replay(replayed: Page) -> None:
    outcomes, by_topic = tables_of(replayed.sections[1])
    assert outcomes.frame["policy"].tolist() == ["", *SWEEP] * 2
    assert outcomes.frame["kind"].tolist() == ["fetch"] * 6 + ["produce"] * 6
    assert [column.title for column in by_topic.columns][3:] == ["unchanged", "100", "200", "400", "800", "1600"]


def test_kinds_that_no_policy_touches_are_not_drawn() -> None:
    frames = replay_frames()
    for name in ("outcomes", "waits"):
        unchanged = frames[name][(frames[name]["kind"] == "fetch") & (frames[name]["policy"] == "")]
        still = pd.concat([unchanged.assign(policy=policy) for policy in ("", *SWEEP)])
        frames[name] = pd.concat([frames[name][frames[name]["kind"] != "fetch"], still], ignore_index=True)
    page = replay_page(frames, replay_info())
    for section in page.sections[1:3]:
        assert text_of(section.lead[1]) == "Nothing changes for fetch operations under any policy tried."
        (grid,) = [part for part in section.parts if isinstance(part, Grid)]
        assert len(grid.parts) == 1
        table = tables_of(section)[0]
        assert table.frame[table.frame["kind"] == "fetch"]["policy"].tolist() == [""]
        assert table.frame[table.frame["kind"] == "produce"]["policy"].tolist() == ["", *SWEEP]


def test_changes_add_up(replayed: Page) -> None:
    """The table of changes has all of them."""
    (table,) = tables_of(replayed.sections[3])
    assert table.frame["operations"].sum() == replay_frames()["changes"]["operations"].sum()


@pytest.mark.parametrize(
    ("names", "labels", "title"),
    [
        (SWEEP[:2], ("100", "200"), "timeout_ms"),
        (("min_bytes=1, timeout_ms=5", "min_bytes=1, timeout_ms=6"), ("5", "6"), "min_bytes=1, timeout_ms"),
        (("timeout_ms=*1.5", "timeout_ms=*2"), ("*1.5", "*2"), "timeout_ms"),
        (("timeout_ms=5", "min_bytes=5"), ("timeout_ms=5", "min_bytes=5"), "policy"),
        (("timeout_ms=5",), ("timeout_ms=5",), "policy"),
        (("3=+20ms",), ("3=+20ms",), "policy"),
        ((), (), "policy"),
    ],
)
def test_the_common_part_of_policies_is_the_title(names: tuple[str, ...], labels: tuple[str, ...], title: str) -> None:
    policies = Policies.of(names)
    assert (policies.labels, policies.title) == (labels, title)


def test_a_replay_without_change_says_so() -> None:
    frames = replay_frames(())
    page = replay_page(frames, replay_info(policies=()))
    assert page.findings == ()
    assert page.sections[3].lead == ("Every operation would have ended as it did.",)
    assert document.render(page).endswith("</html>\n")


def test_an_empty_replay_says_so() -> None:
    frames = {name: pd.DataFrame(columns=frame.columns) for name, frame in replay_frames().items()}
    page = replay_page(frames, replay_info(compared=0, equal=0, first_at=None, last_at=None))
    assert [section.parts for section in page.sections] == [()] * 4
    assert document.render(page).endswith("</html>\n")
