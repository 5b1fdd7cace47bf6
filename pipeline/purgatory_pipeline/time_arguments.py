"""`--since` and `--until`: instants in ISO 8601, UTC unless they say otherwise."""

from __future__ import annotations

from datetime import UTC, datetime

from purgatory_pipeline.errors import WindowInvalid


def parse_window(since: str, until: str) -> tuple[datetime | None, datetime | None]:
    """Both ends of a window, None where nothing was given. Raises `WindowInvalid`."""
    start, end = _parse_instant("--since", since), _parse_instant("--until", until)
    if start is not None and end is not None and start >= end:
        raise WindowInvalid(f"--since {since} is not before --until {until}")
    return start, end


def _parse_instant(option: str, text: str) -> datetime | None:
    if not text:
        return None
    try:
        instant = datetime.fromisoformat(text)
    except ValueError:
        raise WindowInvalid(f"{option} {text}: an instant is written 2026-11-21 or 2026-11-21T18:00:00Z") from None
    return instant.replace(tzinfo=UTC) if instant.tzinfo is None else instant
