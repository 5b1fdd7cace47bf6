"""Measures what keeping history costs the batched path: two real daemons side by side, one with an archive, in turn.

    python -m bench.archive
    python -m bench.archive --batch 5000 --pairs 9
    python -m bench.archive --instructions    # counted by valgrind: for a machine that is busy with other things

Each run registers produce waits in columns on a session stream and completes them with columns of high watermarks, a
few batches in flight so that the daemon never waits for its caller. Messages are made before the clock starts. Printed
are the medians, and the median of the ratios of each pair: of wall-clock time, and of the processor time of the thread
of the daemon's event loop and of all its threads. Nothing is asserted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import queue
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from bench.archive_counted import MODES
from purgatory.engine import COMPILED
from purgatory.v1 import event_pb2, operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire

PARTITIONS: Final = 100
FEW: Final = 20_000
MANY: Final = 70_000
VALGRIND: Final = ("valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null")
TIMEOUT_MS: Final = 600_000
READY_S: Final = 30.0
PATIENCE_S: Final = 120.0


class Cost(NamedTuple):
    """What a run of so many operations took, in seconds: wall-clock, processor of the loop, processor of all."""

    operations: int
    wall_s: float
    loop_s: float
    all_s: float


class Daemon:
    """A daemon on free ports."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        ready = folder / "ready.json"
        listen = ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", "--ready-file", str(ready)]
        self.process: Final = subprocess.Popen([sys.executable, "-m", "purgatory", "serve", *listen, *arguments])
        deadline = time.monotonic() + READY_S
        while not ready.exists():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise SystemExit("the daemon did not get to serve")
            time.sleep(0.05)
        self.channel: Final = grpc.insecure_channel(json.loads(ready.read_text("utf-8"))["grpc_address"])

    def processor_s(self) -> tuple[float, float]:
        """Processor time so far of the main thread, where the event loop runs, and of all threads."""
        process_id = self.process.pid
        main = Path(f"/proc/{process_id}/task/{process_id}/stat").read_text("utf-8")
        return seconds_in(main), seconds_in(Path(f"/proc/{process_id}/stat").read_text("utf-8"))

    def stream(self, method: str, read: Callable[[bytes], Any] | None) -> grpc.StreamStreamMultiCallable[Any, Any]:
        """A streaming method that takes bytes as they are."""
        return self.channel.stream_stream(f"/purgatory.v1.PurgatoryService/{method}", response_deserializer=read)

    def stop(self) -> None:
        """Ends it."""
        self.channel.close()
        self.process.terminate()
        self.process.wait(READY_S)


