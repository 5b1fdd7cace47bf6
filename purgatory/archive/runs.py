"""Which runs are alive, and which have crashed.

A live run keeps a small file under `_writing/` that says how far its history has got, and removes it when it ends. On a
local disk it holds a lock on this file, which dies with its process: a file that can be locked belongs to a dead run.
Where there are no locks (object stores), a run is dead whose file was not renewed for `SILENT_S`.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import fs

from purgatory.archive.layout import RUNNING, WRITING, is_unfinished_of, running_path
from purgatory.archive.run_details import wall_ms
from purgatory.archive.vocabulary import CallStamp

RENEW_S: Final = 30.0
"""How often the file should be renewed."""

SILENT_S: Final = 300.0
"""Without locks: a run that was silent for so long is dead. Its clock and ours may differ by less than that."""


@dataclass
class RunState:
    """What a run's file says. Times as in the archive's tables; `renewed_ms` is wall-clock time."""

    run_id: str
    host: str
    pid: int
    call_number: int = 0
    time_ms: int = 0
    at_ms: int = 0
    renewed_ms: int = 0
    files: dict[str, int] = field(default_factory=dict)
    """By table, the number of its last file that is in its place."""

    @property
    def last_call(self) -> CallStamp:
        """The last call of which everything is in its place."""
        return CallStamp(self.run_id, self.call_number, self.time_ms, self.at_ms)

    def encoded(self) -> bytes:
        """As it stands in the file: padded, so that it can be written over in place."""
        return json.dumps(asdict(self)).encode().ljust(1_024) + b"\n"

    @classmethod
    def decoded(cls, content: bytes) -> RunState:
        """From a file's content. Raises ValueError or TypeError when it is none."""
        return cls(**json.loads(content))


class RunFile:
    """The file of a live run, or of a dead one that this process has claimed. Methods raise OSError (or ArrowException)
    as files do.
    """

    def __init__(
        self,
        filesystem: fs.FileSystem,
        root: str,
        state: RunState,
        descriptor: int = -1,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """`descriptor` is that of the open, locked file; -1 where there are no locks."""
        self.state: Final = state
        self._filesystem: Final = filesystem
        self._path: Final = f"{root}/{running_path(state.run_id)}"
        self._descriptor = descriptor
        self._now_ms: Final = now_ms

    @classmethod
    def create(
        cls, filesystem: fs.FileSystem, root: str, state: RunState, now_ms: Callable[[], int] = wall_ms
    ) -> RunFile:
        """Makes the file of a run that starts."""
        if filesystem.type_name != "local":
            run = cls(filesystem, root, state, -1, now_ms)
            run.renew()
            return run
        # Locked before it gets the name that others look for: nobody finds it unlocked.
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
        """Writes the state down."""
        self.state.renewed_ms = self._now_ms()
        if self._descriptor >= 0:
            os.pwrite(self._descriptor, self.state.encoded(), 0)
            return
        with self._filesystem.open_output_stream(self._path) as stream:
            stream.write(self.state.encoded())

    def remove(self) -> None:
        """Removes the file, once the archive says how the run ended."""
        self._filesystem.delete_file(self._path)
        self.release()

    def release(self) -> None:
        """Gives up the lock, as the end of the process would."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def remove_unfinished(filesystem: fs.FileSystem, root: str, run_id: str) -> int:
    """Deletes the files of a run that are not whole, and says how many they were."""
    count = 0
    for info in filesystem.get_file_info(fs.FileSelector(f"{root}/{WRITING}", allow_not_found=True)):
        if is_unfinished_of(info.base_name, run_id):
            filesystem.delete_file(info.path)
            count += 1
    return count


def claim_dead_runs(
    filesystem: fs.FileSystem, root: str, own_run_id: str, now_ms: Callable[[], int] = wall_ms
) -> list[RunFile]:
    """The dead runs, claimed: no other process gets them. Lists one folder, whatever the archive holds."""
    found: list[RunFile] = []
    for info in filesystem.get_file_info(fs.FileSelector(f"{root}/{WRITING}", allow_not_found=True)):
        run_id = info.base_name.removesuffix(RUNNING)
        if run_id in (info.base_name, own_run_id):
            continue
        try:
            dead = _claim(filesystem, root, run_id, now_ms)
        except (OSError, pa.ArrowException, ValueError, TypeError):
            continue  # it is alive, gone meanwhile, or no file of ours
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
        Path(path).stat()  # fails if another process has claimed and removed it since we opened it
    except BaseException:
        os.close(descriptor)
        raise
    return RunFile(filesystem, root, state, descriptor)
