"""The log of the daemon and of connectors: one line of text or one JSON object for each entry, on stderr."""

import datetime as dt
import json
import logging
import sys


class TextFormatter(logging.Formatter):
    """2026-01-31T12:00:00.123Z INFO purgatory.daemon: stopped. A traceback follows on lines of its own."""

    def format(self, record: logging.LogRecord) -> str:
        line = f"{_instant(record)} {record.levelname} {record.name}: {record.getMessage()}"
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


class JsonFormatter(logging.Formatter):
    """One object per line: time, level, logger, message and, if there is one, exception."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": _instant(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def start_logging(form: str, level: str, *filters: logging.Filter) -> None:
    """Send the log of the whole process to stderr, replacing any handlers. `form`: "text" or "json"."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    for one in filters:
        handler.addFilter(one)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def _instant(record: logging.LogRecord) -> str:
    instant = dt.datetime.fromtimestamp(record.created, dt.UTC)
    return instant.isoformat(timespec="milliseconds").replace("+00:00", "Z")
