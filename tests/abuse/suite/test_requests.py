"""A small seeded part of the fuzzed requests of `make abuse`."""

from pathlib import Path

import pytest

from tests.abuse.requests.caller import SERVICE, Tally
from tests.abuse.requests.targets import fuzz_crowd, fuzz_daemon


@pytest.mark.slow
async def test_daemon_survives_fuzzed_requests_of_all_calls(tmp_path: Path) -> None:
    tally = Tally()
    await fuzz_daemon(tmp_path, 3, 3_000, tally, warm_up=0)
    assert tally.findings == [], "\n".join(tally.findings)
    assert {method.name for method in SERVICE.methods} < {rpc for rpc, _ in tally.requests}


@pytest.mark.slow
async def test_daemon_survives_a_crowd_at_tiny_limits(tmp_path: Path) -> None:
    tally = Tally()
    await fuzz_crowd(tmp_path, 1, 2, 600, tally, "sync")
    assert tally.findings == [], "\n".join(tally.findings)
    assert {method.name for method in SERVICE.methods} == {rpc for rpc, _ in tally.requests}
