"""Drops two lines that Java prints on stderr whenever Spark starts it.

Spark asks for an incubator module, of which Java warns; we pass compiler directives, which Java counts. Both lines come
from the JVM itself, not from log4j, and there is no option against them. So Java gets a pipe as its stderr, and a
thread copies everything else, line by line.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

DROPPED_LINES: Final = (b"WARNING: Using incubator modules: jdk.incubator.vector\n", b"1 compiler directives added\n")
_STDERR: Final = 2


@contextmanager
def without_startup_lines() -> Iterator[threading.Thread]:
    """Replaces stderr while Java is being started. Yields the copying thread, which runs until Java ends."""
    sys.stderr.flush()
    ours = os.dup(_STDERR)
    reading, writing = os.pipe()
    os.dup2(writing, _STDERR)
    os.close(writing)
    thread = threading.Thread(target=_pass_on, args=(reading, ours), name="java-stderr", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        sys.stderr.flush()
        os.dup2(ours, _STDERR)


def _pass_on(reading: int, ours: int) -> None:
    with open(reading, "rb") as lines, open(ours, "wb", buffering=0) as stderr:
        for line in lines:
            if line not in DROPPED_LINES:
                stderr.write(line)
