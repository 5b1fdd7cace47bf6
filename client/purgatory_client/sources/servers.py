"""Which servers of a database have the positions of a wait: the marks "pg/NAME/SERVER", "mysql/NAME/SERVER/SOURCE" and
"redis/NAME/SERVER", also where the wait was for `any`, `all` or `quorum` of them.
"""

import contextlib
from collections.abc import Mapping
from typing import Final, NamedTuple

from purgatory_client.errors import PermissionDenied
from purgatory_client.results import Result
from purgatory_client.unary import SingleCalls

NAME_PARTS: Final = {"pg": 3, "redis": 3, "mysql": 4}
GROUPS: Final = frozenset({"any", "all", "quorum"})


class ServerMark(NamedTuple):
    """The parts of a name: the database ("pg/main"), the server or group of them, and the log, if there are several."""

    database: str
    server: str
    log: str

    @classmethod
    def of(cls, name: str) -> "ServerMark | None":
        """None if it is not the mark of a server."""
        parts = name.split("/")
        if len(parts) != NAME_PARTS.get(parts[0]) or parts[2].startswith("slot:"):
            return None
        return cls("/".join(parts[:2]), parts[2], "/".join(parts[3:]))


async def reached_on(self: SingleCalls, result: Result) -> dict[str, frozenset[str]]:  # noqa: D417 - a method
    """Which servers can be read from after a wait, by database: {"pg/main": {"r1", "r2"}}.

    They have all reached positions of the result in that database. After a wait for `any`, `all` or `quorum` this asks
    the daemon, which lists the marks that this caller may observe; servers whose marks are stale are left out.

    Args:
        result: Of a wait for marks of servers; other marks are ignored.

    Raises:
        Unavailable: The daemon could not be reached.
    """
    required: dict[str, dict[str, int]] = {}
    reached: dict[str, dict[str, dict[str, int]]] = {}
    grouped = set()
    for item in result.items:
        if (mark := ServerMark.of(item.name)) is None or item.error_code:
            continue
        logs = required.setdefault(mark.database, {})
        logs[mark.log] = max(item.required_offset, logs.get(mark.log, 0))
        if mark.server in GROUPS:
            grouped.add(mark.database)
        else:
            reached.setdefault(mark.database, {}).setdefault(mark.server, {})[mark.log] = item.reached_offset
    with contextlib.suppress(PermissionDenied):  # on all names: then no server is known to have them
        for database in grouped:
            async for one in self.partitions(prefix=f"{database}/"):
                mark = ServerMark.of(one.name)
                if mark is not None and mark.server not in GROUPS and one.stale_for is None:
                    reached.setdefault(database, {}).setdefault(mark.server, {})[mark.log] = one.high_watermark
    return {database: _having(logs, reached.get(database, {})) for database, logs in required.items()}


def _having(required: Mapping[str, int], reached: Mapping[str, Mapping[str, int]]) -> frozenset[str]:
    return frozenset(
        server
        for server, offsets in reached.items()
        if all(offsets.get(log, -1) >= offset for log, offset in required.items())
    )
