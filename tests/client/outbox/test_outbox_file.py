"""The outbox file: committed records survive every failure, and an unusable file is refused with the reason.

The world `crash` of tests/histories kills a caller with an outbox: each wait that it stored ends once.
"""

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from purgatory_client.errors import OutboxError, OutboxReason
from purgatory_client.outbox import outbox_file

from purgatory.v1 import purgatory_service_pb2 as wire
from tests.client.test_blocking import environment
from tests.kit.recorded import assert_recorded, cases_of


def outbox_error(reason: OutboxReason, match: str | None = None) -> pytest.RaisesExc[OutboxError]:
    """A context in which `OutboxError` must be raised, with this reason."""
    return pytest.raises(OutboxError, match=match, check=lambda error: error.reason is reason)


def registration(first: int, operations: int = 1, tag: str = "", size: int = 5) -> outbox_file.RegistrationRecord:
    return outbox_file.RegistrationRecord(first, operations, operations > 1, tag, 1_700_000_000.25, b"x" * size)


def arrived(*operation_ids: int) -> outbox_file.ResultsRecord:
    batch = wire.ResultBatch(first_sequence=1)
    batch.columns.operation_id.extend(operation_ids)
    return outbox_file.ResultsRecord(batch.SerializeToString())


def test_a_second_client_is_told_who_has_the_file(tmp_path: Path) -> None:
    """A second client, in this process or another, fails with the process id; a killed owner leaves no
    lock.
    """
    file = outbox_file.OutboxFile(tmp_path / "o.db")
    with outbox_error(OutboxReason.IN_USE, match=f"in use by process {os.getpid()}"):
        outbox_file.OutboxFile(tmp_path / "o.db")
    file.close()
    code = "import sys; from purgatory_client.outbox.outbox_file import OutboxFile; file = OutboxFile(sys.argv[1])"
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}; print('up', flush=True); input()", str(tmp_path / "o.db")],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "up\n"
        with outbox_error(OutboxReason.IN_USE, match=f"in use by process {holder.pid}"):
            outbox_file.OutboxFile(tmp_path / "o.db")
        holder.kill()
    outbox_file.OutboxFile(tmp_path / "o.db").close()


def test_a_file_of_another_kind_is_refused_and_not_changed(tmp_path: Path) -> None:
    text = tmp_path / "text.db"
    text.write_text("not a database, and long enough to be looked at as one" * 100)
    with outbox_error(OutboxReason.DAMAGED, match="damaged"):
        outbox_file.OutboxFile(text)
    assert text.read_text().startswith("not a database")


DAMAGES = Path(__file__).with_name("damages.txt")


def test_a_file_that_is_not_as_written_is_refused(tmp_path: Path) -> None:
    """As in damages.txt."""

    def reason(statement: str) -> str:
        path = tmp_path / "o.db"
        path.unlink(missing_ok=True)
        with closing(outbox_file.OutboxFile(path)) as file:
            file.commit([registration(1), registration(2), arrived(1)])
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(statement)
        with pytest.raises(OutboxError) as refused:
            outbox_file.OutboxFile(path)
        return f"{refused.value.reason.name}: {refused.value}".replace(str(path), "o.db")

    assert_recorded(DAMAGES, map(reason, cases_of(DAMAGES)))


def test_an_incarnation_that_others_made_is_refused(tmp_path: Path) -> None:
    """If the session has operations in an incarnation that this file never opened, they belong to another copy,
    whatever their ids. An incarnation without operations is recorded.
    """
    with closing(outbox_file.OutboxFile(tmp_path / "o.db")) as file:
        file.commit([registration(1)])
        for incarnation, highest in (("a", 0), ("a", 1), ("b", 0), ("b", 1)):
            file.commit([outbox_file.OpeningRecord(incarnation, highest)])
        with outbox_error(OutboxReason.COPIED):
            file.commit([outbox_file.OpeningRecord("c", 1)])
        assert file.registrations() == [registration(1)]
        assert file.incarnation == "b"


def limit_pages(file: outbox_file.OutboxFile, pages: int = 20) -> None:
    """Limit the file's size in pages until it is reopened: SQLite then behaves as on a full disk."""
    file._opened().execute(f"PRAGMA max_page_count = {pages}")


def test_a_folder_that_is_not_there_is_unwritable(tmp_path: Path) -> None:
    with outbox_error(OutboxReason.UNWRITABLE, match="No such file"):
        outbox_file.OutboxFile(tmp_path / "nowhere" / "o.db")


NEVER_GIVEN = 10**9
"""An operation id that the state machine never assigns."""


