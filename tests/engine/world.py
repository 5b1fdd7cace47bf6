"""A small test kit: an engine with one owner, with names like "orders-0", that collects the results.

The oracle gets the same calls, so a hand-computed expectation holds for both, and a difference fails the test
immediately. So does an operation that ends twice.
"""

import re
from collections.abc import Iterable
from typing import Any

from purgatory.engine.batches import Receipt
from purgatory.engine.waiting.tables import Owner
from tests.engine import plain
from tests.engine.pair import Pair


def parse(name: str) -> plain.Name:
    """Parse "orders-0" as ("orders", 0), and "job--1" as the key ("job", -1)."""
    topic, partition = re.fullmatch(r"(.*?)-(-?\d+)", name).groups()  # type: ignore[union-attr]
    return (topic, int(partition))


class World:
    """An engine and its oracle, one owner, a clock, and all ended operations. Handles are operation ids."""

    def __init__(self, **settings: Any) -> None:  # noqa: ANN401 - those of plain.Settings
        self.pair = Pair(plain.Settings(**settings))
        self.engine = self.pair.engine.engine
        self.owner_id = self.pair.add_owner()
        self.last_id = 0
        self.ended: dict[tuple[int, int], plain.Ended] = {}
        self.order: list[int] = []

    @property
    def now_ms(self) -> int:
        return self.pair.now_ms

    @now_ms.setter
    def now_ms(self, now_ms: int) -> None:
        self.pair.now_ms = now_ms

    # Events. Each method returns how many operations it ended, or how it was refused. Fields are those of plain.Event.

    def event(self, event_type: int, name: str, offset: int = -1, **fields: Any) -> plain.EventAnswer:  # noqa: ANN401
        (answer,) = self.pair.apply([plain.Event(event_type, parse(name), offset, **fields)])
        self.collect()
        return answer

    def append(self, name: str, leo: int, **fields: int) -> plain.EventAnswer:
        """The leader's log has grown to `leo`."""
        return self.event(plain.LEADER_APPEND, name, leo, **fields)

    def high_watermark(self, name: str, offset: int, **fields: int) -> plain.EventAnswer:
        """The high watermark is `offset`."""
        return self.event(plain.HIGH_WATERMARK, name, offset, **fields)

    def lead(
        self, name: str, epoch: int, *, leader_id: int = 1, replicas: tuple[int, ...] = (), start: int = -1
    ) -> plain.EventAnswer:
        """We lead the partition from `epoch` on."""
        return self.event(plain.LEADERSHIP, name, start, epoch=epoch, flag=1, leader_id=leader_id, replicas=replicas)

    def signal(self, key: str, count: int = -1, *, value: int = 0, failed: bool = False) -> plain.EventAnswer:
        return self.event(plain.KEY_SIGNALLED, f"{key}--1", count, value=value, flag=int(failed))

    def heartbeat(self, key: str) -> plain.EventAnswer:
        return self.signal(key, 0)

    # Registrations. Each returns a handle.

    def register(
        self,
        kind: int,
        items: Iterable[plain.Item],
        timeout_ms: int,
        **fields: Any,  # noqa: ANN401 - those of plain.Operation
    ) -> int:
        """Register one operation, which must be accepted."""
        operation = plain.Operation(kind, self.next_id(), timeout_ms, tuple(items), **fields)
        receipt = self.register_all([operation])
        refused = [(refusal.field, refusal.message) for refusal in receipt.refusals]
        assert receipt.accepted == 1, f"{operation} was refused: {refused}"
        return operation.operation_id

    def register_all(self, operations: list[plain.Operation]) -> Receipt:
        """Register a batch of one kind, in which some may be refused."""
        receipt = self.pair.register(self.owner_id, operations)
        self.collect()
        return receipt

    def next_id(self) -> int:
        self.last_id += 1
        return self.last_id

    def produce(
        self,
        required: dict[str, int],
        *,
        timeout_ms: int = 1_000,
        epoch: int = -1,
        errors: dict[str, int] | None = None,
    ) -> int:
        """Wait until the high watermarks have reached the offsets."""
        local = errors or {}
        items = [plain.Item(parse(name), offset, epoch, local.get(name, 0)) for name, offset in required.items()]
        return self.register(plain.PRODUCE, items, timeout_ms)

    def produce_many(self, count: int, name: str = "orders-0", *, timeout_ms: int = 1_000) -> list[int]:
        """Register equal produces for offset 5 in one batch."""
        items = (plain.Item(parse(name), 5),)
        operations = [plain.Operation(plain.PRODUCE, self.next_id(), timeout_ms, items) for _ in range(count)]
        assert self.register_all(operations).accepted == count
        return [operation.operation_id for operation in operations]

    def fetch(
        self,
        offsets: dict[str, int],
        *,
        min_bytes: int = 1,
        timeout_ms: int = 1_000,
        replica_id: int = -1,
        committed: bool = False,
        follower_reads: bool = False,
        **fields: Any,  # noqa: ANN401 - those of plain.Item
    ) -> int:
        """Wait until this number of bytes is readable."""
        return self.register(
            plain.FETCH,
            [plain.Item(parse(name), offset, **fields) for name, offset in offsets.items()],
            timeout_ms,
            min_bytes=min_bytes,
            replica_id=replica_id,
            isolation=plain.READ_COMMITTED if committed else plain.READ_UNCOMMITTED,
            follower_reads=follower_reads,
        )

    def delete_records(
        self, offsets: dict[str, int], *, timeout_ms: int = 1_000, errors: dict[str, int] | None = None
    ) -> int:
        """Wait until the low watermarks have reached the offsets."""
        local = errors or {}
        items = [plain.Item(parse(name), offset, local_error=local.get(name, 0)) for name, offset in offsets.items()]
        return self.register(plain.DELETE_RECORDS, items, timeout_ms)

    def wait_signal(self, counts: dict[str, int], *, timeout_ms: int = 1_000, **fields: int) -> int:
        """Wait until the keys have been signalled this many times. `fields`: those of plain.Operation."""
        items = [plain.Item((key, -1), count) for key, count in counts.items()]
        return self.register(plain.SIGNAL, items, timeout_ms, **fields)

    def composite(
        self,
        *terms: tuple[str, int],
        unless: Iterable[tuple[str, int]] = (),
        required_terms: int = 0,
        timeout_ms: int = 1_000,
        stale_timeout_ms: int = -1,
    ) -> int:
        """Wait until so many terms are true (0: all). A term is ("orders-0", offset), or (key, count)."""
        failing = list(unless)
        items = [
            plain.Item(parse(name) if re.search(r"-\d+$", name) else (name, -1), offset)
            for name, offset in [*terms, *failing]
        ]
        arms = {"required_terms": required_terms, "unless_count": len(failing)}
        return self.register(plain.COMPOSITE, items, timeout_ms, stale_timeout_ms=stale_timeout_ms, **arms)

    # Ends without an event.

    def cancel(self, *handles: int) -> list[bool]:
        """Cancel by id. Returns which operations were pending."""
        answers = self.pair.cancel(self.owner_id, list(handles))
        self.collect()
        return answers

    # Time.

    def wait(self, ms: int, *, limit: int = 100_000) -> int:
        """Advance the time, and run the reaper until nothing more is due. Returns how many expired."""
        total = 0
        while True:
            total += self.pair.advance(ms, limit)
            ms = 0
            self.collect()
            if not 0 <= self.engine.next_expiration_ms() <= self.now_ms:
                return total

    # Results.

    def collect(self) -> None:
        """Collect the operations that the last call ended."""
        for row in self.pair.last_ended:
            key = (row.owner_id, row.operation_id)
            assert key not in self.ended, f"operation {key} ended twice: {self.ended[key]} and {row}"
            self.ended[key] = row
            self.order.append(row.operation_id)

    @property
    def owner(self) -> Owner:
        """The engine's owner object."""
        return self.pair.engine.owners[self.owner_id]

    def outcome(self, handle: int) -> str:
        """The outcome in a word, or "pending"."""
        ended = self.ended.get((self.owner_id, handle))
        if ended is None:
            assert self.engine.inspection.describe(self.owner, handle) is not None
            return "pending"
        return plain.OUTCOME_WORDS[ended.outcome]

    def result(self, handle: int) -> plain.Ended:
        return self.ended[self.owner_id, handle]

    def item(self, handle: int, name: str = "") -> plain.EndedItem:
        """The result of one partition (or key) of an operation; of the only one if no name is given."""
        items = self.result(handle).items
        if not name:
            (only,) = items
            return only
        return next(item for item in items if name in {item.name[0], f"{item.name[0]}-{item.name[1]}"})

    def assert_empty(self) -> None:
        """Nothing is pending, nothing is watched, no timer runs."""
        assert self.engine.pending == 0
        assert self.engine.next_expiration_ms() == -1
        for kind in plain.KINDS:
            counts = self.engine.inspection.counts(kind)
            assert (counts.pending, counts.watched) == (0, 0), f"kind {kind}"
            ends = counts.satisfied + counts.failed + counts.expired + counts.cancelled + counts.shutting_down
            assert counts.registered == ends, f"kind {kind}"
