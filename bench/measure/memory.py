"""How much memory a process holds, as Linux tells it."""

from pathlib import Path

__all__ = ["resident_bytes"]


def resident_bytes(process_id: int | None = None) -> int:
    """Resident memory of a process, by default of this one."""
    folder = "self" if process_id is None else str(process_id)
    for line in Path("/proc", folder, "status").read_text("utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/{folder}/status has no VmRSS")
