"""The demonstration from start to end: who is started when, what is killed, what is checked."""

import asyncio
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from purgatory_client import AsyncClient

from examples.replicated_log.cluster import Child, Cluster
from examples.replicated_log.daemon_link import WaitLedger
from examples.replicated_log.log_file import decode_all, records_on_disk
from examples.replicated_log.membership import in_sync_key
from examples.replicated_log.proof import (
    Check,
    Counters,
    check_counters,
    check_ledger,
    check_lines,
    check_records,
    check_whole_input,
    read_counters,
    wait_table,
)
from examples.replicated_log.wire import Message, call, connect

LEADER: Final = 1
FOLLOWERS: Final = (2, 3)
KILLED: Final = 3
EVERYBODY: Final = [LEADER, *FOLLOWERS]
STEP_SECONDS_MAX: Final = 120.0
WAIT_SECONDS_MAX: Final = 60.0


class Options(NamedTuple):
    input: Path
    kill_follower: bool
    daemon: str | None
    daemon_http: str
    archive: Path | None


class Story:
    """One run. The parts it needs are there one after the other, so they are attributes."""

    def __init__(self, options: Options, lines: list[bytes], directory: Path) -> None:
        self._options = options
        self._lines = lines
        self._cluster = Cluster(directory, self._note_progress)
        self._ledger = WaitLedger()
        self._partition = f"replicated-log-{uuid.uuid4().hex[:8]}-0"
        self._followers: dict[int, Child] = {}
        self._leader_port = 0
        self._begun = time.monotonic()

    async def tell(self) -> bool:
        """Run everything and print it. True if every check holds."""
        async with self._cluster:
            checks = await self._run()
        self._print_end(checks)
        return all(check.holds for check in checks)

    async def _run(self) -> list[Check]:
        daemon, http = self._options.daemon, self._options.daemon_http
        if daemon is None:
            daemon, http = await self._cluster.start_daemon(self._options.archive)
        before = await asyncio.to_thread(read_counters, http)
        self._note(f"purgatory daemon on {daemon}, metrics on http://{http}/metrics")
        async with AsyncClient(daemon) as client:
            await self._start_log(daemon)
            checks = await self._carry_records(client)
            await self._end_log()
            await client.advance(self._partition, removed=True)
        after = await self._settled_counters(http)
        checks.append(check_ledger(self._ledger))
        checks += check_counters(before, after, self._ledger, alone=self._options.daemon is None)
        return checks

    async def _start_log(self, daemon: str) -> None:
        self._leader = leader = await self._cluster.start(
            "leader",
            daemon=daemon,
            partition=self._partition,
            directory=self._directory(LEADER),
            replica_id=LEADER,
            followers=FOLLOWERS,
        )
        self._leader_port = (await leader.hear("ready", STEP_SECONDS_MAX))["port"]
        self._note(f"leader {LEADER} of {self._partition} on port {self._leader_port} (pid {leader.pid})")
        for replica_id in FOLLOWERS:
            await self._start_follower(replica_id)

    async def _carry_records(self, client: AsyncClient) -> list[Check]:
        """From the first record to the trimmed log; returns what was checked on the way."""
        count = len(self._lines)
        kept = self._cluster.directory / "consumed"
        pauses = [count // 2, count * 3 // 4] if self._options.kill_follower else []
        port, source = self._leader_port, self._options.input
        consumer = await self._cluster.start("consumer", leader_port=port, records=count, keep=kept)
        producer = await self._cluster.start("producer", leader_port=port, source=source, pause_at=pauses)
        self._note(
            f"producer (pid {producer.pid}) sends {count} lines with acks=all, consumer (pid {consumer.pid}) reads"
        )
        if self._options.kill_follower:
            await self._kill_and_return(producer, client)
        await producer.hear("done", STEP_SECONDS_MAX)
        self._note(f"all {count} records acknowledged")
        await consumer.hear("done", STEP_SECONDS_MAX)
        self._note(f"all {count} records consumed")
        if self._options.kill_follower:
            await self._wait_in_sync(client, EVERYBODY, 2)
        await self._leader_report(lambda state: state["in_sync"] == EVERYBODY)
        consumed = list(decode_all(kept.read_bytes()))
        checks = [check_records("consumer", consumed, self._lines, 0), check_whole_input(consumed, self._options.input)]
        checks += self._check_logs(self._lines, 0)
        return checks + await self._trim(count // 2)

    async def _kill_and_return(self, producer: Child, client: AsyncClient) -> None:
        """Kill a follower with waits in flight, go on without it, and have it back before the end."""
        third = len(self._lines) // 3
        while (await producer.hear("progress", STEP_SECONDS_MAX))["acknowledged"] < third:
            pass
        victim = self._followers[KILLED]
        await victim.kill()
        self._note(f"killed follower {KILLED} (pid {victim.pid})")
        await self._wait_in_sync(client, [other for other in EVERYBODY if other != KILLED], 1)
        await producer.hear("paused", STEP_SECONDS_MAX)
        producer.tell("go on")
        await producer.hear("paused", STEP_SECONDS_MAX)
        missing = len(self._lines) * 3 // 4 - len(records_on_disk(self._directory(KILLED)))
        self._note(f"records went on without follower {KILLED}: it lacks about {missing}")
        await self._start_follower(KILLED)
        producer.tell("go on")

    async def _trim(self, offset: int) -> list[Check]:
        """Delete the records below `offset` everywhere and check what is left."""
        async with connect(self._leader_port) as channel:
            answer = (await call(channel, "delete_records", offset=offset, timeout_s=WAIT_SECONDS_MAX)).fields
        self._note(f"trimmed to offset {offset}: the low watermark is {answer['low_watermark']}")
        done = answer["error"] == 0 and answer["low_watermark"] >= offset
        checks = [Check(done, f"delete records below {offset}: error {answer['error']}")]
        return checks + self._check_logs(self._lines[offset:], offset)

    async def _end_log(self) -> None:
        """End the followers, then take the leader's ledger when nothing in it is open, then end the leader."""
        for child in self._followers.values():
            await child.end()
        report = await self._leader_report(lambda state: state["open"] == 0)
        self._ledger.add_json(report.body)
        await self._leader.end()

    async def _leader_report(self, until: Callable[[dict[str, Any]], bool]) -> Message:
        """What the leader reports once it is as `until` says. Raises TimeoutError when it never is."""
        async with connect(self._leader_port) as channel, asyncio.timeout(STEP_SECONDS_MAX):
            while True:
                report = await call(channel, "report")
                if until(report.fields):
                    return report
                await asyncio.sleep(0.02)

    async def _settled_counters(self, http: str) -> dict[str, Counters]:
        """The daemon's counters once nothing is pending. With a daemon that serves others too: as they are."""
        async with asyncio.timeout(STEP_SECONDS_MAX):
            while True:
                counters = await asyncio.to_thread(read_counters, http)
                if self._options.daemon is not None or not any(kind.pending for kind in counters.values()):
                    return counters
                await asyncio.sleep(0.05)

    async def _start_follower(self, replica_id: int) -> None:
        directory = self._directory(replica_id)
        follower = await self._cluster.start(
            "follower", leader_port=self._leader_port, directory=directory, replica_id=replica_id
        )
        ready = await follower.hear("ready", STEP_SECONDS_MAX)
        self._followers[replica_id] = follower
        self._note(f"follower {replica_id} (pid {follower.pid}) starts at offset {ready['log_end_offset']}")

    async def _wait_in_sync(self, client: AsyncClient, in_sync: list[int], times: int) -> None:
        """Wait, at the daemon, until the leader has signalled this in-sync set so often."""
        wait = client.signal({in_sync_key(self._partition, in_sync): times}, timeout=WAIT_SECONDS_MAX)
        (await self._ledger.entered("signal", wait)).raise_for_outcome()
        self._note(f"in sync: {in_sync}")

    def _check_logs(self, lines: list[bytes], first_offset: int) -> list[Check]:
        logs = {replica_id: records_on_disk(self._directory(replica_id)) for replica_id in EVERYBODY}
        return [
            check_records(f"log of replica {replica_id} from {first_offset}", records, lines, first_offset)
            for replica_id, records in logs.items()
        ]

    def _directory(self, replica_id: int) -> Path:
        return self._cluster.directory / f"replica-{replica_id}"

    def _note_progress(self, said: dict[str, Any]) -> None:
        if said["event"] == "progress":
            self._note(f"{said['acknowledged']} acknowledged")

    def _note(self, text: str) -> None:
        print(f"{time.monotonic() - self._begun:6.2f} s  {text}", flush=True)

    def _print_end(self, checks: list[Check]) -> None:
        seconds = time.monotonic() - self._begun
        size = sum(map(len, self._lines))
        print(
            f"\n{len(self._lines)} records of {size} bytes with acks=all, in {seconds:.1f} s from first process to last"
        )
        print("\n".join(["", *wait_table(self._ledger), "", *check_lines(checks)]))
