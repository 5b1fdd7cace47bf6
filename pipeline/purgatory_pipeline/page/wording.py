"""Formats numbers, instants and untrusted texts for a page. `Markup` is already escaped.

Missing numbers are shown as a dash. A share is shown as "0 %" or "100 %" only if it is exactly that.
"""

import math
import re
import unicodedata
from datetime import UTC, datetime
from typing import Final

import pandas as pd
from markupsafe import Markup, escape

MISSING: Final = "\u2013"
NBSP: Final = "\u00a0"
SHOWN_LENGTH_MAX: Final = 120


def is_missing(value: object) -> bool:
    """Whether a value is missing: None, NaN, or pandas' NaT and NA."""
    return bool(pd.isna(value))


def number_of(value: object) -> float:
    """The value as a float; NaN if it is missing or not a number."""
    if is_missing(value):
        return math.nan
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan


def count(value: object) -> str:
    """Formats an integer: 12,345."""
    number = number_of(value)
    return MISSING if math.isnan(number) else f"{number:,.0f}"


def rough_count(value: object) -> str:
    """Formats an integer for headlines: 12.3 million; exact below a million."""
    number = number_of(value)
    for limit, word in ((1e9, "billion"), (1e6, "million")):
        if abs(number) >= limit:
            return f"{number / limit:.3g}{NBSP}{word}"
    return count(value)


def decimal(value: object) -> str:
    """Formats a plain number with suitable precision: 1,234, 12.3, 0.12, 0.0083."""
    number = number_of(value)
    if math.isnan(number):
        return MISSING
    size = abs(number)
    if size >= 100 or number == int(number):
        return f"{number:,.0f}"
    places = max(1 if size >= 10 else 2, 1 - math.floor(math.log10(size)))
    return f"{number:,.{places}f}"


def share(value: object) -> str:
    """Formats a fraction in percent: 3.1 %; never rounded to 0 % or 100 %."""
    number = number_of(value)
    if math.isnan(number):
        return MISSING
    percent = number * 100
    if percent in {0, 100}:
        return f"{percent:.0f}{NBSP}%"
    if 0 < percent < 0.01:
        return f"<{NBSP}0.01{NBSP}%"
    if 99.99 < percent < 100:
        return f">{NBSP}99.99{NBSP}%"
    places = 2 if percent < 1 or 99.9 <= percent < 100 else 1
    return f"{percent:.{places}f}{NBSP}%"


def share_in_sentence(value: object) -> str:
    """Formats a share inside a sentence, where alignment does not matter: 63 %, not 63.0 %."""
    return share(value).replace(".0" + NBSP, NBSP)


def milliseconds(value: object) -> str:
    """Formats the length of one wait: 0.4 ms, 740 ms, 1,240 ms, 12.4 s, 3.5 min, 2.1 h."""
    number = number_of(value)
    if math.isinf(number):
        return "∞"
    for limit_ms, unit_ms, unit in ((7_200_000, 3_600_000, "h"), (120_000, 60_000, "min"), (10_000, 1_000, "s")):
        if abs(number) >= limit_ms:
            return f"{number / unit_ms:.1f}{NBSP}{unit}"
    places = 1 if abs(number) < 10 and number != int(number) else 0
    return MISSING if math.isnan(number) else f"{number:,.{places}f}{NBSP}ms"


def total_time(value: object) -> str:
    """Formats a sum of times: 740 ms, 7.4 s, 105 min, 14.2 h, 12.5 days."""
    number = number_of(value)
    days = (172_800_000, 86_400_000, "days")
    for limit_ms, unit_ms, unit in (days, (7_200_000, 3_600_000, "h"), (120_000, 60_000, "min"), (1_000, 1_000, "s")):
        if number >= limit_ms:
            amount = number / unit_ms
            return f"{amount:,.{0 if amount >= 100 else 1}f}{NBSP}{unit}"
    return milliseconds(number)


def as_is(value: object) -> str:
    return value if isinstance(value, str) else text(value)


def instant(value: object) -> str:
    """Formats an instant in UTC: 2026-07-01 14:00, with seconds only if they are not 0."""
    if is_missing(value):
        return MISSING
    moment = to_utc(value)
    return moment.strftime("%Y-%m-%d %H:%M" if moment.second == 0 else "%Y-%m-%d %H:%M:%S")


def to_utc(value: object) -> datetime:
    """A datetime of pandas or Python in UTC; one without a time zone is taken as UTC."""
    moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def plural(number: object, one: str, many: str = "") -> str:
    """Formats a number with its noun: 1 operation; 2 operations."""
    return f"{count(number)}{NBSP}{one if number_of(number) == 1 else many or one + 's'}"


def text(value: object, length_max: int = SHOWN_LENGTH_MAX) -> str:
    """Makes untrusted text safe to show, without escaping it: invisible characters and changes of direction are spelled
    out.
    """
    if is_missing(value):
        return MISSING
    visible = "".join(_visible(character) for character in str(value)[: length_max + 1])
    if len(visible) > length_max:
        return visible[: length_max - 1] + "…"
    return visible or "(empty)"


def name(value: object) -> Markup:
    """A topic, key or principal inside a sentence, set off as code."""
    return Markup("<code><bdi>{}</bdi></code>").format(text(value))


def name_or_all(topic: object) -> str:
    """The topic of a row, or "all topics" for a row without a topic."""
    return "all topics" if is_missing(topic) else name(topic)


def strong(value: object) -> Markup:
    return Markup("<strong>{}</strong>").format(value)


def subtitle(archive: str, first_at: datetime | None, last_at: datetime | None, operations: int) -> Markup:
    """The subtitle of a page: the archive, its time span, and its number of operations."""
    span = (instant(first_at), instant(last_at))
    return Markup("{} · {} to {} UTC · {}").format(name(archive), *span, plural(operations, "operation"))


def unbroken(sentence: str) -> str:
    """Keeps figures and their units on one line."""
    return re.sub(r"(?<=\d) (?=%|ms\b)", NBSP, sentence)


def with_code_names(words: str) -> Markup:
    """Converts backticks in our own texts to code names."""
    parts = words.split("`")
    return Markup().join(name(part) if place % 2 else escape(part) for place, part in enumerate(parts))


def listed(parts: list[Markup] | list[str]) -> Markup:
    """Joins texts with commas: a, b and c."""
    if len(parts) <= 1:
        return escape(parts[0]) if parts else Markup()
    return Markup(", ").join(parts[:-1]) + " and " + escape(parts[-1])


def _visible(character: str) -> str:
    category = unicodedata.category(character)
    return f"\\u{ord(character):04x}" if category.startswith("C") or category in {"Zl", "Zp"} else character


FIGURES: Final = (count, rough_count, decimal, share, milliseconds, total_time, as_is)
"""The formatters of figures, which tables align to the right."""
