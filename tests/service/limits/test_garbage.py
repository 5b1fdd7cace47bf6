"""Memory while no operation is pending: young garbage is collected, and free memory is returned to the system."""

import ctypes
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest

from purgatory.service.budget import garbage
from purgatory.service.budget.garbage import MemoryTrimmer
from tests.kit.eventually import eventually


class Cycle:
    """Refers to itself."""

    def __init__(self) -> None:
        self.itself = self


@pytest.fixture
def no_collections() -> Iterator[None]:
    """The collector runs only when it is called."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collections")
async def test_garbage_is_collected_only_while_nothing_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    pending = [1]
    asked = 0

    def count() -> int:
        nonlocal asked
        asked += 1
        return pending[0]

    cycle = weakref.ref(Cycle())
    monkeypatch.setattr(garbage, "TRIM_INTERVAL_S", 0.001)
    trimmer = MemoryTrimmer(count)
    trimmer.start()
    await eventually(lambda: asked >= 3, "it looks whether anybody waits")
    assert cycle() is not None
    pending[0] = 0
    await eventually(lambda: cycle() is None, "the cycle is gone")
    trimmer.stop()


POOLS_OF_THREADS = """
import ctypes, sys, threading
from purgatory.service.budget import garbage
if sys.argv[1] == "one":
    garbage.use_one_arena()
libc = ctypes.CDLL(None)
both = threading.Barrier(2)
def allocate():
    both.wait()
    libc.malloc(100_000)
    both.wait()
threads = [threading.Thread(target=allocate) for _ in range(2)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
libc.fdopen.restype = ctypes.c_void_p
stream = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, stream)
libc.fflush(stream)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="not glibc's allocator")
@pytest.mark.parametrize(("how", "one"), [("one", True), ("as it comes", False)])
def test_threads_allocate_from_one_pool(how: str, one: bool) -> None:
    ran = subprocess.run([sys.executable, "-c", POOLS_OF_THREADS, how], capture_output=True, text=True, check=True)
    pools = ran.stdout.count("<heap nr=")
    assert (pools == 1) is one, f"{pools} pools: {ran.stdout}"
