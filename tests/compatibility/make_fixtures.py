"""Writes the packages of this release and files made by it, for the tests of later ones.

    python -m tests.compatibility.make_fixtures tests/compatibility/fixtures/0.1.0

The packages are those of the last commit, the files those of this tree, so commit everything before. The folder must
not exist. Needs PostgreSQL, for the log of a fleet, Spark, for the checkpoint of a stream, and for the clients Node,
Java with Maven, and what they fetch. The wheel is uncompiled, so that it runs on every Python and system.
"""

import gzip
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

import pyarrow as pa
from purgatory_client.blocking import shared_loop
from purgatory_client.sources.position_tokens import Positions
from purgatory_pipeline.stream import shard_state
from purgatory_pipeline.stream.shard import Shard
from purgatory_pipeline.stream.stream_rows import ROWS

from examples.local_postgres import LocalPostgres
from purgatory import __version__
from purgatory.engine.codes import HIGH_WATERMARK, PRODUCE
from purgatory.replicated_log.open_log import open_log
from purgatory.service.access.tokens import add_token
from tests.compatibility.released_clients import CLIENTS, GO_MODULE
from tests.compatibility.scenario import OFFSETS, POLICY, fill
from tests.fleet.audit import read_all
from tests.kit.daemon import EXECUTE, DaemonProcess, access_flags
from tests.kit.fleet import Member
from tests.kit.programs import fleet_command, run_program
from tests.pipeline.stream.simulated_history import StreamFolders
from tests.strangers.client_builds import run_tool

ROOT = Path(__file__).resolve().parents[2]
SESSIONS = ("--session-ttl-ms", "2147483647")
"""Sessions are kept however long it takes until the files are read."""


def make_packages(folder: Path) -> None:
    environment = os.environ | {"PURGATORY_BUILD": "pure"}
    with tempfile.TemporaryDirectory() as sources:
        subprocess.run(f"git archive HEAD | tar -x -C {sources}", cwd=ROOT, shell=True, check=True)
        wheel = ["-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w"]
        run_program([sys.executable, *wheel, str(folder), sources], env=environment, timeout_s=600)
        make_clients(folder / CLIENTS, Path(sources) / "client")
    buf = str(Path(sys.executable).with_name("buf"))
    run_program([buf, "build", "--exclude-source-info", "-o", str(folder / "protos.binpb.gz")], cwd=ROOT)


