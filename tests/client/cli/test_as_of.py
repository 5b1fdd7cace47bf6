"""`purgatory caught-up --as-of`: the times that it accepts, and a source that cannot look up a time."""

import asyncio
from datetime import UTC, datetime, time, timedelta
from time import tzset
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from purgatory_client.unary import milliseconds_of

from purgatory.cli.exit_codes import Exit
from purgatory.cli.parsing import UsageError, moment_of
from tests.client.cli.test_commands import purgatory
from tests.kit.daemon import StartDaemon
from tests.kit.eventually import wait_until

NOW = datetime(2025, 3, 1, 9, 30, tzinfo=UTC)
MOMENTS = st.datetimes(datetime(1990, 1, 1), datetime(2035, 1, 1)).map(lambda one: one.astimezone())


@given(MOMENTS, st.times().map(lambda one: one.replace(microsecond=0)))
def test_a_clock_time_is_its_last_occurrence(now: datetime, clock: time) -> None:
    """It is the last moment, at or before now, at which local clocks showed that time, on days of 24 hours."""
    assume(len({(now - timedelta(days=days)).astimezone().utcoffset() for days in range(3)}) == 1)
    since_midnight = timedelta(hours=now.hour, minutes=now.minute, seconds=now.second, microseconds=now.microsecond)
    ago = since_midnight - timedelta(hours=clock.hour, minutes=clock.minute, seconds=clock.second)
    assert moment_of(clock.isoformat(), now) == now - (ago if ago >= timedelta(0) else ago + timedelta(days=1))


@pytest.mark.parametrize(
    ("zone", "now", "clock", "moment"),
    [
        # Havana puts its clocks back at 01:00: midnight is at 04:00 and at 05:00 in UTC.
        ("America/Havana", "2025-11-02T12:00Z", "00:00", "2025-11-02T05:00Z"),
        ("America/Havana", "2025-11-02T04:30Z", "00:00", "2025-11-02T04:00Z"),
        ("America/Havana", "2025-11-02T12:00Z", "01:00", "2025-11-02T06:00Z"),
        # And forward at midnight, to 01:00.
        ("America/Havana", "2025-03-09T12:00Z", "00:00", "2025-03-09T05:00Z"),
        ("America/Havana", "2025-03-09T12:00Z", "00:59:59", "2025-03-09T05:00Z"),
        ("America/Havana", "2025-03-09T12:00Z", "01:00", "2025-03-09T05:00Z"),
        ("America/Havana", "2025-03-09T12:00Z", "23:59:59", "2025-03-09T04:59:59Z"),
        ("Europe/Berlin", "2025-10-26T12:00Z", "02:30", "2025-10-26T01:30Z"),
        ("Europe/Berlin", "2025-10-26T00:45Z", "02:30", "2025-10-26T00:30Z"),
        ("Europe/Berlin", "2025-03-30T12:00Z", "02:30", "2025-03-30T01:00Z"),
        ("Pacific/Apia", "2011-12-31T09:00Z", "23:00", "2011-12-31T09:00Z"),
        ("Pacific/Apia", "2011-12-30T20:00Z", "22:00", "2011-12-30T10:00Z"),  # a date that was left out
    ],
)
@pytest.mark.parametrize("is_local", [False, True])
def test_clock_time_when_clocks_are_changed(
    monkeypatch: pytest.MonkeyPatch, zone: str, now: str, clock: str, moment: str, is_local: bool
) -> None:
    """Of two moments it is the later one that has been, and in a gap the end of the gap."""
    with monkeypatch.context() as environment:
        environment.setenv("TZ", zone)
        tzset()
        shown = moment_of(clock, datetime.fromisoformat(now), None if is_local else ZoneInfo(zone))
    tzset()
    assert shown == datetime.fromisoformat(moment)


@pytest.mark.parametrize("text", ["2025-03-01T00:00:00Z", "2025-03-01T01:00:00+01:00", "2025-03-01 00:00+00:00"])
def test_a_time_with_an_offset_is_itself(text: str) -> None:
    """RFC 3339, also with a space in place of the T, or without seconds."""
    assert moment_of(text, NOW) == datetime(2025, 3, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "text", ["", "24:00", "0:00", "midnight", "2025-03-01", "2025-03-01T00:00:00", "2025-02-30T00:00Z"]
)
def test_other_times_are_refused(text: str) -> None:
    """A time without an offset could be anybody's. The error shows the two forms."""
    with pytest.raises(UsageError, match="expected 00:00, or with an offset"):
        moment_of(text, NOW)


@given(st.integers(min_value=0, max_value=2**43))
def test_milliseconds_are_rounded_up(microseconds: int) -> None:
    """A record has whole milliseconds, so it is before a time exactly if it is before the next whole millisecond."""
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=microseconds)
    assert milliseconds_of(moment) == (microseconds + 999) // 1_000


@pytest.mark.slow
async def test_a_source_that_cannot_look_up_a_time(start_daemon: StartDaemon) -> None:
    """PostgreSQL's source refuses (exit code 15) in place of answering with the present end; so does the daemon with
    times in the future.
    """
    pytest.importorskip("psycopg")
    daemon = start_daemon("--source", "postgres://127.0.0.1:9/postgres?user=nobody")
    await asyncio.to_thread(wait_until, lambda: "source 'postgres://127.0.0.1:9'" in daemon.log, "it is attached")

    def caught_up(as_of: str) -> tuple[int, str]:
        run = purgatory("caught-up", "pg/main/all", "--as-of", as_of, address=daemon.address)
        return run.returncode, run.stderr

    code, said = await asyncio.to_thread(caught_up, "00:00")
    assert (code, "cannot look up where pg/main/all ended at " in said) == (Exit.REFUSED, True), said
    code, said = await asyncio.to_thread(caught_up, "9999-01-01T00:00:00Z")
    assert (code, "must be from 0 to the present" in said) == (Exit.REFUSED, True), said
