"""A small seeded part of the fuzzed requests of `make abuse`, and a check that a planted bug is found."""

from pathlib import Path

import pytest

from purgatory.service.rpc.inspection_calls import InspectionCalls
from tests.abuse.requests.caller import SERVICE
from tests.abuse.requests.crowd import fuzz_crowd
from tests.abuse.requests.direct import fuzz_direct
from tests.abuse.requests.tally import Tally
from tests.abuse.requests.targets import fuzz_daemon, fuzz_servicer


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
async def test_servicer_survives_fuzzed_requests(seed: int) -> None:
    """Every RPC of the contract answers fuzzed requests with a status that does not indicate a bug in the daemon."""
    tally = Tally()
    await fuzz_servicer(seed, 1_200, tally)
    assert tally.findings == [], "\n".join(tally.findings)
    assert {method.name for method in SERVICE.methods} == {rpc for rpc, _ in tally.requests}


@pytest.mark.slow
async def test_daemon_survives_fuzzed_requests_and_bytes() -> None:
    """The daemon survives fuzzed requests and raw bytes at both ports; its counts agree, and its log has no errors."""
    tally = Tally()
    await fuzz_daemon(3, 2_000, tally, warm_up=0)
    assert tally.findings == [], "\n".join(tally.findings)
    assert {"bytes at the gRPC port", "bytes at the HTTP port"} < {rpc for rpc, _ in tally.requests}


@pytest.mark.slow
@pytest.mark.parametrize("journal", [None, "sync"])
async def test_daemon_survives_a_crowd_at_tiny_limits(tmp_path: Path, journal: str | None) -> None:
    """Ten callers at once reach every limit across restarts: no error indicates a bug, and the counts agree."""
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
    """A method that raises for some requests is a finding, because of its status and because of the log."""

    async def get_partition(_calls: object, request: object, _context: object) -> object:
        raise ValueError(f"planted: {request}")

    monkeypatch.setattr(InspectionCalls, "GetPartition", get_partition)
    tally = Tally()
    await fuzz_servicer(1, 300, tally)
    assert any(finding.startswith("GetPartition: UNKNOWN: ") for finding in tally.findings)
    assert any("ValueError: planted" in finding for finding in tally.findings)
