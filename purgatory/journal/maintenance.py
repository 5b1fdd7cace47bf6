"""`purgatory journal`: check, export and import a journal while its daemon is stopped."""

import argparse
import shutil
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final

from purgatory.journal.directory import Directory, locked
from purgatory.journal.errors import JournalError, damaged
from purgatory.journal.integrity import faults

EXIT_DAMAGED: Final = 1
EXIT_FAILED: Final = 2

COMMANDS: Final = {
    "check": "Read everything and report damage; exit code 1 if there is any.",
    "export": "Write the journal to one file: a backup, or to move it to another machine.",
    "import": "Create a journal from an exported file, in an empty folder.",
}


def main(arguments: Sequence[str] | None = None, program: str = "purgatory journal") -> int:
    given = journal_parser(program).parse_args(arguments)
    try:
        if given.command == "import":
            return _import(given.folder, given.file)
        with locked(given.folder) as directory:
            return _export(directory, given.file) if given.command == "export" else _check(directory)
    except (JournalError, OSError, sqlite3.Error) as error:
        print(f"{program}: {error}", file=sys.stderr)
        return EXIT_FAILED


def journal_parser(program: str = "purgatory journal") -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(program, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in COMMANDS.items():
        command = commands.add_parser(name, help=text, description=text)
        command.add_argument("folder", metavar="DIR", type=Path, help="the daemon's data folder")
        if name in {"export", "import"}:
            command.add_argument("file", metavar="FILE", type=Path, help="the exported file")
    return parser


def _check(directory: Directory) -> int:
    found, rows = faults(directory)
    for fault in found:
        print(f"damaged: {fault}")
    print("intact rows: " + ", ".join(f"{count} {table}" for table, count in rows.items()))
    return EXIT_DAMAGED if found else 0


def _export(directory: Directory, file: Path) -> int:
    if file.exists():
        raise JournalError(f"{file} already exists: choose another name")
    found, _ = faults(directory)
    if found:
        raise damaged(directory.path, found[0])
    # Not a copy of the file, because the last commits may be in the write-ahead log only.
    with closing(sqlite3.connect(directory.database)) as database:
        database.execute("VACUUM INTO ?", (str(file),))
    print(f"written: {file}, {file.stat().st_size} bytes")
    return 0


def _import(folder: Path, file: Path) -> int:
    if folder.exists() and any(folder.iterdir()):
        raise JournalError(f"{folder} is not empty: choose an empty folder")
    if not file.is_file():
        raise JournalError(f"no such file: {file}")
    directory = Directory(folder)
    try:
        shutil.copyfile(file, directory.database)
        found, _ = faults(directory)
        if found:
            directory.database.unlink()
            raise JournalError(f"{file} is damaged: {found[0]}")
        directory.sync()
    finally:
        directory.release()
    print(f"imported into {folder}")
    return 0
