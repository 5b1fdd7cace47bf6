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

from purgatory.cli.exit_codes import Exit, exit_of_error, exit_of_outcomes
from purgatory.cli.parsing import (
    UsageError,
    follower,
    ids,
    key_counts,
    moment_of,
    operation_reference,
    partition_offsets,
    seconds,
)
from purgatory.cli.render import counted, exact, remaining_line, span
from tests.kit.recorded import assert_recorded, cases_of

MOMENTS_FILE = Path(__file__).with_name("moments.txt")
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
    """Of two moments it is the later one that has been, and in a gap the end of the gap. As in moments.txt."""

    def moment(case: str) -> str:
        zone, now, clock = case.split()
        with monkeypatch.context() as environment:
            environment.setenv("TZ", zone)
            tzset()
            shown = moment_of(clock, datetime.fromisoformat(now), None if is_local else ZoneInfo(zone))
        tzset()
        return f"{shown.astimezone(UTC):%Y-%m-%dT%H:%M:%SZ}"

    assert_recorded(MOMENTS_FILE, map(moment, cases_of(MOMENTS_FILE)))


@pytest.mark.parametrize("text", ["2025-03-01T00:00:00Z", "2025-03-01T01:00:00+01:00", "2025-03-01 00:00+00:00"])
def test_a_time_with_an_offset_is_itself(text: str) -> None:
    assert moment_of(text, NOW) == datetime(2025, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["", "24:00", "0:00", "midnight", "2025-03-01", "2025-03-01T00:00:00", "2025-02-30T00:00Z"]
)
def test_time_without_an_offset_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="expected 00:00, or with an offset"):
        moment_of(text, NOW)


@given(st.integers(min_value=0, max_value=2**43))
def test_milliseconds_are_rounded_up(microseconds: int) -> None:
    """A record has whole milliseconds, so it is before a time exactly if it is before the next whole millisecond."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    assert milliseconds_of(moment) == (microseconds + 999) // 1_000


def test_targets_and_followers_are_parsed_as_users_write_them() -> None:
    assert partition_offsets(["a-1@5", "b-c-2@7"]) == {"a-1": 5, "b-c-2": 7}
    assert partition_offsets(["a-1", "b-2@3"], -1) == {"a-1": -1, "b-2": 3}
    assert key_counts(["job", "mail@example", "k@3"]) == {"job": 1, "mail@example": 1, "k": 3}
    assert (follower("2:41"), follower("2:41:7")) == ((2, 41, None), (2, 41, 7))


def test_numbers_of_thousands_of_digits_are_out_of_range() -> None:
    """They are parsed, cut, for the same refusal as any other number that does not fit into 64 bits."""
    long, cut = "9" * 5_000, 10**40 - 1
    assert partition_offsets([f"a-1@{long}", f"a-2@-{long}"]) == {"a-1": cut, "a-2": -cut}
    assert (key_counts([f"k@{long}"]), follower(f"2:{long}")) == ({"k": cut}, (2, cut, None))
    assert (ids(f"1, {long}"), operation_reference(f"session/{long}")) == ([1, cut], ("session", cut))


@pytest.mark.parametrize("text", ["", "-5s", "9" * 400, "5 weeks", "\u0663s", "1_0s"])
def test_text_that_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        seconds(text)


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


def test_time_left_leaves_out_empty_buckets() -> None:
    left = RemainingTime(soonest=0.25, latest=5_400, bounds=[1, 60, 3_600], operations=[3, 0, 2, 1])
    assert remaining_line(left) == (
        "time left: 3 up to 1s, 2 up to 1h, 1 more than 1h; first expires in 250ms, last in 1h 30m"
    )
    assert remaining_line(RemainingTime(None, None, [1], [0, 0])) == "nothing is pending"
    counts = [counted(count, "partition") for count in (0, 1, 200_006)]
    assert counts == ["0 partitions", "1 partition", "200,006 partitions"]


def test_exit_code_is_that_of_the_most_severe_outcome() -> None:
    assert exit_of_outcomes([]) == Exit.OK
    assert exit_of_outcomes([Outcome.SATISFIED]) == Exit.OK
    assert exit_of_outcomes([Outcome.SATISFIED, Outcome.EXPIRED]) == Exit.EXPIRED
    assert exit_of_outcomes([Outcome.SATISFIED, Outcome(99)]) == Exit.FAILED  # of a later daemon
    assert exit_of_outcomes([Outcome.EXPIRED, Outcome.REFUSED, Outcome.FAILED]) == Exit.REFUSED


def test_errors_have_their_own_exit_code_or_the_general_one() -> None:
    assert exit_of_error(errors.Unavailable("x")) is Exit.UNAVAILABLE
    assert exit_of_error(errors.LimitExceeded("x")) is Exit.REFUSED
    assert exit_of_error(errors.NotFound("x")) is Exit.NOT_FOUND
    assert exit_of_error(errors.ProtocolError("x")) is Exit.ERROR
