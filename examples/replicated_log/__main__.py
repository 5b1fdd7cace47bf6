"""Runs the demonstration: `python -m examples.replicated_log --help`."""

import argparse
import asyncio
import contextlib
import json
import signal
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final

from purgatory_client import AsyncClient

from examples.local_daemon import serving
from examples.replicated_log.clients import consume, produce, split_lines
from examples.replicated_log.daemon_link import EventQueue
from examples.replicated_log.leader import EPOCH, Leader
from examples.replicated_log.log_file import LogFile, decode_all
from examples.replicated_log.membership import Membership, in_sync_key
from examples.replicated_log.proof import Check, Counters, check_counters, check_records, read_counters
from examples.replicated_log.retries import Retries
from examples.replicated_log.shop_load import ShopLoad
from examples.replicated_log.wire import call, connect

PARTITION: Final = "replicated-log-0"
LEADER: Final = 1
FOLLOWERS: Final = [2, 3]
KILLED: Final = 3
LINES_MIN: Final = 8
TIMEOUT_S: Final = 60.0
EXIT_INTERRUPTED: Final = 130


class Run:
    """One run: the folder with the logs, the processes, and the leader."""

    def __init__(self, folder: Path, lines: list[bytes], stack: AsyncExitStack) -> None:
        self._folder = folder
        self._lines = lines
        self._stack = stack
        self._followers: dict[int, asyncio.subprocess.Process] = {}
        self._begun = time.monotonic()

    async def prove(self, *, kill_follower: bool, lose_answers: bool, archive: Path | None) -> list[Check]:
        options = () if archive is None else ("--archive", str(archive))
        address = await self._stack.enter_async_context(serving(self._folder, *options))
        http_address = json.loads((self._folder / "ready.json").read_text())["http_address"]
        self._note(f"purgatory daemon on {address}, live page on http://{http_address}/")
        client = await self._stack.enter_async_context(AsyncClient(address))
        group = await self._stack.enter_async_context(asyncio.TaskGroup())
        queue = EventQueue(client, group)
        membership = Membership(client, queue, PARTITION, LEADER, FOLLOWERS, EPOCH)
        leader = Leader(client, queue, membership, PARTITION, LogFile(self._path(LEADER)))
        port = await leader.start()
        self._stack.push_async_callback(leader.stop)
        for replica_id in FOLLOWERS:
            await self._start_follower(replica_id, port)
        await asyncio.wait_for(membership.all_have_fetched(), TIMEOUT_S)
        checks = await self._carry_records(client, leader, port, kill_follower=kill_follower)
        checks += await self._trim(port, len(self._lines) // 2)
        if lose_answers:
            checks += await Retries(client, queue, leader.ledger, self._folder, self._lines).run()
            self._note("retries over lossy links have ended")
        for process in self._followers.values():
            await _end(process)
        await leader.stop()
        await queue.applied()
        counters = await self._settled_counters(leader, http_address)
        return checks + [check_counters(kind, found, leader.ledger) for kind, found in counters.items()]

    async def stay(self) -> None:
        """Keep the daemon and a light load running until the task is cancelled."""
        ready = json.loads((self._folder / "ready.json").read_text())
        print(
            "\nThe daemon keeps running with a light load. Ctrl-C ends both.",
            f"  live page: http://{ready['http_address']}/",
            f"  in another terminal: .venv/bin/purgatory top --address {ready['grpc_address']}",
            sep="\n",
            flush=True,
        )
        async with AsyncClient(ready["grpc_address"], name="shop") as client:
            await ShopLoad(client).run()

    async def _settled_counters(self, leader: Leader, http_address: str) -> dict[str, Counters]:
        """The daemon's counters once no wait is open here or pending there. Raises TimeoutError."""
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                counters = await asyncio.to_thread(read_counters, http_address)
                if not leader.ledger.open_count and not any(kind.pending for kind in counters.values()):
                    return counters
                await asyncio.sleep(0.05)

    async def _carry_records(
        self, client: AsyncClient, leader: Leader, port: int, *, kill_follower: bool
    ) -> list[Check]:
        count = len(self._lines)

        async def wait_in_sync(in_sync: list[int], times: int) -> None:
            """Wait, at the daemon, until this in-sync set has been signalled `times` times."""
            wait = client.signal({in_sync_key(PARTITION, in_sync): times}, timeout=TIMEOUT_S)
            (await leader.ledger.record("signal", wait)).raise_for_outcome()
            self._note(f"in sync: {in_sync}")

        async def before(offset: int) -> None:
            """Kill the follower while records are unacknowledged, continue without it, and start it again."""
            if kill_follower and offset == count // 3:
                self._followers[KILLED].kill()
                await self._followers[KILLED].wait()
                self._note(f"killed follower {KILLED} (pid {self._followers[KILLED].pid})")
            if kill_follower and offset == count // 2:
                await wait_in_sync([LEADER, *(other for other in FOLLOWERS if other != KILLED)], 1)
            if kill_follower and offset == count * 3 // 4:
                await self._start_follower(KILLED, port)

        async with asyncio.TaskGroup() as group:
            consuming = group.create_task(consume(port, count))
            await produce(port, self._lines, before)
            self._note(f"all {count} records acknowledged")
        self._note(f"all {count} records consumed")
        await wait_in_sync([LEADER, *FOLLOWERS], 2 if kill_follower else 1)  # the first signal is sent at the start
        return [check_records("consumer", consuming.result(), self._lines), *self._check_logs(0)]

    async def _trim(self, port: int, offset: int) -> list[Check]:
        """Delete the records below `offset` on all replicas."""
        async with connect(port) as channel:
            fields = (await call(channel, "delete_records", offset=offset, timeout_s=TIMEOUT_S)).fields
        self._note(f"trimmed to offset {offset}: the low watermark is {fields['low_watermark']}")
        done = fields["error"] == 0 and fields["low_watermark"] >= offset
        return [Check(done, f"delete records below {offset}: error {fields['error']}"), *self._check_logs(offset)]

    def _check_logs(self, first: int) -> list[Check]:
        return [
            check_records(
                f"log of replica {replica_id} from {first}",
                list(decode_all(self._path(replica_id).read_bytes())),
                self._lines[first:],
                first,
            )
            for replica_id in (LEADER, *FOLLOWERS)
        ]

    async def _start_follower(self, replica_id: int, port: int) -> None:
        module = [sys.executable, "-m", "examples.replicated_log.follower"]
        process = await asyncio.create_subprocess_exec(
            *module, str(port), str(self._path(replica_id)), str(replica_id),
            stdout=asyncio.subprocess.PIPE, start_new_session=True,  # see `local_daemon`
        )  # fmt: skip
        self._stack.push_async_callback(_end, process)
        assert process.stdout is not None, "a pipe was asked for"
        line = await asyncio.wait_for(process.stdout.readline(), TIMEOUT_S)
        if not line:
            raise ChildProcessError(f"follower {replica_id} exited with {await process.wait()}")
        self._followers[replica_id] = process
        self._note(f"follower {replica_id} (pid {process.pid}) starts at offset {int(line)}")

    def _path(self, replica_id: int) -> Path:
        return self._folder / f"replica-{replica_id}.log"

    def _note(self, text: str) -> None:
        print(f"{time.monotonic() - self._begun:6.2f} s  {text}", flush=True)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.terminate()
        await process.wait()


async def run(arguments: argparse.Namespace, lines: list[bytes], folder: Path) -> int:
    task = asyncio.current_task()
    assert task is not None, "runs in a task"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    async with AsyncExitStack() as stack:
        demonstration = Run(folder, lines, stack)
        archive = arguments.archive and arguments.archive.resolve()
        checks = await demonstration.prove(
            kill_follower=arguments.kill_follower, lose_answers=arguments.lose_answers, archive=archive
        )
        proven = all(check.holds for check in checks)
        verdict = "proven: every record arrived once, every wait ended once" if proven else "NOT PROVEN: see FAIL above"
        if proven and arguments.lose_answers:
            verdict += "; over lossy links, records with sequence numbers too"
        print("", *checks, "", verdict, sep="\n")
        if not arguments.lose_answers:
            print("To see what lost answers and retries do to order: --lose-answers")
        if sys.stdout.isatty():
            with contextlib.suppress(asyncio.CancelledError):
                await demonstration.stay()
    return 0 if proven else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        "replicated_log",
        description="A small replicated log in which every wait is an operation at a Purgatory daemon.",
        epilog="On a terminal, the daemon and a light load run until Ctrl-C. "
        "Exit code 0: all checks passed. 1: a check or the run failed. 2: invalid usage. 130: interrupted before that.",
    )
    parser.add_argument(
        "--input", type=Path, default=Path(__file__), help="file whose lines are sent (default: this program)"
    )
    parser.add_argument("--kill-follower", action="store_true", help="kill a follower midway and restart it")
    parser.add_argument(
        "--lose-answers", action="store_true", help="then lose requests and answers, and count what retries repeat"
    )
    parser.add_argument("--archive", metavar="DIR", type=Path, help="record the daemon's history there as Parquet")
    arguments = parser.parse_args()
    try:
        lines = split_lines(arguments.input.read_bytes())
    except OSError as error:
        parser.error(f"--input: {error}")
    if len(lines) < LINES_MIN:
        parser.error(f"--input: {arguments.input} has {len(lines)} lines; at least {LINES_MIN} are needed")
    with tempfile.TemporaryDirectory(prefix="replicated-log-") as folder:
        try:
            return asyncio.run(run(arguments, lines, Path(folder)))
        except asyncio.CancelledError:
            print("interrupted; all processes have ended", file=sys.stderr)
            return EXIT_INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
