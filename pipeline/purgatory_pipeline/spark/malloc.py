"""Memory settings for tasks that allocate and free the same large arrays over and over."""

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
    """Lets this process keep up to a gigabyte of freed memory, for Arrow and numpy alike, instead of returning it.

    Each page that was returned costs a page fault when it is used again: for small windows of rows that is more than
    all work on them. Only glibc has the setting; elsewhere nothing changes.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    for parameter, value in ((_MMAP_THRESHOLD, _KEPT_BYTES), (_TRIM_THRESHOLD, _KEPT_BYTES), (_TOP_PAD, _GROWN_BYTES)):
        mallopt(parameter, value)
    pa.set_memory_pool(pa.system_memory_pool())
