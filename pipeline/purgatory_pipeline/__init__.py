"""The data pipeline: reports, what-if replays and generated histories, on Spark."""

from __future__ import annotations

__all__: list[str] = []
