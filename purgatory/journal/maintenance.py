"""`purgatory journal`: check, repair, dump, export and import a journal while its daemon is stopped."""

import argparse
import json
import shutil
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from purgatory.journal.directory import Directory
from purgatory.journal.errors import JournalError
from purgatory.journal.repair import JournalInspection, inspect, repair
from purgatory.journal.sql_schema import COLUMNS, name_on_disk

EXIT_DAMAGED: Final = 1
EXIT_FAILED: Final = 2

COMMANDS: Final = {
    "check": "Read everything and say what is wrong; exit code 1 if anything is.",
    "repair": "Make a new journal of what is intact; the old files stay beside it.",
    "dump": "Print every row as a line of JSON, with the lengths of packed contents.",
    "export": "Write the journal into one file, for another machine.",
    "import": "Make a journal of an exported file, in an empty folder.",
}


def main(arguments: Sequence[str] | None = None, program: str = "purgatory journal") -> int:
    """Runs the command and returns its exit code."""
    given = _parser(program).parse_args(arguments)
    try:
        return _import(given.folder, given.file) if given.command == "import" else _run(given)
    except (JournalError, OSError, sqlite3.Error) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return EXIT_FAILED


def _parser(program: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(program, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("folder", metavar="DIR", type=Path, help="the daemon's data folder")
        if name in {"export", "import"}:
            command.add_argument("file", metavar="FILE", type=Path, help="the portable file")
    return parser


def _run(given: argparse.Namespace) -> int:
    if not given.folder.is_dir():
        raise JournalError(f"there is no folder {given.folder}")
    directory = Directory(given.folder)
    try:
        if given.command == "export":
            return _export(directory, given.file)
        inspection = repair(directory) if given.command == "repair" else inspect(directory)
    finally:
        directory.release()
    if given.command == "dump":
        _dump(inspection)
        return 0
    _report(inspection, repaired=given.command == "repair")
    return EXIT_DAMAGED if inspection.faults and given.command == "check" else 0


def _report(inspection: JournalInspection, *, repaired: bool) -> None:
    for fault in inspection.faults:
        print(f"damaged: {fault}")
    for session_id in inspection.set_aside:
        verb = "set aside" if repaired else "would be set aside"
        print(f"{verb}: session {session_id!r}, whose client has to register again")
    counts = ", ".join(f"{len(rows)} {name_on_disk(table)}" for table, rows in inspection.rows.items())
    print(f"intact: {counts}")


def _dump(inspection: JournalInspection) -> None:
    for table, rows in inspection.rows.items():
        for row in rows:
            values = [len(value) if isinstance(value, bytes) else value for value in row]
            print(json.dumps({"table": name_on_disk(table), **dict(zip(COLUMNS[table], values, strict=False))}))


def _export(directory: Directory, file: Path) -> int:
    if file.exists():
        raise JournalError(f"{file} exists already: name another file")
    faults = inspect(directory).faults
    if faults:
        raise JournalError(f"the journal is damaged ({faults[0]}): repair it first")
    with closing(sqlite3.connect(directory.database)) as database:
        database.execute("VACUUM INTO ?", (str(file),))
    print(f"written: {file}, {file.stat().st_size} bytes")
    return 0


def _import(folder: Path, file: Path) -> int:
    if folder.exists() and any(folder.iterdir()):
        raise JournalError(f"{folder} is not empty: name a folder that has no journal")
    if not file.is_file():
        raise JournalError(f"there is no file {file}")
    directory = Directory(folder)
    try:
        shutil.copyfile(file, directory.database)
        faults = inspect(directory).faults
        if faults:
            directory.database.unlink()
            raise JournalError(f"{file} is damaged ({faults[0]})")
        directory.sync()
    finally:
        directory.release()
    print(f"imported into {folder}")
    return 0
