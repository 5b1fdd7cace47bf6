"""Ages from a history that forgets, against the times at which the records of a log were written."""

from bisect import bisect_right
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from purgatory.extensions.lag.end_history import EndHistory

INTERVAL_MS = 1_000


def test_log_that_was_cut_or_recreated_begins_a_new_history() -> None:
    """A lower end counts only once it is read twice, unless the epoch says that it is another log."""
    history = EndHistory(INTERVAL_MS)
    for end, at_ms in ((100, 0), (200, 1_000), (150, 2_000)):
        history.seen(end, 0, at_ms, at_ms)
    assert history.behind(150, 3_000) == (50, 2_500, INTERVAL_MS)
    history.seen(150, 0, 3_000, 3_000)
    assert history.behind(120, 4_000) == (30, 1_000, None)
    history.seen(180, 1, 4_000, 4_000)
    history.seen(None, None, 3_900, 3_950)
    assert history.behind(160, 4_500) == (20, 500, None), "another log; the next answer was overtaken"


def test_ages_of_a_day_are_known_to_a_few_percent() -> None:
    history = EndHistory(INTERVAL_MS)
    for second in range(86_400):
        history.seen(100 * second, None, 1_000 * second, 1_000 * second)
    for ago_s in (60, 600, 3_600, 12 * 3_600):
        _, age_ms, error_ms = history.behind(100 * (86_399 - ago_s), 86_399_000)
        assert error_ms is not None
        assert abs(age_ms - 1_000 * ago_s) <= error_ms <= 2 * INTERVAL_MS + 50 * ago_s


@given(st.integers(0, 2**32), st.integers(1, 1_000), st.sampled_from([0.01, 0.3, 1.0]))
def test_age_of_any_position_is_within_its_error(seed: int, readings: int, busy: float) -> None:
    """It is not negative, and no unread record that was written before the last reading is missed."""
    history, chance, now_ms, asked_ms, before = EndHistory(INTERVAL_MS), Random(seed), 0, 0, 0
    ends, times_ms = [0], list[int]()  # where the log ended, and when it grew from there
    for step in range(2 * readings):
        now_ms += chance.choice([0, 7, INTERVAL_MS // 2, INTERVAL_MS, chance.choice([0, 30_000, 3_600_000])])
        if chance.random() < busy:
            times_ms.append(now_ms)
            ends.append(ends[-1] + chance.choice([1, 50, 5_000]))
        if step % 2 == 0:
            asked_ms, before = now_ms, ends[-1]
            continue
        now_ms += chance.choice([0, 7, 2_001])
        history.seen(chance.choice([before, ends[-1]]), None, asked_ms, now_ms)
        position = chance.randint(0, ends[-1])
        lag, age_ms, error_ms = history.behind(position, now_ms)
        place = bisect_right(ends, position) - 1
        true_ms = now_ms - times_ms[place] if place < len(times_ms) else 0
        assert 0 <= age_ms <= true_ms if error_ms is None else abs(age_ms - true_ms) <= error_ms
        assert lag == max(0, history.end - position)
        assert lag or error_ms is None or true_ms <= error_ms
