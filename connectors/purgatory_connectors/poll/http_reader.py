"""Reads a JSON document over HTTP."""

import asyncio
import json
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, urlencode, urlsplit, urlunsplit

import httpcore
from jsonpointer import JsonPointer, JsonPointerException

from purgatory_connectors.errors import SourceUriInvalid
from purgatory_connectors.publisher.polled_source import Unreadable
from purgatory_connectors.uri import SourceUri

BYTES_MAX: Final = 1 << 20
_HEADER: Final = "header."


class HttpReader:
    """Keeps one connection. Redirects are not followed: they would hide which server answers.

    Args:
        uri: The address.
        others: Headers ("header.NAME"), and the query of the request.
        pointers: The JSON pointers that will be read.

    Raises:
        SourceUriInvalid: One of them cannot be used. Values of headers are secrets and are not shown.
    """

    def __init__(self, uri: SourceUri, others: Mapping[str, str], *pointers: str) -> None:
        for pointer in pointers:
            try:
                JsonPointer(pointer)
            except JsonPointerException as error:
                raise SourceUriInvalid(
                    f"source {uri.text!r}: {pointer!r} is not a JSON pointer; expected a form like /status/position"
                ) from error
        named = [option for option in others if option.startswith(_HEADER)]
        # Secrets in files often end with a line break.
        headers = [(option.removeprefix(_HEADER).replace(".", "-"), others[option].strip()) for option in named]
        for name, value in headers:
            if not (name.isascii() and value.isascii() and value.isprintable()):
                raise SourceUriInvalid(f"source {uri.text!r}: the header {name!r} must be one line of printable ASCII")
        query = urlencode({option: value for option, value in others.items() if option not in named})
        path = quote(urlsplit(uri.text).path, safe="/%:@!$&'()*+,;=~")  # as given: `uri.path` has no slash at its end
        self._url: Final = urlunsplit((uri.scheme.removeprefix("poll+"), uri.hosts[0], path, query, ""))
        self._headers: Final = [("accept", "application/json"), *headers]
        self._pool = httpcore.AsyncConnectionPool(max_connections=1)

    async def read(self, what: str) -> object:
        """The value at this JSON pointer. Raises Unreadable."""
        status, body = await self._get()
        if status != 200:
            raise Unreadable(f"it answers with status {status} instead of 200", is_refused=status in {401, 403})
        try:
            return JsonPointer(what).resolve(json.loads(body))
        except JsonPointerException:
            raise Unreadable(f"its answer has nothing at the pointer {what!r}") from None
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"its answer is not JSON: {error}") from error

    async def close(self) -> None:
        await self._pool.aclose()

    async def _get(self) -> tuple[int, bytes]:
        body = bytearray()
        try:
            async with self._pool.stream("GET", self._url, headers=self._headers) as response:
                async for part in response.aiter_stream():
                    body += part
                    if len(body) > BYTES_MAX:
                        raise Unreadable(f"its answer is longer than {BYTES_MAX:,} bytes")
                return response.status, bytes(body)
        except asyncio.CancelledError:
            # The pool may count the cancelled request, or its connection, as active for ever.
            pool, self._pool = self._pool, httpcore.AsyncConnectionPool(max_connections=1)
            await pool.aclose()
            raise
        except (httpcore.NetworkError, httpcore.ProtocolError, OSError) as error:
            raise Unreadable(str(error) or type(error).__name__) from error
