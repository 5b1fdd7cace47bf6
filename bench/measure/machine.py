"""What the figures were measured on, in one line that goes into every row."""

import os
import platform
import sys
from functools import cache
from pathlib import Path

from bench.peers.jvm import java_version
from purgatory.engine import COMPILED

__all__ = ["description"]


@cache
def description() -> str:
    """Cores, processor, memory, kernel, Python, Java, and whether the engine is compiled."""
    parts = [
        f"{len(os.sched_getaffinity(0))} cores",
        _first_value("/proc/cpuinfo", "model name"),
        f"{int(_first_value('/proc/meminfo', 'MemTotal').split()[0]) // 1_000_000} GB",
        f"Linux {platform.release().split('-')[0]}",
        f"{platform.python_implementation()} {'.'.join(str(part) for part in sys.version_info[:3])}",
        java_version(),
        "compiled engine" if COMPILED else "UNCOMPILED engine",
    ]
    return ", ".join(part for part in parts if part)


def _first_value(path: str, name: str) -> str:
    for line in Path(path).read_text("utf-8").splitlines():
        if line.startswith(name):
            return line.partition(":")[2].strip()
    return "0"
