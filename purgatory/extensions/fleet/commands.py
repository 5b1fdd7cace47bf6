"""`purgatory fleet`: create, inspect and leave a fleet of daemons with one replicated log."""

import argparse
import asyncio
import contextlib
import json
import os
import sqlite3
import ssl
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

from purgatory_client.aio import DEFAULT_ADDRESS, AsyncClient
from purgatory_client.argument_checks import whole_number
from purgatory_client.errors import InvalidRequest, PurgatoryClientError, Unavailable
from purgatory_client.unary import shards_of

from purgatory.extensions.fleet.fleet_view import LEADING, describe
from purgatory.extensions.fleet.settings import SHARDS_MAX
from purgatory.journal.directory import locked
from purgatory.journal.errors import JournalError, damaged
from purgatory.journal.integrity import faults
from purgatory.replicated_log.entry import Kind, unpacked
from purgatory.replicated_log.errors import FleetLogError, LogRefused, LogTrimmed, LogUnavailable
from purgatory.replicated_log.open_log import open_log
from purgatory.replicated_log.reign import Reign, ReignState
from purgatory.replicated_log.replica import MARK, PART, SNAPSHOT, LogPlace, forget_place, is_copy
from purgatory.replicated_log.replicated_log import ReplicatedLog, Snapshot
from purgatory.replicated_log.snapshots import store_snapshot, unpack

EXIT_FAILED: Final = 2
EXIT_WRONG: Final = 1
READ_S: Final = 1.0
PATIENCE_S: Final = 15.0
RETRY_S: Final = 0.5
ANSWER_S: Final = 5.0
FILES: Final = {
    "tls_ca": "certificate authorities to trust (PEM file)",
    "tls_certificate": "client certificate (PEM file)",
    "tls_key": "private key of the client certificate (PEM file)",
    "token_file": "file with the bearer token",
}

COMMANDS: Final = {
    "init": "Create the log, or check one that exists. With --from, a journal becomes its beginning.",
    "status": "Show what each daemon does: who leads, and how far the others are.",
    "handover": "Let the standby lead. The leader exits, and its supervisor starts it again as a standby.",
    "verify": "Read the whole log, and report lost entries; exit code 1 if there are any.",
    "leave": "Turn the copy of a stopped daemon into a plain journal.",
}


def main(arguments: Sequence[str] | None = None, program: str = "purgatory fleet") -> int:
    given = fleet_parser(program).parse_args(arguments)
    try:
        if given.command == "leave":
            return _leave(given.folder)
        if given.command == "status":
            return _show_status(given)
        if given.command == "handover":
            return asyncio.run(_hand_over(given))
        log = open_log(given.log, getattr(given, "shard", 0))
        with contextlib.closing(log):
            return _init(log, given.source, given.shards) if given.command == "init" else _verify(log)
    except (FleetLogError, JournalError, PurgatoryClientError, OSError, sqlite3.Error) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return EXIT_FAILED


def fleet_parser(program: str = "purgatory fleet") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(program, description=__doc__)
    subparsers = parser.add_subparsers(dest="command", required=True)
    of = {name: subparsers.add_parser(name, help=text, description=text) for name, text in COMMANDS.items()}
    for name in ("init", "verify"):
        of[name].add_argument("log", metavar="LOG", help="kafka://HOST:PORT/TOPIC or postgresql://HOST:PORT/DATABASE")
    of["init"].add_argument("--shards", metavar="N", type=_number, default=1, help="number of shards (default: 1)")
    of["verify"].add_argument("--shard", metavar="N", type=_number, default=0, help="which shard (default: 0)")
    of["init"].add_argument("--from", dest="source", metavar="DIR", type=Path, help="of a stopped daemon")
    of["leave"].add_argument("folder", metavar="DIR", type=Path, help="the daemon's data folder")
    with_tls = "HTTP address of a daemon; with TLS: https://HOST:PORT"
    of["status"].add_argument("addresses", metavar="HOST:PORT", nargs="+", help=with_tls)
    of["handover"].add_argument(
        "--address", "-a", metavar="HOST:PORT", default=os.environ.get("PURGATORY_ADDRESS", DEFAULT_ADDRESS),
        help="the leader's gRPC address, or those of all daemons: a:7440,b:7440",
    )  # fmt: skip
    of["handover"].add_argument(
        "--tls", action="store_true", help="use TLS and trust the public certificate authorities"
    )
    of["handover"].add_argument(
        "--balance", action="store_true", help="in each shard, let the daemon lead that its target names first"
    )
    for name in ("status", "handover"):
        for file, text in FILES.items():
            default, flag = os.environ.get(f"PURGATORY_{file.upper()}"), f"--{file.replace('_', '-')}"
            of[name].add_argument(flag, metavar="FILE", type=Path, default=default, help=text)
    return parser


def _number(text: str) -> int:
    number = whole_number(text)
    if number is None or number > SHARDS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 to {SHARDS_MAX}")
    return number


async def _hand_over(given: argparse.Namespace) -> int:
    """Raises `PurgatoryClientError`."""
    async with _client(given, given.address) as client:
        if given.balance:
            return max([await _balance(given, n, one.address) for n, one in enumerate(await shards_of(client))])
        await client.hand_over()
    print("handing over: the leader ends, and a standby claims")
    return 0


