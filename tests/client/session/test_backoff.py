"""Pauses between attempts to connect."""

import random

from purgatory_client.session.backoff import Backoff


def test_ceilings_double_up_to_the_cap() -> None:
    """Each pause lies between 0 and a ceiling that doubles and stays at the cap."""

    class Highest(random.Random):
        def uniform(self, a: float, b: float) -> float:
            return b

    backoff = Backoff(0.1, 0.5, Highest())
    assert [backoff.next_delay() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
    backoff.reset()
    assert backoff.next_delay() == 0.1


def test_pauses_are_spread_over_the_whole_range() -> None:
    """Clients that lost the same daemon do not come back together: full jitter."""
    generator = random.Random(8131)
    delays = [Backoff(1.0, 1.0, generator).next_delay() for _ in range(1_000)]
    assert min(delays) < 0.05
    assert max(delays) > 0.95
    assert 0.45 < sum(delays) / len(delays) < 0.55
