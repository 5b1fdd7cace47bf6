"""The setting `source`."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, BeforeValidator
from pydantic_settings import NoDecode

from purgatory.service.settings import setting
from purgatory.source_uri import SourceUri, SourceUriInvalid


def _source_uris(given: object) -> object:
    """Normalize all forms: a line with several URIs, a list, or tables with one URI each."""
    if isinstance(given, str):
        return given.split()
    if isinstance(given, list | tuple):
        return [one.get("uri", one) if isinstance(one, dict) else one for one in given]
    return given


def _checked_sources(uris: tuple[str, ...]) -> tuple[str, ...]:
    for number, uri in enumerate(uris, 1):
        try:
            SourceUri.parse(uri)
        except SourceUriInvalid as error:
            raise ValueError(f"number {number}: {error}") from None
    return uris


class WithSources(BaseModel):
    """The setting, as the daemon's settings have it."""

    source: Annotated[tuple[str, ...], NoDecode, BeforeValidator(_source_uris), AfterValidator(_checked_sources)] = (
        setting(
            (),
            "Also run this source of marks: kafka://HOST:PORT, postgres://HOST:PORT, redis://HOST:PORT, "
            "poll+http://HOST:PORT/PATH or poll+sql://HOST:PORT/DATABASE (docs/sources.md). "
            "May be repeated; in the file a table [[source]] with `uri` for each, in the environment separated by "
            "spaces.",
            is_secret=True,  # refused for the very password that it contains
        )
    )
