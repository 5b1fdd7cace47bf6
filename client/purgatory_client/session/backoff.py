"""How long to pause before the next attempt to connect: exponential backoff, capped, with full jitter.

Full jitter (anything from 0 to the ceiling) spreads the clients of a daemon that has just restarted.
"""

import random
from typing import Final


class Backoff:
    """Pauses in seconds. The ceiling starts at `base`, doubles with each attempt and stays at `cap`."""

    def __init__(self, base: float = 0.05, cap: float = 5.0, generator: random.Random | None = None) -> None:
        assert 0 < base <= cap, f"base={base} cap={cap}"
        self.base: Final = base
        self.cap: Final = cap
        self._generator: Final = random.Random() if generator is None else generator  # noqa: S311 - a pause is no secret
        self._ceiling = base

    def next_delay(self) -> float:
        ceiling = self._ceiling
        self._ceiling = min(self.cap, ceiling * 2)
        return self._generator.uniform(0, ceiling)

    def reset(self) -> None:
        """Start again from the base, after a connection was made."""
        self._ceiling = self.base
