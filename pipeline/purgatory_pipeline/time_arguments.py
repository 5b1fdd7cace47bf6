"""Instants and spans of time on the command line. Instants are ISO 8601, in UTC unless they say otherwise."""

import re
from datetime import UTC, datetime
from typing import Final

from purgatory_pipeline.errors import PipelineError

UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN: Final = re.compile(r"([0-9]{1,15})(ms|s|m|h|d)?")


def parse_window(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    """The start and end of a window; None if it is open. Raises `PipelineError`."""
    start, end = parse_instant("--since", since), parse_instant("--until", until)
    if start is not None and end is not None and start >= end:
        raise PipelineError(f"--since {since} is not before --until {until}")
    return start, end


def parse_instant(option: str, text: str | None) -> datetime | None:
    """Parses an instant; None if there is none. Raises `PipelineError`."""
    if not text:
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(f"{option} {text}: not an instant; expected 2026-11-21 or 2026-11-21T18:00:00Z") from None
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant


def parse_span_ms(option: str, text: str) -> int:
    """A span of time in milliseconds: 500ms, 10s, 5m, 1h, 1d; a bare number is milliseconds. Raises `PipelineError`."""
    match = _SPAN.fullmatch(text.strip())
    if match is None:
        raise PipelineError(f"{option} {text}: not a duration; expected 500ms, 10s, 5m, 1h or 1d")
    return int(match[1]) * UNITS_MS[match[2] or "ms"]
