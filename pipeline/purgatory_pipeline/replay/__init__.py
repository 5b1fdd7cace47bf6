"""What-if replays: the recorded history through the same engine, on executors, under another policy."""

from __future__ import annotations

__all__: list[str] = []
