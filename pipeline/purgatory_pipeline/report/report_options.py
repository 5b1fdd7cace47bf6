"""The options of a report, and their limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from purgatory_pipeline.errors import PolicyInvalid

WINDOW_MS_MIN: Final = 1_000
TIMEOUT_MS_MAX: Final = 2**53


@dataclass(frozen=True)
class ReportOptions:
    """Raises `PolicyInvalid` for a value out of its range."""

    window_ms: int = 3_600_000
    approximate: bool = False
    """Waits rounded by less than 1 %, and the backlog at the end of each second: less to sort."""
    slow_share: float = 0.01
    """This share of satisfied produces, the slowest, is looked at one by one."""
    slow_over_ms: int | None = None
    """Instead: produces that waited longer than this."""
    top: int = 20
    """Rows of `hot_keys`, of each kind."""
    topics_max: int = 20
    """Topics (or keys) with their own advice, for each kind: those with the most operations."""
    timeouts_ms: tuple[int, ...] = ()
    """Timeouts to judge, besides those in use and round ones."""

    def __post_init__(self) -> None:
        if self.window_ms < WINDOW_MS_MIN:
            raise PolicyInvalid(f"a window of {self.window_ms} ms: give a second or more")
        if not 0 < self.slow_share < 1:
            raise PolicyInvalid(f"a slow share of {self.slow_share}: give a number between 0 and 1, for example 0.01")
        if self.slow_over_ms is not None and self.slow_over_ms < 0:
            raise PolicyInvalid(f"slow over {self.slow_over_ms} ms: give 0 or more")
        for name, value in (("top", self.top), ("topics", self.topics_max)):
            if value < 1:
                raise PolicyInvalid(f"{name} {value}: give 1 or more")
        for timeout_ms in self.timeouts_ms:
            if not 0 < timeout_ms <= TIMEOUT_MS_MAX:
                raise PolicyInvalid(f"a timeout of {timeout_ms} ms: give 1 or more")
