"""The printed results of report and replay: advice in sentences, and the changes under each policy."""

from datetime import timedelta

import numpy as np
import pandas as pd
import pytest
from purgatory_pipeline.replay.command import outcome_lines
from purgatory_pipeline.report.advice import advise
from purgatory_pipeline.report.command import advised, window_for

from tests.pipeline.archive.histories import START

IN_USE = pd.DataFrame(
    [(None, 1, 500, 1.0, 1), ("orders", 1, 500, 1.0, 1)], columns=["topic", "place", "timeout_ms", "share", "timeouts"]
).assign(kind="produce")

UNSEEN = "not enough seen beyond 500 ms to say which would expire less."


def lines_of(waited_ms: list[int], fates: list[str], in_use: pd.DataFrame = IN_USE, topic: str = "orders") -> list[str]:
    counts = pd.DataFrame({"topic": topic, "kind": "produce", "fate": fates, "waited_ms": waited_ms, "operations": 1})
    return advised(advise(counts, in_use)["advice"].to_pandas())


def cut_at(timeout_ms: int, needs: list[int]) -> list[str]:
    fates = ["satisfied" if need <= timeout_ms else "expired" for need in needs]
    return lines_of(np.minimum(needs, timeout_ms).tolist(), fates)


@pytest.mark.parametrize(
    ("needs", "said"),
    [
        (
            [*range(1, 301)],
            "10 % of these need more than 270 ms; the 500 ms in use expire nothing, 300 ms would expire as few.",
        ),
        ([*range(4, 801, 4)], f"Half of these need more than 400 ms; the 500 ms in use expire 38 %; {UNSEEN}"),
        (
            [*range(1, 41), *[900] * 60],
            f"More than half of these need more than 500 ms; the 500 ms in use expire 60 %; {UNSEEN}",
        ),
        ([*range(1, 20), *[900] * 10], "Too few to advise: 29 seen, 19 of them satisfied."),
        ([7], "Too few to advise: 1 seen, 1 of them satisfied."),
    ],
)
def test_advice_says_no_more_than_was_seen(needs: list[int], said: str) -> None:
    """Needs and the effect of timeouts are given as far as waits were observed, or the operations are too few.

    A single topic is not repeated as "all topics".
    """
    assert cut_at(500, needs) == [f"produce, orders: {said}"]


@pytest.mark.parametrize(
    ("lasts_s", "window_ms"),
    [(0, 1_000), (11, 1_000), (119, 1_000), (120, 10_000), (7_200, 600_000), (43_200, 3_600_000), (10**8, 3_600_000)],
)
def test_a_short_history_has_short_windows(lasts_s: int, window_ms: int) -> None:
    assert window_for(START, START + timedelta(seconds=lasts_s)) == window_ms
    assert window_for(None, None) == 3_600_000


def test_advice_names_the_longest_timeout_where_none_is_long_enough() -> None:
    needs = list(range(10, 4_010, 10))
    cut = [500 if place % 2 and need > 500 else need for place, need in enumerate(needs)]
    fates = ["expired" if waited < need else "satisfied" for waited, need in zip(cut, needs, strict=True)]
    (line,) = lines_of(cut, fates)
    assert line.endswith("; the 500 ms in use expire 88 %, 2,000 ms would still expire 50 %.")


def test_topics_cannot_write_to_the_terminal() -> None:
    (line,) = lines_of([1], ["satisfied"], IN_USE.iloc[:1], topic="a\x1b[2J\n")
    assert line == "produce, a\\u001b[2J\\u000a: Too few to advise: 1 seen, 1 of them satisfied."


def test_kinds_that_no_policy_changes_take_one_line() -> None:
    """A kind with the same outcomes under every policy takes one line, others one for each policy.

    Without policies, there is one line for each kind.
    """
    rows = [
        (policy, None, kind, outcome, share)
        for policy, expired in (("", 0.25), ("produce:timeout_ms=5", 1.0), ("produce:timeout_ms=500", 0.25))
        for kind, outcome, share in (
            ("fetch", "satisfied", 1.0),
            ("produce", "satisfied", 1 - expired),
            ("produce", "expired", expired),
        )
    ]
    assert outcome_lines(pd.DataFrame(rows, columns=["policy", "topic", "kind", "outcome", "share"])) == [
        "fetch, as recorded and under every policy: 100.00 % satisfied",
        "produce, as recorded: 75.00 % satisfied, 25.00 % expired",
        "produce, produce:timeout_ms=5: 100.00 % expired",
        "produce, produce:timeout_ms=500: 75.00 % satisfied, 25.00 % expired",
    ]
    alone = pd.DataFrame({"policy": [""], "topic": [None], "kind": ["fetch"], "outcome": ["expired"], "share": [1.0]})
    assert outcome_lines(alone) == ["fetch, as recorded: 100.00 % expired"]
