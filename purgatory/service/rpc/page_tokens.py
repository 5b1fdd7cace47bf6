"""Page tokens: opaque to callers, and refused when forged or made for another request. Pure functions."""

import base64
import binascii
import json
from typing import Final

from purgatory.service.rpc.statuses import invalid_argument, quoted

PAGE_SIZE_DEFAULT: Final = 100
PAGE_SIZE_MAX: Final = 1_000

Place = list[int | str]
"""Where a page begins; its parts mean something only to the listing."""


def page_size(asked: int) -> int:
    """The size of the page: the default for 0, at most the maximum. Refuses negative sizes."""
    if asked < 0:
        raise invalid_argument("page_size", f"must be 0 or greater, not {asked}")
    return min(asked, PAGE_SIZE_MAX) if asked else PAGE_SIZE_DEFAULT


def make_token(request: str, place: Place) -> str:
    """The token of the page that begins at `place`; `request` identifies the listing and its filters."""
    text = json.dumps([_digest(request), *place], separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode()


def read_token(request: str, token: str, shape: tuple[type, ...]) -> Place | None:
    """Where the page begins; None for the first one. Refuses forged tokens and those of other requests.

    `shape` gives the types of the place's parts.
    """
    if not token:
        return None
    try:
        parts = json.loads(base64.b64decode(token.encode(), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):  # a forged token may nest brackets deeper than json can recurse
        parts = None
    if not isinstance(parts, list) or tuple(type(part) for part in parts[1:]) != shape or parts[0] != _digest(request):
        raise invalid_argument(
            "page_token",
            f"must come from the previous answer, with the same filters; this one does not: {quoted(token)}",
        )
    place: Place = parts[1:]
    return place


def _digest(request: str) -> int:
    return binascii.crc32(request.encode())
