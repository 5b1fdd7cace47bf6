"""How the daemon logs: one line of text or one JSON object for each entry, on stderr. No other file formats entries."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys

from purgatory.service.settings import LogSettings


class TextFormatter(logging.Formatter):
    """One line: 2026-01-31T12:00:00.123Z INFO purgatory.daemon: stopped."""

    def format(self, record: logging.LogRecord) -> str:
        """The entry as text; a traceback follows on lines of its own."""
        line = f"{_instant(record)} {record.levelname} {record.name}: {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One object a line: time, level, logger, message and, where there is one, exception."""

    def format(self, record: logging.LogRecord) -> str:
        """The entry as one line of JSON."""
        entry = {
            "time": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def start_logging(settings: LogSettings) -> None:
    """Sends what the whole process logs to stderr. Replaces handlers that are there already."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if settings.format == "json" else TextFormatter())
    logging.basicConfig(level=settings.level.upper(), handlers=[handler], force=True)


def _instant(record: logging.LogRecord) -> str:
    """When the entry was made, UTC, in milliseconds."""
    instant = dt.datetime.fromtimestamp(record.created, dt.UTC)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
