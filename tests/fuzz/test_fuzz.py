"""A small seeded share of `make fuzz`, and that the fuzzer finds what is planted."""

from pathlib import Path

import pytest
from google.protobuf.message_factory import GetMessageClass

from purgatory.service.rpc.inspection_calls import InspectionCalls
from tests.fuzz.crowd import fuzz_crowd
from tests.fuzz.fuzzing_caller import SERVICE
from tests.fuzz.message_maker import MessageMaker
from tests.fuzz.plausible import PlausibleValues
from tests.fuzz.tally import Tally
from tests.fuzz.targets import fuzz_daemon, fuzz_servicer
from tests.fuzz.verdict import faults_in
from tests.fuzz.without_network import fuzz_direct


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_servicer_survives_fuzzed_requests(seed: int) -> None:
    """Every RPC of the contract answers fuzzed requests with a status that is not the daemon's fault."""
    tally = Tally()
    await fuzz_servicer(seed, 1_200, tally)
    assert tally.findings == [], "\n".join(tally.findings)
    assert {method.name for method in SERVICE.methods} == {rpc for rpc, _ in tally.requests}


@pytest.mark.slow
async def test_daemon_survives_fuzzed_requests_and_bytes() -> None:
    """The daemon survives fuzzed requests and raw bytes at both ports; its counts agree, its log has no fault."""
    tally = Tally()
    await fuzz_daemon(3, 2_000, tally, warm_up=0)
    assert tally.findings == [], "\n".join(tally.findings)
    assert {"bytes at the gRPC port", "bytes at the HTTP port"} < {rpc for rpc, _ in tally.requests}


@pytest.mark.slow
@pytest.mark.parametrize("journal", [None, "sync"])
async def test_daemon_survives_a_crowd_at_tiny_limits(tmp_path: Path, journal: str | None) -> None:
    """Ten callers at once meet every limit over restarts: no error is the daemon's fault, and its counts agree."""
    tally = Tally()
    await fuzz_crowd(tmp_path, 1, 2, 800, tally, journal)
    assert tally.findings == [], "\n".join(tally.findings)
    assert {method.name for method in SERVICE.methods} == {rpc for rpc, _ in tally.requests}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_host_survives_changed_bytes(seed: int) -> None:
    """No message, whatever its bytes, makes translation, host or engine raise; every operation ends and is counted."""
    tried = fuzz_direct(seed, 8_000)
    assert all(tried[f"{name}: {end}"] for name in ("RegisterBatch", "AdvanceRequest") for end in ("served", "refused"))


async def test_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A method that raises for some requests is a finding, by its status and by what is logged."""

    async def get_partition(_calls: object, request: object, _context: object) -> object:
        raise ValueError(f"planted: {request}")

    monkeypatch.setattr(InspectionCalls, "GetPartition", get_partition)
    tally = Tally()
    await fuzz_servicer(1, 300, tally)
    assert any(finding.startswith("GetPartition: UNKNOWN: ") for finding in tally.findings)
    assert any("ValueError: planted" in finding for finding in tally.findings)


def test_same_seed_makes_the_same_messages() -> None:
    """A seed repeats what it made."""

    def made(seed: int) -> list[bytes]:
        shaper = MessageMaker(PlausibleValues(seed))
        types = [GetMessageClass(method.input_type) for method in SERVICE.methods]
        return [shaper.message(one).SerializeToString(deterministic=True) for one in types * 5]

    assert made(7) == made(7)
    assert made(7) != made(8)


def test_faults_in_a_log_are_found_once_each() -> None:
    """Tracebacks and errors of a log are faults, one of each sort; what a daemon says in good health is none."""
    healthy = "2026-01-31T12:00:00.123Z INFO purgatory.daemon: stopped\n"
    fault = "2026-01-31T12:00:00.123Z ERROR a.b: it failed\nTraceback (most recent call last):\nValueError: 12\n"
    assert faults_in(healthy) == []
    assert len(faults_in(healthy + fault + healthy + fault)) == 1
    assert len(faults_in("Traceback (most recent call last):\n  File 'x'\nKeyError: 1\n" + healthy)) == 1


def test_table_counts_requests_by_rpc_and_status() -> None:
    """The table has a row for each RPC, a column for each status, and sums of both."""
    tally = Tally()
    tally.count("Wait", "OK", 1_200)
    tally.judge("Cancel", "INTERNAL", "why", b"\0")
    assert [line.split() for line in tally.table().splitlines()] == [
        ["RPC", "OK", "INTERNAL", "all"],
        ["Cancel", "-", "1", "1"],
        ["Wait", "1,200", "-", "1,200"],
        ["all", "1,200", "1", "1,201"],
    ]
    assert tally.findings == [r"Cancel: INTERNAL: why for b'\x00'"]
