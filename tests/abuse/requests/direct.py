"""Messages and changed bytes that call the methods of the service on a host, without a network.

Everything that a message can contain reaches the same code as over gRPC, at a hundred times the rate.
"""

import asyncio
import random
from collections import Counter
from typing import Any, Final

from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

from purgatory.engine.calls import ShutDown
from purgatory.service.errors import BatchRejected
from purgatory.service.host import Host
from purgatory.service.rpc.servicer import PurgatoryServicer
from purgatory.service.settings import HostSettings, LimitsSettings
from purgatory.service.translate.results import fill_batch
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.abuse.requests.caller import SERVICE, WAITING
from tests.abuse.requests.random_messages import RandomMessages, broken_bytes
from tests.kit.served_host import check_counts
from tests.scripts.message_levels import CallFailed, HostLevel

METHODS: Final = {
    method.name: GetMessageClass(method.input_type)
    for method in SERVICE.methods
    if not (method.client_streaming or method.server_streaming or method.name in WAITING)
    and hasattr(PurgatoryServicer, method.name)
}
"""Those that wait may not answer for as long as the clock stands still."""
LIMITS: Final = LimitsSettings(
    pending_operations_max=500, partitions_max=100, signal_keys_max=50, unacknowledged_results_max=300
)
STEPS_PER_HOST: Final = 2_000
VARIANTS: Final = 12
"""Each message is sent as it is and with changed bytes: generating a message is the expensive part."""
LONG_BYTES: Final = 3_000
"""Messages of this length or more have only one variant."""


def serve(level: HostLevel, method: str, data: bytes) -> str:
    """Make one call, and return its end. Any other exception is a bug."""
    try:
        level.call(method, METHODS[method].FromString(data))
    except DecodeError:
        return "undecodable"
    except (BatchRejected, CallFailed):
        return "refused"
    else:
        return "served"
    finally:
        level.pass_time(len(data) % 4)
        read_results(level.host, columns=len(data) % 2 == 0)


def read_results(host: Host, *, columns: bool) -> None:
    """Encode the available results of all sessions as rows or columns, and sometimes acknowledge them."""
    for session in host.sessions:
        outbox = session.outbox
        while (found := outbox.take(50))[1]:
            batch = wire.ResultBatch()
            fill_batch(batch, *found, columns=columns)
            batch.SerializeToString()
        if outbox.unacknowledged > 200:
            outbox.acknowledge(outbox.last_sequence)


def check(level: HostLevel) -> None:
    """End everything, and check that nothing was lost: registered equals ended, and nothing is watched."""
    while level.host.perform(None, None, ShutDown(1_000)).has_more:
        pass
    status: wire.GetStatusResponse = level.call("GetStatus", wire.GetStatusRequest())
    check_counts(status)
    assert not [kind for kind in status.kinds if kind.pending or kind.watched], status


def nudged(rng: random.Random, data: bytes) -> bytes:
    """Change one byte of a message: cheap, and the result is usually still a message."""
    place = rng.randrange(len(data) + 1)
    return data[:place] + bytes((rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))),)) + data[place + 1 :]


def fuzz_direct(seed: int, cases: int) -> Counter[tuple[str, str]]:
    """Run `cases` messages, as generated and with changed bytes. An exception is raised with a note of its case.

    Returns the number of cases by method and end.
    """
    messages = RandomMessages(seed)
    rng, tried = messages.rng, Counter[tuple[str, str]]()
    while tried.total() < cases:
        goal = min(cases, tried.total() + STEPS_PER_HOST)
        with asyncio.Runner() as runner:
            level = HostLevel(runner)
            level.settings = HostSettings(LIMITS)
            level.start_again()
            while tried.total() < goal:
                method = rng.choice([*METHODS, "Register", "Register", "Advance"])
                message: Any = messages.message(METHODS[method])
                data = message.SerializeToString()
                variants = [data, *(nudged(rng, data) for _ in range(VARIANTS - 3)), *[broken_bytes(rng, data)] * 2]
                for variant in variants if len(data) < LONG_BYTES else variants[:2]:
                    try:
                        tried[method, serve(level, method, variant)] += 1
                    except Exception as error:
                        error.add_note(f"seed {seed}: {method} {variant!r}")
                        raise
            check(level)
    return tried
