"""Which servers of a database have the positions of a wait: the marks "pg/NAME/SERVER", "mysql/NAME/SERVER/SOURCE" and
"redis/NAME/SERVER", also where the wait was for `any`, `all` or `quorum` of them.
"""

import contextlib
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
    required: dict[tuple[str, str], int] = {}
    reached: dict[ServerMark, int] = {}
    for item in result.items:
        if (mark := ServerMark.of(item.name)) is not None and not item.error_code:
            log = (mark.database, mark.log)
            required[log] = max(item.required_offset, required.get(log, 0))
            reached[mark] = item.reached_offset
    with contextlib.suppress(PermissionDenied):  # on all names: then no server is known to have them
        for database in {one.database for one in reached if one.server in GROUPS}:
            async for one in self.partitions(prefix=f"{database}/"):
                if (mark := ServerMark.of(one.name)) is not None and one.stale_for is None:
                    reached[mark] = one.high_watermark

    def has_all(one: ServerMark) -> bool:
        logs = [(log, offset) for (database, log), offset in required.items() if database == one.database]
        return one.server not in GROUPS and all(reached.get(one._replace(log=log), -1) >= at for log, at in logs)

    having = {(one.database, one.server) for one in reached if has_all(one)}
    return {database: frozenset(name for base, name in having if base == database) for database, _ in required}
