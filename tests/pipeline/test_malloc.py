"""Tasks keep freed memory: settings of Arrow and the C library, in a process of its own."""

import subprocess
import sys

PROGRAM = """
import resource
import numpy as np
import pyarrow as pa
from purgatory_pipeline.spark.tasks import keep_freed_memory

keep_freed_memory()
keep_freed_memory()
print(pa.default_memory_pool().backend_name)
np.ones(4_000_000)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    np.ones(4_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
PAGES_OF_ONE = 4_000_000 * 8 // 4096


def test_freed_arrays_are_used_again() -> None:
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=60)
    backend, faults = said.stdout.split()
    assert backend == "system"
    assert sys.platform != "linux" or int(faults) < PAGES_OF_ONE
