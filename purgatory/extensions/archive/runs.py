"""Detection of live and crashed runs.

A live run keeps a small file under `_writing/` that records how far its history is complete, and deletes it on exit. On
a local disk it holds a lock on this file, which the kernel releases when the process ends: a file that can be locked
belongs to a dead run. On object stores, which have no locks, a run counts as dead if its file has not been renewed for
`SILENT_S`.
"""

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs

from purgatory.extensions.archive.layout import RUNNING, WRITING, is_unfinished_of, running_path
from purgatory.extensions.archive.run_details import wall_ms
from purgatory.extensions.archive.vocabulary import CallStamp

RENEW_S: Final = 30.0
"""Interval for renewing the file, in seconds."""

SILENT_S: Final = 300.0
"""Without locks, a run is dead after this many seconds without renewal. Clock skew between hosts must stay below it."""


@dataclass
class RunState:
    """Content of a run's file. Times are as in the archive's tables; `renewed_ms` is wall-clock time."""

    run_id: str
    host: str
    pid: int
    call_number: int = 0
    time_ms: int = 0
    at_ms: int = 0
    renewed_ms: int = 0
    files: dict[str, int] = field(default_factory=dict)
    """For each table, the number of the last file that is in place."""

    @property
    def last_call(self) -> CallStamp:
        """The last call whose rows are all in place."""
        return CallStamp(self.run_id, self.call_number, self.time_ms, self.at_ms)

    def encoded(self) -> bytes:
        """The content to write, padded to a fixed size so that it can be overwritten in place."""
        return json.dumps(asdict(self)).encode().ljust(1_024) + b"\n"

    @classmethod
    def decoded(cls, content: bytes) -> "RunState":
        """Raises ValueError or TypeError if the content does not describe a run."""
        return cls(**json.loads(content))


class RunFile:
    """File of a live run, or of a dead run that this process has claimed.

    All methods raise OSError (or ArrowException) if the file cannot be accessed.
    """

    def __init__(
        self,
        filesystem: fs.FileSystem,
        root: str,
        state: RunState,
        descriptor: int = -1,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """`descriptor` belongs to the open, locked file; -1 if the filesystem has no locks."""
        self.state: Final = state
        self._filesystem: Final = filesystem
        self._path: Final = f"{root}/{running_path(state.run_id)}"
        self._descriptor = descriptor
        self._now_ms: Final = now_ms

    @classmethod
    def create(
        cls, filesystem: fs.FileSystem, root: str, state: RunState, now_ms: Callable[[], int] = wall_ms
    ) -> "RunFile":
        if filesystem.type_name != "local":
            run = cls(filesystem, root, state, -1, now_ms)
            run.renew()
            return run
        # The file is locked before it is renamed to its public name, so other processes never find it unlocked.
        path = Path(root, running_path(state.run_id))
        unnamed = path.with_name(path.name + ".new")
        unnamed.unlink(missing_ok=True)
        descriptor = os.open(unnamed, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o644)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        run = cls(filesystem, root, state, descriptor, now_ms)
        run.renew()
        unnamed.rename(path)
        return run

    def renew(self) -> None:
        self.state.renewed_ms = self._now_ms()
        if self._descriptor >= 0:
            os.pwrite(self._descriptor, self.state.encoded(), 0)
            return
        with self._filesystem.open_output_stream(self._path) as stream:
            stream.write(self.state.encoded())

    def remove(self) -> None:
        """Delete the file; call this only after the archive contains the end of the run."""
        self._filesystem.delete_file(self._path)
        self.release()

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def remove_unfinished(filesystem: fs.FileSystem, root: str, run_id: str) -> int:
    """Delete the incomplete files of a run and return how many there were."""
    count = 0
    for info in filesystem.get_file_info(fs.FileSelector(f"{root}/{WRITING}", allow_not_found=True)):
        if is_unfinished_of(info.base_name, run_id):
            filesystem.delete_file(info.path)
            count += 1
    return count


def claim_dead_runs(
    filesystem: fs.FileSystem, root: str, own_run_id: str, now_ms: Callable[[], int] = wall_ms
) -> list[RunFile]:
    """Find dead runs and claim them, so that no other process gets them. Lists only one folder of the archive."""
    found: list[RunFile] = []
    for info in filesystem.get_file_info(fs.FileSelector(f"{root}/{WRITING}", allow_not_found=True)):
        run_id = info.base_name.removesuffix(RUNNING)
        if run_id in (info.base_name, own_run_id):
            continue
        try:
            dead = _claim(filesystem, root, run_id, now_ms)
        except (OSError, pa.ArrowException, ValueError, TypeError):
            continue  # the run is alive, its file is gone, or it is not a run file
        if dead is not None:
            found.append(dead)
    return found


def _claim(filesystem: fs.FileSystem, root: str, run_id: str, now_ms: Callable[[], int]) -> RunFile | None:
    path = f"{root}/{running_path(run_id)}"
    if filesystem.type_name != "local":
        with filesystem.open_input_stream(path) as stream:
            state = RunState.decoded(stream.read())
        silent_ms = now_ms() - state.renewed_ms
        return RunFile(filesystem, root, state) if silent_ms >= SILENT_S * 1_000 else None
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        state = RunState.decoded(os.pread(descriptor, 4_096, 0))
        Path(path).stat()  # fails if another process has claimed and removed the file since we opened it
    except BaseException:
        os.close(descriptor)
        raise
    return RunFile(filesystem, root, state, descriptor)
