"""The pages of report and replay as text, compared with the files in `recorded`, with much data, little data and none.

A variant of a page has the lines that differ from it, or all of its own where that is shorter.
`python -m tests.pipeline.page.test_page_contents` records all of them again.
"""

import difflib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from markupsafe import Markup
from purgatory_pipeline.page import document, wording
from purgatory_pipeline.page.parts import Grid, Page, PageTable, Plot
from purgatory_pipeline.replay.replay_page import replay_page
from purgatory_pipeline.report import window_sections
from purgatory_pipeline.report.cause_sections import anomaly_findings, straggler_finding
from purgatory_pipeline.report.report_page import report_page

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

RECORDED: Final = Path(__file__).parent / "recorded"
SIZE_MAX = 3_000_000
"""Maximum size of the page of a very large report. Vega takes 900 kB of it."""
Frames = dict[str, pd.DataFrame]


def disagreeing() -> Frames:
    """One topic has one timeout, with which more expired than the estimate says."""
    advice = report_frames()["advice"]
    return {"advice": advice.assign(timeouts=[1, *[2] * (len(advice) - 1)], timeout_observed=0.2)}


def equal_fetches() -> Frames:
    """No policy changes anything for fetches."""
    frames = replay_frames()
    for name in ("outcomes", "waits"):
        unchanged = frames[name][(frames[name]["kind"] == "fetch") & (frames[name]["policy"] == "")]
        still = pd.concat([unchanged.assign(policy=policy) for policy in ("", *SWEEP)])
        frames[name] = pd.concat([frames[name][frames[name]["kind"] != "fetch"], still], ignore_index=True)
    return frames


def nothing_replayed() -> Page:
    frames = {name: pd.DataFrame(columns=frame.columns) for name, frame in replay_frames().items()}
    return replay_page(frames, replay_info(compared=0, equal=0, first_at=None, last_at=None))


def report_of(changed: Frames) -> Page:
    return report_page(report_frames() | changed, report_info())


VARIANTS: Final[dict[str, dict[str, Callable[[], Page]]]] = {
    "report": {
        "": lambda: report_of({}),
        "with an objective": lambda: report_page(report_frames(), report_info(objective=0.99)),
        "without rows set aside": lambda: report_of({"intake": report_frames()["intake"].query("reason == 'used'")}),
        "with timeouts that disagree with what was seen": lambda: report_of(disagreeing()),
        "of nothing": lambda: report_page(empty_frames(), empty_info()),
    },
    "replay": {
        "": lambda: replay_page(replay_frames(), replay_info()),
        "with a different outcome": lambda: replay_page(
            replay_frames(), replay_info(equal=2 * OPERATIONS - 1, notes=("A note.",))
        ),
        "without a change for fetches": lambda: replay_page(equal_fetches(), replay_info()),
        "without policies": lambda: replay_page(replay_frames(()), replay_info(policies=())),
        "of nothing": nothing_replayed,
    },
}


def text_of(sentence: object) -> str:
    """A sentence without its markup, with plain spaces."""
    return Markup(sentence).striptags().replace(wording.NBSP, " ")


def lines_of_part(part: Plot | PageTable | Grid) -> Iterator[str]:
    if isinstance(part, Grid):
        for inner in part.parts:
            yield from lines_of_part(inner)
    elif isinstance(part, Plot):
        yield f"  plot {text_of(part.title)}: {text_of(part.description)} {text_of(part.note)}".rstrip()
        yield from (f"    {entry.label}" for entry in part.legend)
        for values in part.spec["datasets"].values():
            yield f"    {len(values)} values, from {values[0]} to {values[-1]}"
    else:
        yield f"  table {part.caption}, {len(part.frame)} rows {part.rest}".rstrip()
        yield "    " + " | ".join(column.title for column in part.columns)
        for is_marked, cells in part.rows():
            yield ("  * " if is_marked else "    ") + " | ".join(text_of(shown) for _, shown in cells)


def lines_of(page: Page) -> list[str]:
    """The visible text, from top to bottom."""
    lines = [page.title, text_of(page.subtitle), *(f"! {notice}" for notice in page.notices)]
    lines += [
        f"{'! ' if fact.alarming else '  '}{fact.label}: {text_of(fact.value)} {text_of(fact.note)}".rstrip()
        for fact in page.headlines
    ]
    lines += [f"{text_of(one.sentence)} [{page.section_title(one.anchor)}]" for one in page.findings]
    for section in page.sections:
        lines += ["", f"{section.title} (#{section.anchor})", *map(text_of, section.lead)]
        lines += [f"! {text_of(notice)}" for notice in section.notices]
        lines += [line for part in section.parts for line in lines_of_part(part)]
    return [*lines, *page.footer]


def recorded(name: str) -> str:
    """The page, and the lines of each variant that differ; the whole variant where that is shorter."""
    first, *variants = [lines_of(make()) for make in VARIANTS[name].values()]
    written = list(first)
    for of, lines in zip(list(VARIANTS[name])[1:], variants, strict=True):
        diff = difflib.unified_diff(first, lines, n=0, lineterm="")
        differing = [line for line in diff if line[:3] not in {"---", "+++", "@@ "}]
        written += ["", f"== {of}", *min(differing, lines, key=len)]
    return "\n".join(written) + "\n"


@pytest.mark.parametrize("name", VARIANTS)
def test_page_is_as_recorded(name: str) -> None:
    assert recorded(name) == (RECORDED / f"{name}.txt").read_text("utf-8")


@pytest.mark.parametrize("make", [make for variants in VARIANTS.values() for make in variants.values()])
def test_page_can_be_rendered(make: Callable[[], Page]) -> None:
    assert document.render(make()).endswith("</html>\n")


def test_findings_are_few() -> None:
    """At most eight findings are shown."""
    frames = report_frames(tuple(f"topic-{number}" for number in range(3)) * 6)
    assert len(report_page(frames, report_info()).findings) <= 8


def test_a_replica_is_named_if_it_stands_out() -> None:
    stragglers = report_frames()["stragglers"]

    def named(*held_back: int) -> bool:
        counts = stragglers.assign(held_back=held_back * 4)
        assert straggler_finding(counts.assign(total_ms=0)) == []
        return bool(straggler_finding(counts))

    assert named(63, 22, 15)
    assert named(1_300, 1_000, 900)
    assert [named(130, 100, 100), named(1_100, 1_000, 900), named(1, 0, 0)] == [False] * 3


def test_shifts_come_before_windows_and_improvements_are_no_findings() -> None:
    rows = report_frames()["anomalies"].head(2).assign(topic=None)
    shift = rows.tail(1).assign(basis="shift", score=4.0, window_start=START, value=140.0, usual=100.0)
    better = rows.tail(1).assign(measure="wait_p50_ms", direction="down", score=90.0)
    found = anomaly_findings(pd.concat([better, rows.head(1), shift]), 3_600_000)
    assert [text_of(finding.sentence) for finding in found] == [
        "Since 2026-07-01 00:00, in each 1 h, 99 % of the produce operations waited up to 140 ms, before 100 ms.",
        "In the 1 h from 2026-07-02 09:00, 3.4 % of the produce operations expired, usually 0.04 %.",
    ]


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


if __name__ == "__main__":
    RECORDED.mkdir(exist_ok=True)
    for page in VARIANTS:
        (RECORDED / f"{page}.txt").write_text(recorded(page), "utf-8")
