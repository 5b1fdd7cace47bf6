"""Messages and changed bytes that call the translate layer, the host and the engine directly, without a network.

Everything that a message can contain reaches the same code as over gRPC, at a hundred times the rate.
"""

import random
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

from google.protobuf.message import DecodeError, Message

from purgatory.engine.calls import PassTime, ShutDown
from purgatory.engine.codes import KINDS
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.errors import BatchRejected, RpcError
from purgatory.service.host import Host
from purgatory.service.metrics.metrics import Metrics
from purgatory.service.rpc import event_calls, session_requests
from purgatory.service.rpc.call import Call, Context
from purgatory.service.rpc.inspection_calls import InspectionCalls
from purgatory.service.settings import HostSettings, LimitsSettings
from purgatory.service.translate.results import fill_batch
from purgatory.testing import ManualClock
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.abuse.requests.random_messages import RandomMessages, broken_bytes

SESSION_ID: Final = "direct"
STEPS_PER_HOST: Final = 2_000
MUTANTS: Final = 12
"""Variants of each message, made by changing its bytes: generating a message is the expensive part."""
LONG_BYTES: Final = 3_000
"""Messages of this length or more have only one variant."""


def at_once(serving: Coroutine[Any, Any, object]) -> None:
    """Run a coroutine that waits only for its next turn."""
    try:
        while True:
            serving.send(None)
    except StopIteration:
        return


class NoContext:
    """A call context that reports the end of the call immediately."""

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        callback(self)


class Direct:
    """One host without an event loop. Any exception of `serve` is a bug."""

    def __init__(self, seed: int = 0) -> None:
        self.cases: Final[Counter[str]] = Counter()
        self._clock: Final = ManualClock(seed % 1_000)
        limits = EngineLimits(pending_operations_max=500, partitions_max=100, signal_keys_max=50)
        self._engine: Final = Engine(limits, self._clock.now_ms(), strict_partitions=seed % 5 == 0)
        host_settings = HostSettings(
            limits=LimitsSettings(unacknowledged_results_max=300, operations_per_batch_max=1_000)
        )
        self.host: Final = Host(self._engine, self._clock, host_settings, Metrics())
        self._call: Final = Call(cast(Context, NoContext()), self.host.sessions.accounts.nobody)
        self._session, _ = self.host.sessions.open(SESSION_ID, self._clock.now_ms())
        inspection = InspectionCalls(self.host)
        self._inspection: Final = inspection
        self.steps: Final[dict[type[Message], Callable[..., object]]] = {
            wire.RegisterBatch: lambda batch: at_once(session_requests.register(self.host, self._session, batch)),
            wire.AdvanceRequest: self._advance,
            wire.AdvanceStreamRequest: self._advance,
            wire.CancelOperations: lambda cancel: at_once(
                session_requests.cancel(self.host, self._session, cancel.operation_ids)
            ),
            wire.ListOperationsRequest: lambda request: at_once(inspection.ListOperations(request, self._call)),
            wire.ListPartitionsRequest: lambda request: at_once(inspection.ListPartitions(request, self._call)),
            wire.GetPartitionRequest: lambda request: at_once(inspection.GetPartition(request, self._call)),
            wire.GetOperationRequest: self._get_operation,
            wire.AcknowledgeResults: lambda request: self._session.acknowledge(request.sequence),
        }

    def serve(self, kind: type[Message], data: bytes) -> None:
        """Perform one step, and count it as refused, undecodable or served."""
        name = kind.DESCRIPTOR.name
        try:
            request = kind.FromString(data)
        except DecodeError:
            self.cases[f"{name}: undecodable"] += 1
            return
        try:
            self.steps[kind](request)
        except (BatchRejected, RpcError):
            self.cases[f"{name}: refused"] += 1
        else:
            self.cases[f"{name}: served"] += 1
        self._pass_time(len(data) % 4)
        self._take_results(columns=len(data) % 2 == 0)

    def check(self) -> None:
        """End everything, and check that nothing was lost: registered equals ended, and nothing is watched."""
        while self.host.perform(None, None, ShutDown(1_000)).has_more:
            pass
        for kind in KINDS:
            counts = self._engine.inspection.counts(kind)
            ended = counts.satisfied + counts.failed + counts.expired + counts.cancelled + counts.shutting_down
            assert counts.registered == ended, f"kind {kind}: registered={counts.registered} ended={ended}"
            assert counts.pending == counts.watched == 0, f"kind {kind}: {counts.pending}, {counts.watched}"

    def _advance(self, request: wire.AdvanceRequest | wire.AdvanceStreamRequest) -> None:
        at_once(event_calls.advance(self.host, request, self._call))

    def _get_operation(self, request: wire.GetOperationRequest) -> None:
        request.session_id = SESSION_ID
        at_once(self._inspection.GetOperation(request, self._call))

    def _pass_time(self, ms: int) -> None:
        self._clock.jump(ms)
        self.host.perform(None, None, PassTime(100))

    def _take_results(self, *, columns: bool) -> None:
        """Encode the available results as rows or columns, and sometimes acknowledge them."""
        outbox = self._session.outbox
        while True:
            first_sequence, slices = outbox.take(50)
            if not slices:
                break
            batch = wire.ResultBatch()
            fill_batch(batch, first_sequence, slices, columns=columns)
            batch.SerializeToString()
        if outbox.unacknowledged > 200:
            outbox.acknowledge(outbox.last_sequence)


def nudged(rng: random.Random, data: bytes) -> bytes:
    """Change one byte of a message: cheap, and the result is usually still a message."""
    if not data:
        return data
    place = rng.randrange(len(data))
    return data[:place] + bytes((rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))),)) + data[place + 1 :]


def fuzz_direct(seed: int, cases: int) -> Counter[str]:
    """Run `cases` messages, as generated and with changed bytes. An exception is raised with a note of its case."""
    messages, rng = RandomMessages(seed), random.Random(seed)
    tried: Counter[str] = Counter()
    while tried.total() < cases:
        direct = Direct(rng.randrange(1_000))
        steps: list[type[Message]] = [wire.RegisterBatch, *direct.steps]
        while direct.cases.total() < min(STEPS_PER_HOST, cases - tried.total()):
            kind = rng.choice(steps)
            data = messages.message(kind).SerializeToString()
            try:
                for mutant in range(MUTANTS if len(data) < LONG_BYTES else 2):
                    changed = data if mutant == 0 else nudged(rng, data) if mutant < 10 else broken_bytes(rng, data)
                    direct.serve(kind, changed)
            except Exception as error:
                error.add_note(f"seed {seed}: {kind.DESCRIPTOR.name} {changed!r}")
                raise
        direct.check()
        tried.update(direct.cases)
    return tried
