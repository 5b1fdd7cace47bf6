"""The replay's page: whether the unchanged replay matches, and the changes under each policy."""

import pandas as pd
import pytest
from markupsafe import Markup
from purgatory_pipeline.page import document, wording
from purgatory_pipeline.page.parts import Grid, Page, PageTable, Section
from purgatory_pipeline.replay.replay_charts import Policies
from purgatory_pipeline.replay.replay_page import replay_page

from tests.pipeline.replay.replay_frames import OPERATIONS, SWEEP, replay_frames, replay_info


@pytest.fixture(scope="module")
def page() -> Page:
    return replay_page(replay_frames(), replay_info())


def text_of(sentence: object) -> str:
    """A sentence without its markup, with plain spaces."""
    return Markup(sentence).striptags().replace(wording.NBSP, " ")


def tables_of(section: Section) -> list[PageTable]:
    return [part for part in section.parts if isinstance(part, PageTable)]


def test_the_unchanged_policy_comes_first(page: Page) -> None:
    assert [text_of(sentence) for sentence in page.account.lead] == [
        f"Unchanged policy: 100 % of {2 * OPERATIONS:,} outcomes are equal.",
        "registrations: 800,012 in = 800,000 replayed + 12 recorded as refused",
    ]
    assert page.account.notices == ()
    assert not any(fact.alarming for fact in page.headlines)


def test_a_different_outcome_is_alarming() -> None:
    page = replay_page(replay_frames(), replay_info(equal=2 * OPERATIONS - 1, notes=("A note.",)))
    assert text_of(page.account.lead[0]) == (
        f"Unchanged policy: > 99.99 % of {2 * OPERATIONS:,} outcomes are equal. 1 operation ended differently."
    )
    assert page.account.notices == ("A note.",)
    assert [fact.value for fact in page.headlines if fact.alarming] == [f">{wording.NBSP}99.99{wording.NBSP}%"]


def test_findings_compare_the_ends_of_a_sweep(page: Page) -> None:
    """Each kind has the share that expired as recorded and at both ends; the kind that changes most is first."""
    assert [text_of(finding.sentence) for finding in page.findings] == [
        "Of fetch operations 1.1 % expired as recorded, 74.9 % with timeout_ms=100, 0.05 % with timeout_ms=1600.",
        "Of produce operations 0.37 % expired as recorded, 2.8 % with timeout_ms=100, < 0.01 % with timeout_ms=1600.",
    ]


def test_tables_begin_with_what_was_recorded(page: Page) -> None:
    outcomes, by_topic = tables_of(page.sections[0])
    assert outcomes.frame["policy"].tolist() == ["", *SWEEP] * 2
    assert outcomes.frame["kind"].tolist() == ["fetch"] * 6 + ["produce"] * 6
    assert [column.title for column in by_topic.columns][3:] == ["as recorded", "100", "200", "400", "800", "1600"]


def test_kinds_that_no_policy_touches_are_not_drawn() -> None:
    frames = replay_frames()
    for name in ("outcomes", "waits"):
        recorded = frames[name][(frames[name]["kind"] == "fetch") & (frames[name]["policy"] == "")]
        still = pd.concat([recorded.assign(policy=policy) for policy in ("", *SWEEP)])
        frames[name] = pd.concat([frames[name][frames[name]["kind"] != "fetch"], still], ignore_index=True)
    page = replay_page(frames, replay_info())
    for section in page.sections[:2]:
        assert text_of(section.lead[1]) == "Nothing changes for fetch operations under any policy tried."
        (grid,) = [part for part in section.parts if isinstance(part, Grid)]
        assert len(grid.parts) == 1
        table = tables_of(section)[0]
        assert table.frame[table.frame["kind"] == "fetch"]["policy"].tolist() == [""]
        assert table.frame[table.frame["kind"] == "produce"]["policy"].tolist() == ["", *SWEEP]


def test_changes_add_up(page: Page) -> None:
    """The table of changes has all of them."""
    (table,) = tables_of(page.sections[2])
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
    assert page.sections[2].lead == ("Every operation would have ended as it was recorded.",)
    assert document.render(page).endswith("</html>\n")


def test_an_empty_replay_says_so() -> None:
    frames = {name: pd.DataFrame(columns=frame.columns) for name, frame in replay_frames().items()}
    page = replay_page(frames, replay_info(compared=0, equal=0, first_at=None, last_at=None))
    assert [section.parts for section in page.sections] == [(), (), ()]
    assert document.render(page).endswith("</html>\n")
