"""The cost of a journal or an archive: compared with a daemon without one, with the bare disk, and at a crash."""

import itertools
import tempfile
import time
from pathlib import Path
from typing import Final

from bench.drivers.latency import WARM_UP
from bench.measure.lab import Lab
from bench.measure.pairing import Figure, Measure
from bench.measure.processes import daemon, run_of
from bench.measure.worker import Numbers

__all__ = ["archived", "columns", "receipts", "recovery"]

CLIENT: Final = "bench.drivers.client"
KEPT: Final = "bench.drivers.kept"
LANES: Final = 8
BATCH: Final = 100
RATE: Final = 10_000
"""Operations per second while receipts are measured."""
KEYS: Final = 1_000
SETTLED_S: Final = 2.5
"""Seconds without a change in size after which the journal counts as cleaned up."""
POLL_S: Final = 0.1
RUNS: Final = itertools.count(1)


def columns(lab: Lab) -> None:
    """Operations per second in batches of 500 with a journal, sync and async, compared with no journal."""
    for mode in ("sync", "async"):
        _beside_none(lab, f"journal/columns-{mode}", "--data-dir", str(lab.folder() / mode), "--journal-mode", mode)


def archived(lab: Lab) -> None:
    """The same with an archive. It must drop no row, or less than everything was measured."""
    place = ("--archive", str(lab.folder() / "archive"))
    _beside_none(lab, "archive/columns", *place)
    dropped = lab.daemon(*place).metric("purgatory_archive_dropped_rows_total")
    assert dropped == 0, f"the archive dropped {dropped:,.0f} rows, so its full cost was not measured"


def _beside_none(lab: Lab, name: str, *arguments: str) -> None:
    client = lab.worker(CLIENT)

    def loading(address: str) -> Measure:
        return run_of(client, "columns", address=address, batch=500, lanes=LANES, seconds=2 * lab.scale.seconds)

    lab.measure(
        [Figure(f"{name}/batch=500", "ops/s")],
        ("daemon", loading(lab.daemon(*arguments).address)),
        {"none": loading(lab.daemon().address)},
    )


def receipts(lab: Lab) -> None:
    """Time to a receipt in sync mode, compared with a loop that writes and syncs as many bytes."""
    scale, folder = lab.scale, lab.folder()
    process = lab.daemon("--data-dir", str(folder / "data"))
    driver, bare = lab.worker(KEPT), lab.worker("bench.peers.durable_loops")
    turns, turn_bytes = scale.probes, 0

    def appended() -> Numbers:
        return bare.run("append", folder=str(folder), turn_bytes=turn_bytes, turns=turns, rate=RATE / BATCH)

    def receipted() -> Numbers:
        nonlocal turn_bytes
        before = written_bytes(process.process_id)
        numbers = driver.run("receipts", address=process.address, batch=BATCH, turns=turns, rate=RATE)
        turn_bytes = (written_bytes(process.process_id) - before) // (WARM_UP + turns)
        return numbers

    lab.measure(
        [Figure(f"journal/receipt-{part}/rate={RATE}", "us", f"{part}_us") for part in ("p50", "p99")],
        ("daemon", receipted),
        {"fsync": appended},
        runs=min(3, scale.runs),
        warm_up=False,
    )


def recovery(lab: Lab) -> None:
    """Fill a daemon and kill it: size of its files, start of the next daemon, and size when all have ended."""
    count = lab.scale.total_pending
    lives: list[Numbers] = []

    def recovered() -> Numbers:
        lives.append(life(lab, count))
        return {"seconds": lives[-1]["recovering_s"]}

    lab.measure(
        [Figure(f"journal/recovery/pending={count}", "s", "seconds")],
        ("daemon", recovered),
        {"registering": lambda: {"seconds": lives[-1]["registering_s"]}},
        runs=min(3, lab.scale.runs),
        warm_up=False,
    )
    lab.measure_once(
        [
            Figure(f"journal/bytes/pending={count}", "B", "bytes_each"),
            Figure("journal/bytes/after", "B", "bytes_after"),
        ],
        "daemon",
        lambda: lives[-1],
    )


def life(lab: Lab, count: int) -> Numbers:
    """Fill a folder with a daemon that is then killed, and empty it with the next one."""
    driver = lab.worker(KEPT)
    work: dict[str, str | float] = {"count": count, "keys": KEYS, "name": f"life-{next(RUNS)}"}
    with tempfile.TemporaryDirectory(prefix="purgatory-bench-") as folder:
        data = Path(folder, "data")
        with daemon("--data-dir", str(data)) as process:
            registering_s = driver.run("fill", address=process.address, **work)["seconds"]
            bytes_each = size_bytes(data) / count
            process.kill()
        started = time.perf_counter()
        with daemon("--data-dir", str(data)) as process:
            recovering_s = time.perf_counter() - started
            driver.run("empty", address=process.address, **work)
            bytes_after = settled_bytes(data)
    return {
        "registering_s": registering_s,
        "recovering_s": recovering_s,
        "bytes_each": bytes_each,
        "bytes_after": float(bytes_after),
    }


def settled_bytes(folder: Path) -> int:
    """The size of the files in bytes, once it no longer changes."""
    size, since_s = size_bytes(folder), time.monotonic()
    while time.monotonic() - since_s < SETTLED_S:
        time.sleep(POLL_S)
        now = size_bytes(folder)
        if now != size:
            size, since_s = now, time.monotonic()
    return size


def size_bytes(folder: Path) -> int:
    """The size of the journal's file and its write-ahead log, in bytes."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.name in {"journal.db", "journal.db-wal"})


def written_bytes(process_id: int) -> int:
    """The bytes that a process has written to disk."""
    lines = Path(f"/proc/{process_id}/io").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))
