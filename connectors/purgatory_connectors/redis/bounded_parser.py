"""Reads answers of a server up to a size, so that one which is not Redis cannot take the source's memory or time."""

from __future__ import annotations

from typing import Any, Final

from redis._parsers import _AsyncRESP2Parser
from redis.exceptions import InvalidResponse

ANSWER_BYTES_MAX: Final = 1 << 16
"""`INFO replication` has about 1,000 bytes, and 100 for each replica."""


class BoundedParser(_AsyncRESP2Parser):
    """The package's parser of protocol 2. It has no limits of its own, and does not let the loop run while it has data.

    Raises InvalidResponse for an answer that is longer or nested too deeply; the package then closes the connection.
    """

    async def read_response(self, disable_decoding: bool = False) -> Any:  # noqa: ANN401 - as in the package
        self._left = ANSWER_BYTES_MAX
        try:
            return await super().read_response(disable_decoding)
        except RecursionError:
            raise InvalidResponse("its answer is nested too deeply") from None

    async def _read(self, length: int) -> bytes:
        self._count(length)
        octets: bytes = await super()._read(length)
        return octets

    async def _readline(self) -> bytes:
        line: bytes = await super()._readline()
        self._count(len(line) + 2)
        return line

    def _count(self, length: int) -> None:
        self._left -= length
        if self._left < 0:
            raise InvalidResponse(f"its answer is longer than {ANSWER_BYTES_MAX:,} bytes")
