"""Signal handlers until the daemon installs its own. Imports nothing slow: this runs before everything else.

The kernel ignores SIGTERM for a container's first process as long as that has no handler, and the daemon takes most of
a second to import. SIGHUP would end a process that has no handler.
"""

import os
import signal
from types import FrameType


def handle_startup_signals() -> None:
    """Make SIGTERM end the process, and SIGHUP do nothing: no files have been read yet."""
    signal.signal(signal.SIGTERM, _exit)
    signal.signal(signal.SIGHUP, _do_nothing)


def _exit(number: int, _frame: FrameType | None) -> None:
    os._exit(128 + number)  # nothing has been promised yet, so nothing needs to be closed


def _do_nothing(_number: int, _frame: FrameType | None) -> None:
    """Unlike SIG_IGN, a handler is not inherited by the processes that the daemon starts."""