def seconds_in(stat: str) -> float:
    """User and system time of a line of /proc."""
    fields = stat.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Work:
    """Messages of one run, in bytes: registrations, and the events that complete them."""

    def __init__(self, topic: str, batches: int, batch: int) -> None:
        self.session_id: Final = topic
        self.operations: Final = batches * batch
        names = [operation_pb2.TopicPartition(topic=topic, partition=number) for number in range(PARTITIONS)]
        places = [number % PARTITIONS for number in range(batch)]
        step = (batch + PARTITIONS - 1) // PARTITIONS
        self.registrations: Final[list[bytes]] = []
        self.events: Final[list[bytes]] = []
        for number in range(batches):
            columns = operation_pb2.OperationColumns(
                kind=operation_pb2.OPERATION_KIND_PRODUCE,
                partitions=names,
                operation_id=range(number * batch + 1, (number + 1) * batch + 1),
                timeout_ms=[TIMEOUT_MS],
                item_index=places,
                offset=[number * step + place // PARTITIONS + 1 for place in range(batch)],
            )
            register = wire.RegisterBatch(batch_id=number + 1, columns=columns)
            self.registrations.append(wire.SessionRequest(register=register).SerializeToString())
            marks = event_pb2.EventColumns(
                partitions=names,
                type=[event_pb2.EVENT_TYPE_HIGH_WATERMARK] * PARTITIONS,
                item_index=range(PARTITIONS),
                offset=[(number + 1) * step],
            )
            self.events.append(wire.AdvanceStreamRequest(columns=marks).SerializeToString())


def run(daemon: Daemon, work: Work, in_flight: int) -> Cost:
    """Sends all of it, and waits until each operation has had its result."""
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    marks: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    session: Iterator[wire.SessionResponse] = daemon.stream("Session", wire.SessionResponse.FromString)(
        until_none(requests), timeout=PATIENCE_S
    )
    advance: Iterator[bytes] = daemon.stream("AdvanceStream", None)(until_none(marks), timeout=PATIENCE_S)
    reader = threading.Thread(target=lambda: list(advance))
    reader.start()
    opening = wire.OpenSession(session_id=work.session_id, columns=True)
    requests.put(wire.SessionRequest(open=opening).SerializeToString())
    next(session)
    before, started = daemon.processor_s(), time.perf_counter()
    to_send = iter(zip(work.registrations, work.events, strict=True))
    for registration, _ in itertools.islice(zip(work.registrations, work.events, strict=True), in_flight):
        requests.put(registration)
    ahead = iter(work.registrations[in_flight:])
    ended = 0
    for response in session:  # ends by itself: the daemon ends a stream that was half-closed
        if response.HasField("receipt"):
            marks.put(next(to_send)[1])
            following = next(ahead, None)
            if following is not None:
                requests.put(following)
        elif response.HasField("results"):
            results = response.results
            ended += len(results.columns.operation_id)
            last = results.first_sequence + len(results.columns.operation_id) - 1
            requests.put(wire.SessionRequest(acknowledge=wire.AcknowledgeResults(sequence=last)).SerializeToString())
            if ended == work.operations:
                wall_s, after = time.perf_counter() - started, daemon.processor_s()
                requests.put(None)
                marks.put(None)
    reader.join()
    return Cost(work.operations, wall_s, after[0] - before[0], after[1] - before[1])


def until_none(messages: queue.SimpleQueue[bytes | None]) -> Iterator[bytes]:
    """Messages as they are put, until None."""
    return iter(messages.get, None)


def main() -> None:
    """Prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--batch", type=int, default=1_000, help="operations in a message")
    parser.add_argument("--operations", type=int, default=400_000, help="operations of a run")
    parser.add_argument("--in-flight", type=int, default=8, help="batches that are under way at a time")
    parser.add_argument("--pairs", type=int, default=5, help="pairs of runs, after one that does not count")
    parser.add_argument("--instructions", action="store_true", help="count instructions instead; takes minutes")
    given = parser.parse_args()
    if given.instructions:
        count_instructions()
        return
    batches = max(given.in_flight, given.operations // given.batch)
    print(f"engine: {'compiled' if COMPILED else 'UNCOMPILED'}; {batches} batches of {given.batch:,} a run")
    with tempfile.TemporaryDirectory(prefix="bench-archive-") as name:
        for part in ("plain", "kept"):
            Path(name, part).mkdir()
        plain = Daemon(Path(name, "plain"), "--log-level", "warning")
        kept = Daemon(Path(name, "kept"), "--log-level", "warning", "--archive", str(Path(name, "archive")))
        pairs: list[tuple[Cost, Cost]] = []
        try:
            for number in range(given.pairs + 1):
                work = Work(f"run-{number}", batches, given.batch)
                pairs.append((run(plain, work, given.in_flight), run(kept, work, given.in_flight)))
        finally:
            plain.stop()
            kept.stop()
        files = list(Path(name, "archive").rglob("*.parquet"))
        size = sum(path.stat().st_size for path in files)
    show(pairs[1:], size / sum(cost.operations for _, cost in pairs), len(files))


def count_instructions() -> None:
    """Prints what a wait takes in instructions, and what rows and files add to it."""
    if not shutil.which(VALGRIND[0]):
        raise SystemExit("instructions are not counted: there is no valgrind")
    each: dict[str, float] = {}
    for mode in MODES:
        counts = [counted(mode, operations) for operations in (FEW, MANY)]
        each[mode] = (counts[1] - counts[0]) / (MANY - FEW)
        added = "" if mode == MODES[0] else f", {(each[mode] / each[MODES[0]] - 1) * 100:.1f} % more than without"
        print(f"  {mode:6} {each[mode]:8,.0f} instructions a wait{added}", flush=True)


def counted(mode: str, operations: int) -> int:
    """Instructions of one run."""
    command = [*VALGRIND, sys.executable, "-m", "bench.archive_counted", mode, str(operations)]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    found = re.search(r"Collected\s*:\s*(\d+)", said)
    assert found is not None, said[-300:]
    return int(found.group(1))


def show(pairs: list[tuple[Cost, Cost]], bytes_each: float, files: int) -> None:
    """Medians and ratios."""
    for name, field in (("wall clock", "wall_s"), ("event loop's thread", "loop_s"), ("all threads", "all_s")):
        plain = statistics.median(getattr(cost, field) / cost.operations for cost, _ in pairs) * 1e6
        kept = statistics.median(getattr(cost, field) / cost.operations for _, cost in pairs) * 1e6
        ratios = [getattr(second, field) / getattr(first, field) for first, second in pairs]
        ratio = f"{statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f})"
        print(f"  {name:20} {plain:6.2f} µs an operation, {kept:6.2f} with an archive: {ratio}")
    print(f"  archive: {bytes_each:.1f} bytes an operation, {files} files")


if __name__ == "__main__":
    main()
