"""The keywords of `advance("orders-3", high_watermark=42, ...)`, and the events that they produce, in a safe order.

The order: first the events that let the partition accept the rest (storage online, leadership, truncation); then the
in-sync set; then the progress of each replica (an open transaction first, so that no reader passes it); then the marks
derived from it; and last the removal of the partition.
"""

from collections.abc import Iterable, Iterator
from typing import Literal, TypedDict

from purgatory_client import events
from purgatory_client.argument_checks import check_keywords, several
from purgatory_client.errors import InvalidRequest
from purgatory_client.events import Event
from purgatory_client.waits import Name


class Marks(TypedDict, total=False):
    """The keywords of `advance`. Omitted values do not change.

    Attributes:
        leader_epoch: The leader epoch of the reporter. Refused if older than the partition's.
        storage: The state of the log directory: "failed" or "online".
        is_leader: Whether the reporter leads the partition now. Requires `leader_epoch`.
        leader_id: The leader's replica id.
        replica_ids: With `is_leader`: all assigned replicas, including the leader.
        epoch_start_offset: With `is_leader`: the first offset of the epoch.
        truncate_to: The log end offset to which the log was truncated.
        in_sync_replicas: The in-sync set.
        proposed_in_sync_replicas: A set that is not confirmed yet.
        min_in_sync_replicas: The minimum size of the set for acknowledging a write.
        dead_replica: A replica whose broker is dead.
        live_replica: A replica that is neither dead nor fenced.
        fenced_replica: A replica that may not join the in-sync set.
        log_end_offset: The leader's new log end offset.
        byte_position: With `log_end_offset`: its position in the log, in bytes.
        segment_base_offset: With `log_end_offset`: the base offset of its segment.
        replica: A follower that has fetched: (id, log end offset) or (id, log end offset, log start offset).
        high_watermark: All in-sync replicas have every record below this offset.
        last_stable_offset: The start of the oldest open transaction; None: no transaction is open.
        log_start_offset: The first readable offset.
        removed: True: the partition was deleted. "moved": it moved to another broker.
    """

    leader_epoch: int | None
    storage: Literal["failed", "online"]
    is_leader: bool
    leader_id: int | None
    replica_ids: Iterable[int]
    epoch_start_offset: int | None
    truncate_to: int
    in_sync_replicas: Iterable[int]
    proposed_in_sync_replicas: Iterable[int]
    min_in_sync_replicas: int | None
    dead_replica: int
    live_replica: int
    fenced_replica: int
    log_end_offset: int
    byte_position: int | None
    segment_base_offset: int | None
    replica: tuple[int, int] | tuple[int, int, int | None]
    high_watermark: int
    last_stable_offset: int | None
    log_start_offset: int
    removed: bool | Literal["moved"]


def events_of(name: Name, marks: Marks) -> list[Event]:
    """Convert marks to events. Raises InvalidRequest if they are incomplete, contradictory or without effect."""
    check_keywords("advance", marks, Marks.__optional_keys__)
    found = list(_in_safe_order(name, marks))
    if "log_end_offset" not in marks and ("byte_position" in marks or "segment_base_offset" in marks):
        raise InvalidRequest("leader_append", "byte_position and segment_base_offset require log_end_offset")
    if "is_leader" not in marks and ("replica_ids" in marks or "epoch_start_offset" in marks):
        raise InvalidRequest("leadership", "replica_ids and epoch_start_offset require is_leader")
    if not found:
        raise InvalidRequest("events", "no event given; give at least one mark, such as high_watermark=42")
    return found


def _in_safe_order(name: Name, marks: Marks) -> Iterator[Event]:
    epoch = marks.get("leader_epoch")
    storage, removed, unstable = marks.get("storage"), marks.get("removed"), marks.get("last_stable_offset")
    if storage not in (None, "online", "failed"):
        raise InvalidRequest("storage", f"{storage!r}; must be 'online' or 'failed'")
    if removed not in (None, False, True, "moved"):
        raise InvalidRequest("removed", f"{removed!r}; must be True or 'moved'")
    if storage == "online":
        yield events.storage_online(name, leader_epoch=epoch)
    if "is_leader" in marks:
        yield _leadership(name, marks)
    if "truncate_to" in marks:
        yield events.truncation(name, marks["truncate_to"], leader_epoch=epoch)
    leader_alone = marks.get("leader_id") is not None and "is_leader" not in marks
    if leader_alone or marks.keys() & {"in_sync_replicas", "proposed_in_sync_replicas", "min_in_sync_replicas"}:
        yield events.in_sync_replicas(
            name,
            marks.get("in_sync_replicas", ()),
            proposed=marks.get("proposed_in_sync_replicas", ()),
            leader_id=marks.get("leader_id"),
            min_in_sync_replicas=marks.get("min_in_sync_replicas"),
            leader_epoch=epoch,
        )
    if "dead_replica" in marks:
        yield events.replica_state(name, marks["dead_replica"], dead=True, leader_epoch=epoch)
    if "live_replica" in marks:
        yield events.replica_state(name, marks["live_replica"], leader_epoch=epoch)
    if "fenced_replica" in marks:
        yield events.replica_state(name, marks["fenced_replica"], fenced=True, leader_epoch=epoch)
    if unstable is not None:
        yield events.last_stable_offset(name, unstable, leader_epoch=epoch)
    if "log_end_offset" in marks:
        yield events.log_end_offset(
            name,
            marks["log_end_offset"],
            byte_position=marks.get("byte_position"),
            segment_base_offset=marks.get("segment_base_offset"),
            leader_epoch=epoch,
        )
    if "replica" in marks:
        given = marks["replica"]
        if len(several(given, "replica")) not in {2, 3}:
            raise InvalidRequest("replica", f"{given}; give an id, a log end offset, and perhaps a log start offset")
        replica_id, log_end, *rest = given
        log_start = rest[0] if rest else None
        yield events.follower_progress(name, replica_id, log_end, log_start_offset=log_start, leader_epoch=epoch)
    if "high_watermark" in marks:
        yield events.high_watermark(name, marks["high_watermark"], leader_epoch=epoch)
    if "last_stable_offset" in marks and unstable is None:
        yield events.last_stable_offset(name, None, leader_epoch=epoch)
    if "log_start_offset" in marks:
        yield events.log_start_offset(name, marks["log_start_offset"], leader_epoch=epoch)
    if storage == "failed":
        yield events.storage_failed(name, leader_epoch=epoch)
    if removed:
        yield events.removed(name, moved=removed == "moved", leader_epoch=epoch)


def _leadership(name: Name, marks: Marks) -> Event:
    epoch = marks.get("leader_epoch")
    if epoch is None:
        raise InvalidRequest("leader_epoch", "required with is_leader")
    return events.leadership(
        name,
        is_leader=marks["is_leader"],
        leader_epoch=epoch,
        leader_id=marks.get("leader_id"),
        replica_ids=marks.get("replica_ids", ()),
        epoch_start_offset=marks.get("epoch_start_offset"),
    )
