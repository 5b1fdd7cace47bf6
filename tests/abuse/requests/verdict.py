"""Checks of a daemon after it was fuzzed: it is alive, its counts agree, its log has no errors, and it still serves."""

import asyncio
import re
from typing import Final

import grpc

from purgatory.engine.codes import KIND_NAMES
from purgatory.v1 import operation_pb2, purgatory_service_pb2_grpc, result_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.kit.daemon import DaemonProcess
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.messages import advance_request, key_signalled
from tests.kit.served_host import check_counts
from tests.service.test_daemon import fetch_page, sums_by_kind

CHANNEL_OPTIONS: Final = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
FAULTS: Final = re.compile(r"Traceback|\b(?:ERROR|CRITICAL)\b|^E\d{4} ", re.MULTILINE)
"""Errors of Python, of the daemon, and of gRPC's core (E and the date)."""
ENTRY: Final = re.compile(r"^(?=\d{4}-\d\d-\d\dT)", re.MULTILINE)


def faults_in(log: str) -> list[str]:
    """The entries of a daemon's log that are never allowed, one of each kind, shortened to fit on a screen."""
    faults: dict[str, str] = {}
    for entry in ENTRY.split(log):
        if FAULTS.search(entry):
            last = entry.rstrip().rpartition("\n")[2]
            faults.setdefault(re.sub(r"\d+|'.*", "", last)[:100], entry[:3_000])
    return list(faults.values())


def check_metrics(daemon: DaemonProcess) -> None:
    """For each kind, registered equals the outcomes plus pending in one scrape, and the reaper never failed."""
    text = fetch_page(daemon, "/metrics")[1]
    registered, outcomes, pending = (
        sums_by_kind(text, f"purgatory_{name}") for name in ("registered_total", "outcomes_total", "pending_operations")
    )
    assert sorted(registered) == sorted(KIND_NAMES.values())
    for kind, count in registered.items():
        assert count == outcomes[kind] + pending[kind], f"{kind}: {registered}, {outcomes}, {pending}"
    assert sums_by_kind(text, "purgatory_reaper_failures_total") == {"": 0.0}, "the reaper has failed"


async def check_serves(channel: grpc.aio.Channel) -> None:
    """Register a wait, end it by an event, and get its result; the counts agree. Raises AssertionError or times out."""
    stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
    async with asyncio.timeout(PATIENCE_S):
        check_counts(await stub.GetStatus(wire.GetStatusRequest()))
        while True:
            signal = operation_pb2.Signal(keys=[operation_pb2.SignalKey(key="still-there")], from_now=True)
            operation = operation_pb2.Operation(operation_id=1, timeout_ms=60_000, signal=signal)
            wait = asyncio.ensure_future(stub.Wait(wire.WaitRequest(operation=operation)))
            try:
                while not wait.done():
                    event = key_signalled("still-there")
                    await stub.Advance(advance_request(event))
                    await asyncio.wait([wait], timeout=0.05)
                answer: wire.WaitResponse = await wait
            except grpc.aio.AioRpcError as error:
                # Operations left by the fuzzer may fill a limit until their sessions' time to live is over.
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, error  # noqa: PT017
                await asyncio.sleep(0.2)
            else:
                assert answer.result.outcome == result_pb2.OUTCOME_SATISFIED, answer
                return


async def wait_until_tidy(channel: grpc.aio.Channel, daemon: DaemonProcess) -> None:
    """Wait until no session is left, nothing is pending, and the daemon has collected garbage after that."""
    stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)

    async def is_idle() -> bool:
        status: wire.GetStatusResponse = await stub.GetStatus(wire.GetStatusRequest())
        return not status.sessions and not any(kind.pending for kind in status.kinds)

    await eventually(is_idle, "nothing is pending, all sessions are forgotten")
    enough = _collections(daemon) + 2
    await eventually(lambda: _collections(daemon) >= enough, "the daemon has tidied its memory")


def _collections(daemon: DaemonProcess) -> float:
    """Number of garbage collections. After two more, at least one of them started after this call."""
    return sums_by_kind(fetch_page(daemon, "/metrics")[1], "purgatory_gc_pause_seconds_count")[""]
