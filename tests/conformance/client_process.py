"""The client under test: a program that is given lines of words, and answers with lines (docs/grpc.md)."""

import asyncio
import subprocess
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.conformance.scripted_daemon import DEADLINE_S, CaseFailed

TIMEOUT_MS: Final = 60_000


class ClientProcess:
    """One process, for any number of cases one after another. It is started again after `kill`."""

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self.folder: Final = folder
        self._command: Final = command
        self._process: subprocess.Popen[str] | None = None
        self._arrived: Final = threading.Condition()
        self._lines: list[list[str]] = []
        self._has_ended = False
        self._issued = 0
        self._errors: Final = folder / "stderr"

    def open(self, address: str, **options: object) -> None:
        """Open a session with this daemon, for all following commands up to `close`."""
        if self._process is None:
            self._start()
        self._lines.clear()
        self._send("open", address, *(f"{name}={value}" for name, value in options.items()))

    def wait(self, *, timeout_ms: int = TIMEOUT_MS, topic: str = "", partitions: int = 1) -> str:
        """Make a wait; returns its name, which is also the topic if none is given."""
        self._issued += 1
        name = f"w{self._issued}"
        self._send("wait", name, str(timeout_ms), topic or name, str(partitions))
        return name

    def cancel(self, name: str) -> None:
        self._send("cancel", name)

    async def close(self) -> None:
        """Close the session."""
        self._send("close")
        await self._until(lambda: ["closed"] in self._lines, "`closed`")

    async def ended(self, *names: str) -> list[str]:
        """How these waits have ended, once they have."""
        await self._until(lambda: self._endings(names) is not None, f"an ending of {' '.join(names)}")
        endings = self._endings(names)
        assert endings is not None, "just seen"
        return endings

    def waited_ms(self, name: str) -> int:
        """How long the result of a wait that has ended says that it waited, in milliseconds."""
        with self._arrived:
            [line] = [line for line in self._lines if line[0] == name]
        assert len(line) == 3, f"a line of a result without milliseconds: {line}"
        return int(line[2])

    @property
    def line_count(self) -> int:
        with self._arrived:
            return len(self._lines)

    def kill(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None, "a pipe"
            process.stdin.close()

    def _endings(self, names: Sequence[str]) -> list[str] | None:
        endings = {line[0]: line[1] for line in self._lines if len(line) > 1}
        return [endings[name] for name in names] if endings.keys() >= set(names) else None

    def _start(self) -> None:
        with self._errors.open("w") as errors:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True, bufsize=1
            )
        self._has_ended = False
        threading.Thread(target=self._read, args=(self._process,), daemon=True).start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None, "a pipe"
        with process.stdout:
            for line in process.stdout:
                with self._arrived:
                    self._lines.append(line.split())
                    self._arrived.notify_all()
        with self._arrived:
            self._has_ended = True
            self._arrived.notify_all()

    def _send(self, *words: str) -> None:
        assert self._process is not None, "no session was opened"
        assert self._process.stdin is not None, "a pipe"
        try:
            self._process.stdin.write(" ".join(words) + "\n")
        except OSError as error:
            raise CaseFailed(f"the client has ended: {self.errors}") from error

    async def _until(self, condition: Callable[[], bool], expected: str) -> None:
        def wait() -> bool:
            with self._arrived:
                return self._arrived.wait_for(lambda: condition() or self._has_ended, DEADLINE_S) and condition()

        if not await asyncio.to_thread(wait):
            lines = [" ".join(line) for line in self._lines]
            raise CaseFailed(f"expected: {expected}; the client wrote {lines} and to stderr: {self.errors}")

    @property
    def errors(self) -> str:
        """The last part of its standard error."""
        return self._errors.read_text("utf-8")[-2_000:]
