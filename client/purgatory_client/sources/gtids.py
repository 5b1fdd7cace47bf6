"""Global transaction ids of MySQL ("UUID:23", "UUID:tag:23") and MariaDB ("0-1-100"), and sets of them.

A *source* numbers its transactions without gaps: on MySQL a server, a group, or a tag of one of them; on MariaDB a
replication domain.
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from purgatory_client.errors import InvalidRequest

_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TAG: Final = re.compile(r"[a-z_][a-z0-9_]{0,31}")
_INTERVAL: Final = re.compile(r"([0-9]{1,19})(?:\s*-\s*([0-9]{1,19}))?", re.ASCII)
_MARIADB: Final = re.compile(r"([0-9]{1,10})-([0-9]{1,10})-([0-9]{1,20})")


class Executed(NamedTuple):
    """The transactions of a source that a server has executed.

    Attributes:
        position: All transactions from the first to this one; 0 if it lacks the first.
        newest: The highest one, which parallel appliers may have executed before others.
        writer: MariaDB: id of the server that wrote `position`. MySQL: UUID of the source.
    """

    position: int
    newest: int
    writer: str


def executed_of(text: str) -> Mapping[str, Executed]:
    """The transactions that a server has executed, by source: "UUID", "UUID:TAG", or the number of a domain.

    Args:
        text: `@@gtid_executed` of MySQL, or `@@gtid_current_pos` of MariaDB.

    Raises:
        InvalidRequest: The text is neither.
    """
    intervals: dict[str, list[tuple[int, int]]] = {}
    found = {}
    for one in filter(None, (one.strip() for one in text.split(","))):
        if mariadb := _MARIADB.fullmatch(one):
            found[mariadb[1]] = Executed(int(mariadb[3]), int(mariadb[3]), mariadb[2])
            continue
        uuid, *parts = (part.strip() for part in one.lower().split(":"))
        source = uuid if _UUID.fullmatch(uuid) and parts else ""
        for part in parts:
            interval = _INTERVAL.fullmatch(part)
            if not source or not (interval or _TAG.fullmatch(part)):
                source = ""
                break
            if interval is None:
                source = f"{uuid}:{part}"
            else:
                intervals.setdefault(source, []).append((int(interval[1]), int(interval[2] or interval[1])))
        if not source:
            raise InvalidRequest("gtid", f"{one[:100]!r} is not a GTID: write UUID:1-23, UUID:tag:23 or 0-1-23")
    for source, of_source in intervals.items():
        position = 0
        for first, last in sorted(of_source):
            if first > position + 1:
                break
            position = max(position, last)
        newest = max(last for _, last in of_source)
        found[source] = Executed(position, newest, source.partition(":")[0])
    return found


def position_of_gtid(gtid: str) -> tuple[str, int]:
    """The source and the number of one transaction: what a mark "mysql/NAME/SERVER/SOURCE" must reach.

    Args:
        gtid: As the server tells the session that wrote: `session_track_gtids=OWN_GTID` of MySQL, `@@last_gtid` of
            MariaDB.

    Raises:
        InvalidRequest: The text is not one GTID.
    """
    found = executed_of(gtid)
    if len(found) != 1:
        raise InvalidRequest("gtid", f"{gtid[:100]!r} is not the GTID of one transaction")
    ((source, executed),) = found.items()
    return source, executed.newest