class OutboxFileMachine(RuleBasedStateMachine):
    """Compares the file with two dictionaries through commits, full disks, crashes (copies of the files) and
    reopening.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.skipping = pytest.MonkeyPatch()
        self.skipping.setattr(outbox_file, "secrets", SimpleNamespace(randbelow=lambda _limit: 3))
        self.path = self.folder / "0" / "o.db"
        self.path.parent.mkdir()
        self.file = outbox_file.OutboxFile(self.path)
        self.session_id = self.file.session_id
        self.next_id = self.stored_next_id = 1
        """The ids skipped when opening are stored by the next commit."""
        self.given: set[int] = set()
        self.removed = 0
        self.unconfirmed: dict[int, outbox_file.RegistrationRecord] = {}
        self.kept: list[tuple[bytes, set[int]]] = []
        self.answered: set[int] = set()

    def commit(self, items: list[outbox_file.Record], *, full: bool) -> bool:
        """Commit, possibly on a full disk. Returns whether the records were written."""
        if full:
            limit_pages(self.file)
            with outbox_error(OutboxReason.UNWRITABLE):
                self.file.commit([*items, registration(10**6, size=1_000_000)])
            self.next_id = self.stored_next_id
            return False
        self.file.commit(items)
        self.stored_next_id = self.next_id
        return True

    @rule(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=5), tag=st.text(max_size=3), full=st.booleans())
    def register(self, sizes: list[int], tag: str, full: bool) -> None:
        made: dict[int, outbox_file.RegistrationRecord] = {}
        next_id = self.next_id
        for size in sizes:
            made[next_id] = registration(next_id, size, tag)
            next_id += size
        if self.commit(list(made.values()), full=full):
            self.given.update(range(self.next_id, next_id))
            self.unconfirmed |= made
            self.next_id = self.stored_next_id = next_id

    @rule(data=st.data(), full=st.booleans())
    def arrive(self, data: st.DataObject, full: bool) -> None:
        """Store results of some registered operations, confirmed or not, and possibly of one that was never
        registered.
        """
        ids = data.draw(st.sets(st.sampled_from([*range(1, self.next_id), NEVER_GIVEN]), min_size=1, max_size=6))
        message = arrived(*ids)
        if not self.commit([message], full=full):
            return
        holders = {
            first
            for first, one in self.unconfirmed.items()
            if any(first <= operation_id < first + one.operations for operation_id in ids)
            and not (not one.is_batch and first in self.answered)
        }
        if holders:
            self.kept.append((message.batch, set(holders)))
            self.answered |= holders

    @precondition(lambda self: self.unconfirmed)
    @rule(data=st.data(), full=st.booleans())
    def confirm(self, data: st.DataObject, full: bool) -> None:
        firsts = data.draw(st.lists(st.sampled_from(sorted(self.unconfirmed)), min_size=1, max_size=3))
        if not self.commit([outbox_file.ConfirmationRecord(first) for first in firsts], full=full):
            return
        for first in firsts:
            if first in self.unconfirmed:
                self.removed = max(self.removed, first + self.unconfirmed.pop(first).operations - 1)
            for _, holders in self.kept:
                holders.discard(first)
        self.kept = [(batch, holders) for batch, holders in self.kept if holders]

    @rule(crash=st.booleans())
    def reopen(self, crash: bool) -> None:
        """Close and reopen the file. In a crash, a copy of the present files is opened instead."""
        if crash:
            copied = self.folder / str(int(self.path.parent.name) + 1)
            shutil.copytree(self.path.parent, copied)
            self.path = copied / "o.db"
        self.file.close()
        self.file = outbox_file.OutboxFile(self.path)
        assert self.file.next_operation_id > max(self.given, default=0)
        self.next_id = self.file.next_operation_id

    @rule(data=st.data())
    def open_session(self, data: st.DataObject) -> None:
        """The daemon reports its highest id. If this file never assigned it, it belongs to another copy."""
        highest = data.draw(st.integers(0, self.next_id + 3))
        if highest in self.given or highest <= self.removed:
            self.commit([outbox_file.OpeningRecord("a", highest)], full=False)
            return
        self.next_id = self.stored_next_id
        with outbox_error(OutboxReason.COPIED, match=f"operation {highest} "):
            self.file.commit([outbox_file.OpeningRecord("a", highest)])

    @invariant()
    def as_the_model(self) -> None:
        assert self.file.session_id == self.session_id
        assert self.file.next_operation_id == self.next_id
        assert self.file.registrations() == [self.unconfirmed[first] for first in sorted(self.unconfirmed)]
        assert self.file.results() == [batch for batch, _ in self.kept]

    def teardown(self) -> None:
        self.file.close()
        self.skipping.undo()
        shutil.rmtree(self.folder)


TestOutboxFileMachine = pytest.mark.slow(OutboxFileMachine.TestCase)
TestOutboxFileMachine.settings = settings(max_examples=6, stateful_step_count=20, deadline=None)
