"""`purgatory journal`: check, export and import a journal while its daemon is stopped."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final

import click

from purgatory.command_line import FILE, ExitCodes
from purgatory.journal.directory import Directory, locked
from purgatory.journal.errors import JournalError, damaged
from purgatory.journal.integrity import faults

EXIT_DAMAGED: Final = 1
EXIT_FAILED: Final = 2

FOLDER: Final = click.argument("folder", metavar="DIR", type=FILE, help="The daemon's data folder.")
EXPORTED: Final = click.argument("file", metavar="FILE", type=FILE, help="The exported file.")


@click.group(cls=ExitCodes, errors=(JournalError, OSError, sqlite3.Error), failed=EXIT_FAILED)
def journal() -> None: ...


@journal.command()
@FOLDER
def check(folder: Path) -> int:
    """Read everything and report damage; exit code 1 if there is any."""
    with locked(folder) as directory:
        found, rows = faults(directory)
    for fault in found:
        print(f"damaged: {fault}")
    print("intact rows: " + ", ".join(f"{count} {table}" for table, count in rows.items()))
    return EXIT_DAMAGED if found else 0


@journal.command()
@FOLDER
@EXPORTED
def export(folder: Path, file: Path) -> int:
    """Write the journal to one file: a backup, or to move it to another machine."""
    with locked(folder) as directory:
        if file.exists():
            raise JournalError(f"{file} already exists: choose another name")
        found, _ = faults(directory)
        if found:
            raise damaged(folder, found[0])
        # Not a copy of the file, because the last commits may be in the write-ahead log only.
        with closing(sqlite3.connect(directory.database)) as database:
            database.execute("VACUUM INTO ?", (str(file),))
    print(f"written: {file}, {file.stat().st_size} bytes")
    return 0


@journal.command("import")
@FOLDER
@EXPORTED
def import_(folder: Path, file: Path) -> int:
    """Create a journal from an exported file, in an empty folder."""
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
