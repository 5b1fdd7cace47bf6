"""A pair under load is upgraded by handover from the last release to a later one, and goes back.

`make upgrades` does it 20 times.
"""

import asyncio
import os
import re
from functools import partial
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from purgatory.replicated_log.entry import TABLES
from purgatory.replicated_log.leadership import EXIT_REPLACED
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.compatibility import unpack_release
from tests.compatibility.next_release import LABEL, make_next_release
from tests.fleet.filling import CALM, SNAPSHOTS
from tests.histories.judge import Judge
from tests.histories.wire_load import WireLoad
from tests.kit.eventually import PATIENCE_S, eventually
from tests.kit.fleet import Fleet, Member
from tests.kit.messages import advance_request, key_signalled, signal
from tests.kit.programs import fleet_command
from tests.postgres.conftest import log_servers, url

__all__ = ["log_servers", "url"]  # fixtures

ROUNDS: Final = int(os.environ.get("PURGATORY_UPGRADES", "1"))
Environment = dict[str, str]


class Pair:
    """A leader and its standby, each of one of two releases, and callers who are served all the time."""

    def __init__(self, fleet: Fleet, load: WireLoad) -> None:
        self.leader, self.standby = fleet.start_pair()
        self._load: Final = load

    def replace_standby(self, release: Environment) -> None:
        """Let the standby be one of this release, on the same folder; returns once it has read the log."""
        self.standby.end()
        self.standby.environment = release
        self.standby.start_if_ended()
        self.standby.until("/readyz")

    async def hand_over(self, release: Environment | None = None) -> None:
        """Let the standby lead. The former leader then stands by, with this release or with the one that it had."""
        former, self.leader = self.leader, self.standby
        self.standby = former
        assert await asyncio.to_thread(fleet_command, ["handover", "--address", former.grpc_address]) == 0
        assert await asyncio.to_thread(former.process.wait, PATIENCE_S) == EXIT_REPLACED
        await asyncio.to_thread(self.leader.until, "/leaderz")
        await self._load.until_all_rise(lambda caller: caller.accepted_batches, self._load.check, "served")
        former.environment = release or former.environment
        former.start_if_ended()
        await asyncio.to_thread(former.until, "/readyz")

    async def upgrade(self, later: Environment) -> None:
        """As docs/operations.md says. In between, the earlier release follows the later one."""
        await asyncio.to_thread(self.replace_standby, later)
        await self.hand_over()
        await asyncio.to_thread(self.replace_standby, later)

    async def go_back(self, last: Environment) -> None:
        await asyncio.to_thread(self.replace_standby, last)
        await self.hand_over(last)


def raw_call(daemon: Member, method: str, request: bytes = b"") -> bytes:
    """Make a call of any release; returns the bytes of its answer."""
    with grpc.insecure_channel(daemon.grpc_address) as channel:
        call: Any = channel.unary_unary(f"/purgatory.v1.PurgatoryService/{method}")
        return bytes(call(request))


def check_additions(daemon: Member) -> None:
    """The later release has its kind of call, which answers with the setting, and its field of results."""
    assert raw_call(daemon, "GetLabel") == b"\x0a\x04next"
    request = wire.WaitRequest(operation=signal(1, "nobody", timeout_ms=0))
    assert b"\x42\x05later" in raw_call(daemon, "Wait", request.SerializeToString())


def refuses_log(member: Member, lines: int) -> bool:
    """Whether the daemon has ended this many times because it cannot read an entry of the log, or a snapshot."""
    reasons = re.findall(f"CRITICAL.* has version {TABLES + 1}[ ;].*this program supports", member.log)
    return not member.is_running and len(reasons) == lines


@pytest.mark.slow  # a pair, PostgreSQL
async def test_pair_is_upgraded_and_goes_back_under_load(url: str, tmp_path: Path) -> None:
    """No wait is lost, ends twice or early. Once a feature has been used that needs the new table, a daemon of the
    earlier release stops at each start and says why, until it is upgraded too.
    """
    judge = Judge()
    load = WireLoad(judge, seed=ROUNDS, callers=2)
    last, later = unpack_release(tmp_path / "last"), make_next_release(tmp_path / "later") | {LABEL: "next"}
    with Fleet(tmp_path, url, *CALM, *SNAPSHOTS, environment=last) as fleet:
        pair = await asyncio.to_thread(Pair, fleet, load)
        load.start(f"ipv4:{fleet.address}")
        try:
            for _ in range(ROUNDS):
                await pair.upgrade(later)
                await asyncio.to_thread(check_additions, pair.leader)
                await pair.go_back(last)
            await asyncio.to_thread(pair.replace_standby, later)
            await pair.hand_over()
            used = advance_request(key_signalled("labelled/one")).SerializeToString()
            await asyncio.to_thread(raw_call, pair.leader, "Advance", used)
            for ends in (1, 2):
                await eventually(partial(refuses_log, pair.standby, ends), "it stops and says why")
                pair.standby.start_if_ended()
            await asyncio.to_thread(pair.replace_standby, later)
            await pair.hand_over()
            await load.settle(load.check)
        finally:
            await load.end()
        logs = "".join(member.log for member in fleet.members)
    judge.check_end()
    judge.check()
    reigns, snapshots, loaded = map(logs.count, ("leading, epoch", "stored a snapshot", "loaded the snapshot"))
    assert reigns == 2 * ROUNDS + 3
    print(
        f"{ROUNDS} rounds: {load.operations} waits, {load.repeats} results sent again, {load.reads} reads, {reigns} "
        f"reigns, {snapshots} snapshots stored, {loaded} loaded; lost, ended twice or early: 0"
    )
