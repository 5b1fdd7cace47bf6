"""Settings of a poll source: what to read, where, and when.

    poll+http://app:8080/status?pointer=/position
    poll+sql://db:5432/shop?query=SELECT max(id) FROM events&user=reader

Options that are not the source's own belong to the system: the query of the HTTP request, the options of the driver.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from jsonpointer import JsonPointer, JsonPointerException

from purgatory_connectors.errors import SourceUriInvalid
from purgatory_connectors.publisher.polled_source import POLL_OPTIONS, PollTimes, checked_name
from purgatory_connectors.uri import SourceUri

SQL: Final = "poll+sql"
_HEADER: Final = "header."


@dataclass(frozen=True, slots=True)
class PollSettings:
    """All settings of the source.

    Attributes:
        what: A JSON pointer or an SQL query: the position, or several by name.
        end: The same for the end of the log that the position follows; None: there is none.
        headers: Headers of the HTTP request.
        others: The options that belong to the system.
    """

    name: str
    uri: SourceUri
    what: str
    end: str | None
    headers: Mapping[str, str]
    others: Mapping[str, str]
    times: PollTimes

    @classmethod
    def of_uri(cls, uri: SourceUri) -> "PollSettings":
        """Read the settings from an address, its file and the environment. Raises SourceUriInvalid."""
        uri = replace(uri, options={**uri.config("PURGATORY_POLL_"), **uri.options})
        if len(uri.hosts) > 1:
            raise SourceUriInvalid(f"source {uri.text!r}: one host, because several may have different positions")
        key = "query" if uri.scheme == SQL else "pointer"
        what, end = uri.options.get(key, ""), uri.options.get("end")
        if uri.scheme != SQL:
            _check_pointers(uri, what, end or "")
        elif not what:
            raise SourceUriInvalid(f"source {uri.text!r}: add query=SELECT ..., which returns the position")
        others = {option: value for option, value in uri.options.items() if option not in {*POLL_OPTIONS, key, "end"}}
        headers = {option: others.pop(option) for option in list(others) if option.startswith(_HEADER)}
        headers = {option.removeprefix(_HEADER).replace(".", "-"): value for option, value in headers.items()}
        return cls(checked_name(uri), uri, what, end, headers, others, PollTimes.of_uri(uri, poll_ms=100))


def _check_pointers(uri: SourceUri, *pointers: str) -> None:
    for pointer in pointers:
        try:
            JsonPointer(pointer)
        except JsonPointerException as error:
            raise SourceUriInvalid(
                f"source {uri.text!r}: {pointer!r} is no JSON pointer ({error}); write /status/position"
            ) from error
