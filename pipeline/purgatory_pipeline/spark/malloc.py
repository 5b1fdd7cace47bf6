"""Memory settings for tasks that repeatedly allocate and free large arrays of the same size."""

import ctypes
from functools import cache
from typing import Final

import pyarrow as pa

__all__ = ["keep_freed_memory"]

_TRIM_THRESHOLD: Final = -1
_TOP_PAD: Final = -2
_MMAP_THRESHOLD: Final = -3
"""Parameters of glibc's mallopt."""
_KEPT_BYTES: Final = 1 << 30
_GROWN_BYTES: Final = 1 << 26


@cache
def keep_freed_memory() -> None:
    """Lets this process keep up to 1 GB of freed memory, for Arrow and numpy alike, instead of returning it to the
    system.

    Reusing a returned page costs a page fault; for small windows of rows, the page faults cost more than all work on
    the rows. Only glibc has this setting; elsewhere the function does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for parameter, value in ((_MMAP_THRESHOLD, _KEPT_BYTES), (_TRIM_THRESHOLD, _KEPT_BYTES), (_TOP_PAD, _GROWN_BYTES)):
        mallopt(parameter, value)
    pa.set_memory_pool(pa.system_memory_pool())
