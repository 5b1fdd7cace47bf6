"""`purgatory fleet`: create, inspect and leave a fleet of daemons with one replicated log."""

import argparse
import asyncio
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from purgatory_client.errors import PurgatoryClientError

from purgatory.extensions.fleet.live_commands import add_connection, add_status, hand_over, show_status
from purgatory.fleet.entry import Entry, Kind
from purgatory.fleet.errors import FleetLogError, LogRefused, LogTrimmed
from purgatory.fleet.open_log import open_log
from purgatory.fleet.reign import Reign, ReignState
from purgatory.fleet.replica import MARK, forget_place, is_copy
from purgatory.fleet.replicated_log import ReplicatedLog
from purgatory.fleet.snapshots import store_snapshot
from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalError, damaged
from purgatory.journal.integrity import faults

EXIT_FAILED: Final = 2
EXIT_WRONG: Final = 1
READ_S: Final = 1.0

COMMANDS: Final = {
    "init": "Create the log, or check one that exists. With --from, a journal becomes its beginning.",
    "status": "Show what each daemon does: who leads, and how far the others are.",
    "handover": "Let the standby lead. The leader exits, and its supervisor starts it again as a standby.",
    "verify": "Read the whole log, and report lost entries; exit code 1 if there are any.",
    "leave": "Turn the copy of a stopped daemon into a plain journal.",
}


def main(arguments: Sequence[str] | None = None, program: str = "purgatory fleet") -> int:
    """Run the command and return its exit code."""
    given = fleet_parser(program).parse_args(arguments)
    try:
        if given.command == "leave":
            return _leave(given.folder)
        if given.command == "status":
            return EXIT_WRONG if show_status(given) != 1 else 0
        if given.command == "handover":
            return asyncio.run(hand_over(given))
        log = open_log(given.log, getattr(given, "shard", 0))
        with closing(log):
            return _init(log, given.source, given.shards) if given.command == "init" else _verify(log, given.shards)
    except (FleetLogError, JournalError, PurgatoryClientError, OSError, sqlite3.Error) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return EXIT_FAILED


def fleet_parser(program: str = "purgatory fleet") -> argparse.ArgumentParser:
    """The parser of the command's arguments."""
    parser = argparse.ArgumentParser(program, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        if name in {"init", "verify"}:
            command.add_argument(
                "log", metavar="LOG", help="kafka://HOST:PORT/TOPIC or postgresql://HOST:PORT/DATABASE"
            )
            command.add_argument("--shards", metavar="N", type=int, default=1, help="number of shards (default: 1)")
        if name == "verify":
            command.add_argument("--shard", metavar="N", type=int, default=0, help="which of them (default: 0)")
        if name == "init":
            command.add_argument("--from", dest="source", metavar="DIR", type=Path, help="of a stopped daemon")
        elif name == "leave":
            command.add_argument("folder", metavar="DIR", type=Path, help="the daemon's data folder")
        elif name == "status":
            add_status(command)
        elif name == "handover":
            add_connection(command)
    return parser


def _init(log: ReplicatedLog, source: Path | None, shards: int) -> int:
    if source is not None and shards != 1:
        raise LogRefused("--from makes one shard of a journal; its sessions cannot be divided")
    log.create(shards)
    log.check(shards)
    if source is None:
        print("the log is ready")
        return 0
    if log.end() or log.last_snapshot() is not None:
        raise LogRefused("the log is in use: --from needs a new one")
    directory = _locked(source)
    try:
        found, _ = faults(directory)
        if found:
            raise damaged(source, found[0])
        store_snapshot(directory.database, log)
    finally:
        directory.release()
    print(f"the log is ready, and begins with the journal in {source}. Start the daemons with empty folders")
    return 0


def _leave(folder: Path) -> int:
    directory = _locked(folder)
    try:
        if not is_copy(folder):
            raise JournalError(f"{folder} is not a copy of a fleet's log")
        forget_place(directory.database)
        (folder / MARK).unlink()
    finally:
        directory.release()
    print(f"{folder} is now a plain journal. Do not serve from another copy as well: both would answer")
    return 0


def _locked(folder: Path) -> Directory:
    if not folder.is_dir():
        raise JournalError(f"no such folder: {folder}")
    return Directory(folder)


def _verify(log: ReplicatedLog, shards: int) -> int:
    log.check(shards)
    snapshot = log.last_snapshot()
    counts = dict.fromkeys(Kind, 0)
    reign: Reign | None = None
    try:
        end, position = log.end(), 0
        while position < end:
            try:
                entries = log.read(position, READ_S)
            except LogTrimmed:
                if reign is not None or snapshot is None or position > snapshot.position:
                    raise
                position = snapshot.position + 1  # trimmed below an earlier one
                continue
            for entry in entries:
                reign = reign or Reign(_before(entry))
                valid = reign.accept(entry)
                position = entry.position + 1
                if valid is not None:
                    counts[valid.kind] += 1
    except FleetLogError as error:
        print(f"wrong: {error.args[0]}")
        return EXIT_WRONG
    if reign is not None:
        print(f"epoch {reign.state.epoch}, position {reign.state.position}; {reign.void_entries} void entries")
    print(", ".join(f"{count} {kind.name.lower()}s" for kind, count in counts.items()))
    print("no snapshot" if snapshot is None else f"snapshot of position {snapshot.position}")
    return 0


def _before(entry: Entry) -> ReignState:
    """The state in which the first entry of a trimmed log was valid, if it was."""
    if entry.kind is Kind.CLAIM:
        return ReignState(entry.position - 1, entry.epoch - 1)
    return ReignState(entry.position - 1, entry.epoch, entry.number - 1, entry.writer)