async def _balance(given: argparse.Namespace, shard: int, target: str) -> int:
    """Let the leader of a shard hand over if it is not the first daemon of the target."""
    first, *others = target.split(",")
    try:
        async with _client(given, first) as client:
            await shards_of(client)  # answered by standbys too
    except Unavailable as error:
        print(f"shard {shard}: {first} cannot lead: {error}")
        return EXIT_WRONG
    for other in others:
        # A standby refuses; one that is down does not lead.
        with contextlib.suppress(InvalidRequest, Unavailable):
            async with _client(given, other) as client:
                await client.hand_over()
            print(f"shard {shard}: {other} hands over")
    return 0


def _client(given: argparse.Namespace, address: str) -> AsyncClient:
    files = {name: getattr(given, name) for name in FILES if name != "token_file"}
    return AsyncClient(address, name="cli", tls=given.tls, token=given.token_file, **files)


def _show_status(given: argparse.Namespace) -> int:
    """Print a line for each daemon. Return the exit code: whether exactly one leads, and all follow one log. Raises
    OSError for a file that cannot be read.
    """
    trusted = ssl.create_default_context(cafile=given.tls_ca)
    if given.tls_certificate is not None:
        trusted.load_cert_chain(given.tls_certificate, given.tls_key)
    token = given.token_file and given.token_file.read_text("utf-8").strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    leaders, logs = 0, set[str]()
    for address in given.addresses:
        url = address if address.startswith("https://") else f"http://{address.removeprefix('http://')}"
        request = Request(f"{url.rstrip('/')}/fleet", headers=headers)  # noqa: S310 - as above
        try:
            with urlopen(request, timeout=ANSWER_S, context=trusted) as answer:  # noqa: S310 - as above
                view = json.load(answer)
        except (OSError, ValueError) as error:
            print(f"{address}: does not answer ({error})")
            continue
        leaders += view["state"] == LEADING
        logs.update([view["log"]] if view["log"] else [])
        print(f"{address}: {describe(view)}")
    if len(logs) > 1:
        print(f"these daemons follow different logs: {', '.join(sorted(logs))}")
    return 0 if leaders == 1 and len(logs) == 1 else EXIT_WRONG


def _init(log: ReplicatedLog, source: Path | None, shards: int) -> int:
    if source is not None and shards != 1:
        raise LogRefused("--from makes one shard of a journal; its sessions cannot be divided")
    log.create(shards)
    _check(log, shards)
    end, snapshot = log.end(), log.last_snapshot()
    _check_snapshot(end, snapshot)
    if source is None:
        print("the log is ready")
        return 0
    reign = Reign()
    if end != 1 or snapshot is not None or reign.accept(log.read(0, PATIENCE_S)[0]) is None:
        raise LogRefused("the log is in use: --from needs a new one")
    with locked(source) as directory:
        found, _ = faults(directory)
        if found:
            raise damaged(source, found[0])
        store_snapshot(directory.database, log, LogPlace().at(reign.state))
    print(f"the log is ready, and begins with the journal in {source}. Start the daemons with empty folders")
    return 0


def _leave(folder: Path) -> int:
    with locked(folder) as directory:
        if not is_copy(folder):
            raise JournalError(f"{folder} is not a copy of a fleet's log")
        forget_place(directory.database)
        (folder / MARK).unlink()
    print(f"{folder} is now a plain journal. Do not serve from another copy as well: both would answer")
    return 0


def _check(log: ReplicatedLog, shards: int | None) -> None:
    """Check the log, again if it does not answer at once, as on a first connection to a busy server."""
    until = time.monotonic() + PATIENCE_S
    while True:
        try:
            return log.check(shards)
        except LogUnavailable:
            if time.monotonic() > until:
                raise
            time.sleep(RETRY_S)


def _check_snapshot(end: int, snapshot: Snapshot | None) -> None:
    if snapshot is not None and snapshot.position >= end:
        raise LogRefused(
            f"the log ends at position {end}, and its last snapshot at position {snapshot.position}: the snapshots "
            "belong to an earlier log. Delete them too, or restore the log"
        )


def _verify(log: ReplicatedLog) -> int:
    _check(log, None)
    counts = dict.fromkeys(Kind, 0)
    try:
        end, snapshot = log.end(), log.last_snapshot()
        _check_snapshot(end, snapshot)
        reign = Reign(_begin(log, snapshot), unpacked)
        while reign.state.position + 1 < end:
            for entry in log.read(reign.state.position + 1, READ_S):
                valid = reign.accept(entry)
                if valid is not None:
                    counts[valid.kind] += 1
        if not reign.state.log_id:
            raise LogRefused("the log does not begin with the entry that `purgatory fleet init` writes")
    except FleetLogError as error:
        print(f"wrong: {error.args[0]}")
        return EXIT_WRONG
    print(f"log {reign.state.log_id.hex()}")
    print(f"epoch {reign.state.epoch}, position {reign.state.position}; {reign.void_entries} void entries")
    print(", ".join(f"{count} {kind.name.lower()}s" for kind, count in counts.items() if kind is not Kind.UNREADABLE))
    print("no snapshot" if snapshot is None else f"snapshot of position {snapshot.position}")
    return 0


def _begin(log: ReplicatedLog, snapshot: Snapshot | None) -> ReignState:
    """The state in which a reader begins: nothing, or the last snapshot if the log has been trimmed."""
    begin = ReignState()
    if snapshot is not None:
        with tempfile.TemporaryDirectory(prefix=SNAPSHOT) as folder:
            begin = unpack(snapshot, Path(folder) / PART).state
        if not any(map(begin.ends_with, log.read(begin.position, PATIENCE_S)[:1])):
            raise LogRefused(f"the snapshot of position {begin.position} belongs to another log")
    try:
        log.read(0, READ_S)
    except LogTrimmed:
        if snapshot is None:
            raise
        return begin
    return ReignState()
