"""Messages and changed bytes that call the methods of the service on a host, without a network.

Everything that a message can contain reaches the same code as over gRPC, at a hundred times the rate.
"""

import random
from collections import Counter
from typing import Any, Final, cast
from unittest import mock

from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass

from purgatory.engine.calls import PassTime, ShutDown
from purgatory.engine.codes import KINDS
from purgatory.engine.engine import Engine
from purgatory.engine.limits import EngineLimits
from purgatory.service.errors import BatchRejected, RpcError
from purgatory.service.host import Host
from purgatory.service.rpc.call import Call, Context
from purgatory.service.rpc.handlers import SERVICE
from purgatory.service.rpc.servicer import PurgatoryServicer
from purgatory.service.settings import HostSettings, LimitsSettings
from purgatory.service.translate.results import fill_batch
from purgatory.testing import ManualClock
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.abuse.requests.random_messages import RandomMessages, broken_bytes

WAITING: Final = {"Wait", "GetSourceEnds"}
"""Methods that may not answer for as long as the clock stands still."""
METHODS: Final = [
    method.name
    for method in SERVICE.methods
    if not (method.client_streaming or method.server_streaming or method.name in WAITING)
    and hasattr(PurgatoryServicer, method.name)
]
STEPS_PER_HOST: Final = 2_000
MUTANTS: Final = 12
"""Variants of each message, made by changing its bytes: generating a message is the expensive part."""
LONG_BYTES: Final = 3_000
"""Messages of this length or more have only one variant."""


class Direct:
    """One host. Any exception of `serve` is a bug."""

    def __init__(self, seed: int = 0) -> None:
        self.cases: Final[Counter[str]] = Counter()
        self._clock: Final = ManualClock(seed % 1_000)
        limits = EngineLimits(pending_operations_max=500, partitions_max=100, signal_keys_max=50)
        engine = Engine(limits, self._clock.now_ms(), strict_partitions=seed % 5 == 0)
        host_limits = LimitsSettings(unacknowledged_results_max=300)
        self.host: Final = Host(engine, self._clock, HostSettings(limits=host_limits))
        self._servicer: Final = PurgatoryServicer(self.host)
        self._call: Final = Call(cast(Context, mock.Mock()), self.host.sessions.accounts.nobody)

    async def serve(self, method: str, data: bytes) -> None:
        """Make one call, and count it as refused, undecodable or served."""
        try:
            request: Any = GetMessageClass(SERVICE.methods_by_name[method].input_type).FromString(data)
        except DecodeError:
            self.cases[f"{method}: undecodable"] += 1
            return
        try:
            await getattr(self._servicer, method)(request, self._call)
        except (BatchRejected, RpcError):
            self.cases[f"{method}: refused"] += 1
        else:
            self.cases[f"{method}: served"] += 1
        self._clock.jump(len(data) % 4)
        self.host.perform(None, None, PassTime(100))
        self._read_results(columns=len(data) % 2 == 0)

    def check(self) -> None:
        """End everything, and check that nothing was lost: registered equals ended, and nothing is watched."""
        while self.host.perform(None, None, ShutDown(1_000)).has_more:
            pass
        for kind in KINDS:
            counts = self.host.engine.inspection.counts(kind)
            ended = counts.satisfied + counts.failed + counts.expired + counts.cancelled + counts.shutting_down
            assert counts.registered == ended, f"kind {kind}: registered={counts.registered} ended={ended}"
            assert counts.pending == counts.watched == 0, f"kind {kind}: {counts.pending}, {counts.watched}"

    def _read_results(self, *, columns: bool) -> None:
        """Encode the available results of all sessions as rows or columns, and sometimes acknowledge them."""
        for session in self.host.sessions:
            outbox = session.outbox
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


async def fuzz_direct(seed: int, cases: int) -> Counter[str]:
    """Run `cases` messages, as generated and with changed bytes. An exception is raised with a note of its case."""
    messages, rng = RandomMessages(seed), random.Random(seed)
    tried: Counter[str] = Counter()
    while tried.total() < cases:
        direct = Direct(rng.randrange(1_000))
        while direct.cases.total() < min(STEPS_PER_HOST, cases - tried.total()):
            method = rng.choice([*METHODS, "Register", "Register", "Advance"])
            kind: type[Message] = GetMessageClass(SERVICE.methods_by_name[method].input_type)
            data = messages.message(kind).SerializeToString()
            try:
                for mutant in range(MUTANTS if len(data) < LONG_BYTES else 2):
                    changed = data if mutant == 0 else nudged(rng, data) if mutant < 10 else broken_bytes(rng, data)
                    await direct.serve(method, changed)
            except Exception as error:
                error.add_note(f"seed {seed}: {method} {changed!r}")
                raise
        direct.check()
        tried.update(direct.cases)
    return tried