def make_clients(folder: Path, sources: Path) -> None:
    """The packages for TypeScript, Java and Go, each with a program that uses it. That for Go is in its module."""
    node, java, go = sources / "typescript", sources / "java", sources / "go"
    folder.mkdir(exist_ok=True)
    run_tool("NODE", ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"], node)
    run_tool("NODE", ["npm", "pack", "--pack-destination", str(folder)], node)
    run_tool("JAVA", ["mvn", "-q", "-B", "package"], java)
    [jar] = java.glob("target/*.jar")
    program = java / "src/main/java/purgatory/client/Resume.java"
    for path in (node / "dist" / "resume.js", jar, java / "pom.xml", program):
        shutil.copy(path, folder)
    version, proxy = f"v{__version__}", folder / GO_MODULE / "@v"
    proxy.mkdir(parents=True, exist_ok=True)
    (proxy / f"{version}.info").write_text(json.dumps({"Version": version}))
    shutil.copy(go / "go.mod", proxy / f"{version}.mod")
    with zipfile.ZipFile(proxy / f"{version}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as module:
        for path in sorted(filter(Path.is_file, go.rglob("*"))):
            module.write(path, f"{GO_MODULE}@{version}/{path.relative_to(go)}")


def make_daemon_files(folder: Path, work: Path) -> tuple[str, str]:
    """A data folder, an archive, an outbox, and the tokens with which they were made."""
    flags = [
        *access_flags(work, POLICY),
        *SESSIONS,
        "--data-dir",
        str(work / "data"),
        "--archive",
        str(work / "archive"),
    ]
    tokens = add_token(work / "tokens", "ann"), add_token(work / "tokens", "bob")
    with DaemonProcess(work / "daemon", flags) as daemon:
        shared_loop().run(fill(daemon.address, *tokens, work / "outbox.db"))
        assert daemon.stop() == 0
    with tarfile.open(folder / "files.tar.xz", "w:xz") as tar:
        for name in ("data", "archive", "outbox.db", "tokens"):
            tar.add(work / name, name)
    return tokens


def make_fleet_log(folder: Path, work: Path, tokens: tuple[str, str]) -> None:
    """All entries of a log, as they are in it."""
    with LocalPostgres() as servers:
        url = f"postgresql://postgres@{servers.primary().address}/postgres"
        assert fleet_command(["init", url]) == 0
        with Member("a", work, url, [*access_flags(work, POLICY), *SESSIONS]) as member:
            member.until("/leaderz")
            shared_loop().run(fill(member.address, *tokens, None))
            assert member.stop() == 0
        with closing(open_log(url)) as log, gzip.open(folder / "fleet-log.jsonl.gz", "wt") as file:
            for entry in read_all(log):
                file.write(json.dumps([entry.position, entry.logged_ms, entry.to_bytes().hex()]) + "\n")


def wait_at(at_ms: int, number: int, offset: int, timeout_ms: int) -> dict[str, object]:
    """A wait as a row of a stream."""
    wait = {"at_ms": at_ms, "kind": PRODUCE, "caller": "a", "operation_id": number, "timeout_ms": timeout_ms}
    return wait | {"item": 0, "item_count": 1, "topic": "orders", "partition": 3, "offset": offset}


def mark_at(at_ms: int, offset: int) -> dict[str, object]:
    return {"at_ms": at_ms, "type": HIGH_WATERMARK, "topic": "orders", "partition": 3, "offset": offset}


def make_shard_state(folder: Path) -> None:
    """A shard of a stream: one pending wait, and a mark below its offset."""
    shard = Shard(100)
    rows = [wait_at(1_000, 7, 42, 5_000), mark_at(1_500, 20), {"at_ms": 2_000}]
    shard.play(pa.Table.from_pylist(rows, schema=ROWS))
    (folder / "shard-state").write_bytes(shard_state.to_bytes(shard))


def run_stream(folders: StreamFolders, environment: Mapping[str, str] = EXECUTE) -> None:
    """Let a stream of some release read the existing files."""
    inputs = ["--registrations", str(folders.registrations), "--events", str(folders.events)]
    options = ["--results", str(folders.results), "--shards", "2", "--delay", "100ms", "--once", "--master", "local[1]"]
    quiet = ["--conf", "spark.driver.host=127.0.0.1", "--conf", "spark.ui.enabled=false"]
    command = [sys.executable, "-m", "purgatory_pipeline.cli", "stream", *inputs, *options, *quiet]
    run_program(command, env=os.environ | dict(environment), timeout_s=600)


def make_stream(folder: Path, work: Path, environment: Mapping[str, str] = EXECUTE) -> None:
    """A stream's checkpoint with 15 pending waits, the files that end them, and the outcomes that it then wrote."""
    folders, ms = StreamFolders(work), 1_700_000_000_000
    waits = [wait_at(ms + number, number, 10 * number, 5_000 if number % 2 else 60_000) for number in range(1, 21)]
    folders.write([*waits, mark_at(ms + 100, 50), {"at_ms": ms + 1_000}])
    run_stream(folders, environment)
    with tarfile.open(folder / "stream.tar.xz", "w:xz") as tar:
        tar.add(work / "results" / "_checkpoint", "results/_checkpoint")
        folders.write([mark_at(ms + 10_000, 150), {"at_ms": ms + 100_000}])
        run_stream(folders, environment)
        [outcomes] = (work / "results").glob("outcomes/batch=*1")
        for path in (folders.registrations / "00001.parquet", folders.events / "00001.parquet"):
            tar.add(path, f"{path.parent.name}/{path.name}")
        tar.add(outcomes, f"expected/outcomes/{outcomes.name}")


def make(folder: Path) -> None:
    folder = folder.resolve()
    folder.mkdir(parents=True)
    make_packages(folder)
    make_shard_state(folder)
    with tempfile.TemporaryDirectory() as work:
        tokens = make_daemon_files(folder, Path(work))
        make_fleet_log(folder, Path(work), tokens)
        make_stream(folder, Path(work) / "stream")
    short = Positions(OFFSETS, {"kafka/billing/orders-0": 5})
    long = Positions({f"kafka/billing/orders-{number}": number for number in range(64)})
    facts = {"made_s": int(time.time()), "tokens": tokens, "positions": [short.token, long.token]}
    (folder / "facts.json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    make(Path(sys.argv[1]))
