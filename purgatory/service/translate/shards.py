"""Shards: which of several daemons has a session, and which one decides a signal.

The shard of a key applies a signal and returns it as decided, with the key's value and failure. The caller sends that
to the other shards; until then, the signal is a heartbeat to them.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple
from zlib import crc32

from google.rpc import code_pb2, error_details_pb2

from purgatory.engine import codes
from purgatory.engine.batches import EventBatch, Refusal
from purgatory.engine.columns import value_at
from purgatory.engine.limits import SIGNAL_VALUE_BYTES_MAX
from purgatory.engine.marks.registry import SignalKeys
from purgatory.engine.marks.signals import DECIDED_FLAG
from purgatory.service.errors import DOMAIN, RpcError, quoted
from purgatory.service.translate.events import REFUSED_TYPE, IncomingEvents
from purgatory.v1 import event_pb2
from purgatory.v1 import purgatory_service_pb2 as wire

VALUE_BYTES_MAX: Final = 1_000 * SIGNAL_VALUE_BYTES_MAX
"""Maximum total size of the values in one receipt."""

NOT_PASSED_ON: Final = (
    "this is one of several shards: send each of them what the receipts of the others have as decided, and set "
    "passes_on_decided"
)

Request = wire.AdvanceRequest | wire.AdvanceStreamRequest


def shard_of(name: str, shards: int) -> int:
    return crc32(name.encode()) % shards


class Shards(NamedTuple):
    """The shards of a fleet, as one of its daemons sees them."""

    targets: Sequence[str] = ()
    """The gRPC target of each; none if there is one shard."""
    urls: Sequence[str] = ()
    """The HTTP address of each; none if they are not known."""
    shard: int = 0
    """That of this daemon."""

    @property
    def are_several(self) -> bool:
        return len(self.targets) > 1

    def of(self, name: str) -> int:
        return shard_of(name, len(self.targets)) if self.are_several else self.shard

    def topology(self) -> wire.GetTopologyResponse:
        if not self.are_several:
            return wire.GetTopologyResponse(shards=1)
        return wire.GetTopologyResponse(shards=len(self.targets), targets=self.targets, shard=self.shard)

    def check_session(self, session_id: str) -> None:
        """Raise `RpcError` for a session of another shard: one session must not exist in two."""
        shard = self.of(session_id)
        if shard != self.shard:
            target = self.targets[shard]
            raise _refusal(
                f"session {quoted(session_id)} belongs to shard {shard}, at {target}; this is shard {self.shard}",
                "OTHER_SHARD",
                {"shard": str(shard), "target": target},
            )

    def check_events(self, request: Request) -> None:
        """Raise `RpcError` for events that do not reach the other ones of several shards."""
        if not request.all_shards:
            raise _refusal(
                f"this is shard {self.shard} of {len(self.targets)}, and waits at the others would miss these events: "
                "send them to every target of GetTopology, with all_shards",
                "ALL_SHARDS_NEEDED",
                {},
            )

    def prepare(
        self, events: IncomingEvents, request: Request, decided: Sequence[event_pb2.Event], keys: SignalKeys
    ) -> None:
        """Turn signals for keys of other shards into heartbeats, in `events`, a part of the request. Refuse signals
        that cannot be decided or passed on. `decided` are those of earlier parts that were decided.
        """
        batch = events.batch
        if not self.are_several and not any(flag & DECIDED_FLAG for flag in batch.flags):
            return
        value_bytes = sum([len(event.key_signalled.value) for event in decided])
        for row, key, _ in list(_signals(batch)):
            refusal, is_own, known = None, self.of(key) == self.shard, keys.get(key)
            if value_at(batch.flags, row, 0) & DECIDED_FLAG:
                counts = [value_at(column, row, 0) for column in (batch.segment_base_offsets, batch.log_start_offsets)]
                if is_own:
                    refusal = codes.INVALID_ARGUMENT, "key_signalled.decision", f"{quoted(key)} belongs to this shard"
                elif min(counts) < 0 or max(counts) >= codes.OFFSET_MAX:
                    said = f"{counts} are not in 0..{codes.OFFSET_MAX - 1}"
                    refusal = codes.INVALID_ARGUMENT, "key_signalled.decision", said
            elif self.are_several and not request.passes_on_decided:
                refusal = codes.FAILED_PRECONDITION, "key_signalled", NOT_PASSED_ON
            elif not is_own:
                _make_heartbeat(batch, row)
            else:
                value_bytes += len((known.value if known else b"") or (batch.values[row] if batch.values else b""))
                if value_bytes > VALUE_BYTES_MAX:
                    said = f"the values have more than {VALUE_BYTES_MAX} bytes; send fewer signals in a message"
                    refusal = codes.RESOURCE_EXHAUSTED, "key_signalled.value", said
            if refusal is not None:
                events.refusals[row] = Refusal(row, *refusal)
                batch.types[row] = REFUSED_TYPE

    def decided(self, events: IncomingEvents, keys: SignalKeys) -> Iterator[tuple[int, event_pb2.Event]]:
        """Yield the signals that this one of several shards has decided, with their indexes in the request."""
        batch, refused = events.batch, {refusal.index for refusal in events.done.refusals}
        for row, name, count in _signals(batch):
            key = keys.get(name)
            if row not in refused and self.of(name) == self.shard and key is not None:
                decision = event_pb2.KeyDecision(value_at=key.value_at, failed_at=key.failed_at)
                signal = event_pb2.KeySignalled(
                    key=name, count=count, value=key.value, failed=key.failed, decision=decision
                )
                yield events.first + row, event_pb2.Event(key_signalled=signal)


ONE_SHARD: Final = Shards()


def _refusal(message: str, reason: str, metadata: dict[str, str]) -> RpcError:
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN, metadata=metadata)
    return RpcError(code_pb2.FAILED_PRECONDITION, message, info)


def _signals(batch: EventBatch) -> Iterator[tuple[int, str, int]]:
    """The row, key and count of each signal, without heartbeats. None of a batch that the engine refuses."""
    places, counts = batch.item_indexes, batch.offsets
    if not batch.keys or any(len(column) not in (0, 1, len(batch.types)) for column in (places, counts)):
        return
    for row, event_type in enumerate(batch.types):
        place, count = value_at(places, row, 0), value_at(counts, row, -1)
        if event_type == codes.KEY_SIGNALLED and 0 <= place < len(batch.keys) and count != 0:
            yield row, batch.keys[place], 1 if count == -1 else count


def _make_heartbeat(batch: EventBatch, row: int) -> None:
    counts = batch.offsets
    if len(counts) < len(batch.types):
        counts[:] = [value_at(counts, 0, -1)] * len(batch.types)
    counts[row] = 0
    if batch.flags:  # of rows, like values
        batch.flags[row] = 0
    if batch.values:
        batch.values[row] = b""
