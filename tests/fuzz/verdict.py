"""What must hold of a daemon after it was fuzzed: it lives, its counts agree, its log has no fault, it still serves."""

import asyncio
import re
import urllib.request
from pathlib import Path
from typing import Final

import grpc

from purgatory.v1 import event_pb2, operation_pb2, purgatory_service_pb2_grpc, result_pb2
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.service.serving import eventually

PATIENCE_S: Final = 20.0
FAULTS: Final = re.compile(r"Traceback|\b(?:ERROR|CRITICAL)\b|^E\d{4} ", re.MULTILINE)
"""Python's, the daemon's own, and gRPC's core: E and the date."""
ENTRY: Final = re.compile(r"^(?=\d{4}-\d\d-\d\dT)", re.MULTILINE)
SAMPLE: Final = re.compile(r"^(\w+)\{([^}]*)\} (\S+)$", re.MULTILINE)


def rss_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no VmRSS")


def faults_in(log: str) -> list[str]:
    """The entries of a daemon's log that must never be, one of each sort, as far as a screen goes."""
    faults: dict[str, str] = {}
    for entry in ENTRY.split(log):
        if FAULTS.search(entry):
            last = entry.rstrip().rpartition("\n")[2]
            faults.setdefault(re.sub(r"\d+|'.*", "", last)[:100], entry[:3_000])
    return list(faults.values())


def check_status(status: wire.GetStatusResponse) -> None:
    """What was registered = ended + pending, for each kind."""
    for kind in status.kinds:
        ended = kind.satisfied + kind.failed + kind.expired + kind.cancelled + kind.shutting_down
        assert kind.registered == ended + kind.pending, f"the counts do not agree: {kind}"


def check_metrics(http_address: str) -> None:
    """What was registered = the outcomes + pending, for each kind, in one scrape; the reaper never failed."""
    text = _scrape(http_address)
    balance: dict[str, float] = {}
    for name, labels, value in SAMPLE.findall(text):
        kind = labels.partition('kind="')[2].partition('"')[0]
        if name == "purgatory_registered_total":
            balance[kind] = balance.get(kind, 0) + float(value)
        elif name in {"purgatory_outcomes_total", "purgatory_pending_operations"}:
            balance[kind] = balance.get(kind, 0) - float(value)
    assert len(balance) == 4, f"four kinds are counted, not {sorted(balance)}"
    assert not any(balance.values()), f"registered less outcomes less pending: {balance}"
    assert "purgatory_reaper_failures_total 0.0" in text, "the reaper has failed"


async def check_serves(channel: grpc.aio.Channel) -> None:
    """A wait is registered, ended by an event, and answered; the counts agree. Raises AssertionError or times out."""
    stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)
    async with asyncio.timeout(PATIENCE_S):
        check_status(await stub.GetStatus(wire.GetStatusRequest()))
        while True:
            signal = operation_pb2.Signal(keys=[operation_pb2.SignalKey(key="still-there")], from_now=True)
            operation = operation_pb2.Operation(operation_id=1, timeout_ms=60_000, signal=signal)
            wait = asyncio.ensure_future(stub.Wait(wire.WaitRequest(operation=operation)))
            try:
                while not wait.done():
                    event = event_pb2.Event(key_signalled=event_pb2.KeySignalled(key="still-there"))
                    await stub.Advance(wire.AdvanceRequest(rows=event_pb2.EventRows(events=[event])))
                    await asyncio.wait([wait], timeout=0.05)
                answer: wire.WaitResponse = await wait
            except grpc.aio.AioRpcError as error:
                # What the fuzzer left may fill a limit until its sessions' time is over.
                assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED, error  # noqa: PT017
                await asyncio.sleep(0.2)
            else:
                assert answer.result.outcome == result_pb2.OUTCOME_SATISFIED, answer
                return


async def wait_until_tidy(channel: grpc.aio.Channel, http_address: str) -> None:
    """Returns once no session is left, nothing is pending, and the daemon has then tidied its memory."""
    stub = purgatory_service_pb2_grpc.PurgatoryServiceStub(channel)

    async def is_idle() -> bool:
        status: wire.GetStatusResponse = await stub.GetStatus(wire.GetStatusRequest())
        return not status.sessions and not any(kind.pending for kind in status.kinds)

    await eventually(is_idle, "nothing is pending, all sessions are forgotten")
    enough = _collections(http_address) + 2
    await eventually(lambda: _collections(http_address) >= enough, "the daemon has tidied its memory")


def _collections(http_address: str) -> int:
    """How often the daemon has collected garbage: after two more, one has begun since this was asked, and ended."""
    count = re.search(r"^purgatory_gc_pause_seconds_count (\S+)$", _scrape(http_address), re.MULTILINE)
    assert count is not None, "garbage collections are not counted"
    return int(float(count[1]))


def _scrape(http_address: str) -> str:
    with urllib.request.urlopen(f"http://{http_address}/metrics", timeout=PATIENCE_S) as answer:
        text: str = answer.read().decode()
    return text
