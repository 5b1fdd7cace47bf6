"""Arguments as users write them, durations as they read them, and exit codes of outcomes and errors."""

from datetime import UTC, datetime, time, timedelta
from pathlib import Path
from time import tzset
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from purgatory_client import Outcome, errors
from purgatory_client.argument_checks import milliseconds_of
from purgatory_client.views import RemainingTime

from purgatory.cli import exit_codes, parsing, render
from purgatory.cli.parsing import moment_of, seconds
from purgatory.cli.render import exact, span
from tests.kit.recorded import assert_recorded, assert_values_recorded, cases_of

MOMENTS_FILE = Path(__file__).with_name("moments.txt")
ARGUMENTS = Path(__file__).with_name("arguments.txt")
NOW = datetime(2025, 3, 1, 9, 30, tzinfo=UTC)
MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2035, 1, 1)).map(lambda one: one.astimezone())


@given(MOMENTS, st.times().map(lambda one: one.replace(microsecond=0)))
def test_a_clock_time_is_its_last_occurrence(now: datetime, clock: time) -> None:
    """It is the last moment, at or before now, at which local clocks showed that time, on days of 24 hours."""
    assume(len({(now - timedelta(days=days)).astimezone().utcoffset() for days in range(3)}) == 1)
    since_midnight = timedelta(hours=now.hour, minutes=now.minute, seconds=now.second, microseconds=now.microsecond)
    ago = since_midnight - timedelta(hours=clock.hour, minutes=clock.minute, seconds=clock.second)
    assert moment_of(clock.isoformat(), now) == now - (ago if ago >= timedelta(0) else ago + timedelta(days=1))


@pytest.mark.parametrize("is_local", [False, True])
def test_clock_time_when_clocks_are_changed(monkeypatch: pytest.MonkeyPatch, is_local: bool) -> None:
    """If there are two such moments, the latest past one; in a gap, the end of the gap. As in moments.txt."""

    def moment(case: str) -> str:
        zone, now, clock = case.split()
        with monkeypatch.context() as environment:
            environment.setenv("TZ", zone)
            tzset()
            shown = moment_of(clock, datetime.fromisoformat(now), None if is_local else ZoneInfo(zone))
        tzset()
        return f"{shown.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"

    assert_recorded(MOMENTS_FILE, map(moment, cases_of(MOMENTS_FILE)))


@given(st.integers(min_value=0, max_value=2**43))
def test_milliseconds_are_rounded_up(microseconds: int) -> None:
    """A record has whole milliseconds, so it is before a time exactly if it is before the next whole millisecond."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    assert milliseconds_of(moment) == (microseconds + 999) // 1_000


def test_arguments_are_parsed_or_refused_as_recorded() -> None:
    """As in arguments.txt. Numbers of thousands of digits are cut, for the same refusal as other numbers that do not
    fit into 64 bits. The exit code is that of the most severe outcome; errors have their own one, or the general one.
    """
    names = {**vars(parsing), **vars(render), **vars(exit_codes), "datetime": datetime, "UTC": UTC, "NOW": NOW}
    assert_values_recorded(ARGUMENTS, names | {"errors": errors, "Outcome": Outcome, "RemainingTime": RemainingTime})


def test_durations_in_words_are_accepted_as_timeouts() -> None:
    """Two units at most, rounded to the smaller one; `--timeout` accepts the words, and means the same."""
    words = {
        0: "0s", 0.001: "1ms", 0.9996: "1s", 59.5: "59.5s", 59.96: "1m", 79.02: "1m 19s", 3_599.7: "1h",
        5_400: "1h 30m", 86_399: "1d", 90_000: "1d 1h", 1_728_000: "20d",
    }  # fmt: skip
    assert {one: span(one) for one in words} == words
    assert (exact(59.9994), exact(59.9996)) == ("59.999 s", "1m"), "both forms round in the same place"
    assert [seconds(text) for text in words.values()] == pytest.approx(list(words), rel=0.01)
    assert [seconds(text) for text in ("1.5", "0.5 s", "0")] == [1.5, 0.5, 0]
