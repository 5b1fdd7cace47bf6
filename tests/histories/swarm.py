"""The mix and the sizes of one history, all drawn from its seed, so that each seed tests something different."""

import random

from tests.engine import plain

EVENT_TYPES = tuple(range(plain.LEADER_APPEND, plain.KEY_SIGNALLED + 1))
COMMON = {plain.LEADER_APPEND: 8.0, plain.FOLLOWER_PROGRESS: 8.0, plain.HIGH_WATERMARK: 3.0, plain.KEY_SIGNALLED: 3.0}


class Swarm:
    """Options of a run. Weights are the frequencies of steps, relative to the others of their table."""

    def __init__(self, rng: random.Random) -> None:
        tick_ms = rng.choice((1, 1, 1, 1, 2, 7, 20))
        wheel_size = rng.choice((20, 20, 20, 3, 5, 64))
        start_ms = rng.choice((0, 0, 7, 1_000, 86_400_000 * 30))
        lag_max_ms = rng.choice((1, 10, 100, 30_000))
        self.settings = plain.Settings(start_ms, tick_ms, wheel_size, rng.random() < 0.08, lag_max_ms)
        self.partitions = rng.choice((1, 1, 2, 3, 5, 9))
        self.keys = rng.choice((1, 2, 4))
        self.owners = rng.choice((1, 1, 2, 4))
        self.replica_ids = rng.choice((2, 3, 4))
        self.batch_max = rng.choice((1, 1, 2, 5, 12))
        self.items_max = rng.choice((1, 1, 2, 3, 6))
        self.stride = rng.choice((1, 3, 10))
        self.bytes_per_offset = rng.choice((1, 10, 100))
        self.positions = rng.choice((0.0, 0.5, 1.0))
        self.timeout_max_ms = rng.choice((3, 20, 100, 1_000, 50_000))
        self.timeout_min_ms = 0 if self.timeout_max_ms == 3 else 1  # 0: do not wait at all
        self.leap_max_ms = rng.choice((2, 10, 50, 2_000))
        self.reaper_limit = rng.choice((100_000, 100_000, 1, 5))
        self.slice_limit = rng.choice((100_000, 100_000, 1, 3))
        self.nonsense = rng.choice((0.0, 0.0, 0.01, 0.05))
        self.stale = rng.choice((0.0, 0.0, 0.1, 0.5))
        self.values = rng.choice((0.0, 0.2, 0.5))
        self.failures = rng.choice((0.0, 0.01, 0.03, 0.1))
        self.heartbeats = rng.choice((0.0, 0.0, 0.2, 0.6))
        self.epochs = rng.choice((0.0, 0.2, 0.8))
        has_high_watermarks = rng.choice((True, False))
        self.kinds = tuple(kind for kind in plain.KINDS if rng.random() < 0.6) or plain.KINDS
        self.event_weights = [self.event_weight(rng, event_type) for event_type in EVENT_TYPES]
        if not has_high_watermarks:  # then only the progress of followers raises them
            self.event_weights[EVENT_TYPES.index(plain.HIGH_WATERMARK)] = 0.0
        rare = (0.0, 0.002, 0.01)
        self.step_weights = {
            "register": rng.choice((0.3, 0.5, 0.7)),
            "apply": rng.choice((0.3, 0.6)),
            "advance": rng.choice((0.02, 0.1, 0.3)),
            "sleep": rng.choice((0.0, 0.05)),
            "cancel": rng.choice((0.0, 0.05, 0.2)),
            "cancel_all": rng.choice(rare),
            "cancel_name": rng.choice(rare),
            "replace_owner": rng.choice(rare),
            "shut_down": rng.choice(rare),
            "fail_stale": rng.choice((0.02, 0.1)) if self.stale else 0.0,
            "extend": rng.choice((0.0, 0.02, 0.1)),
            "pause": rng.choice((0.0, 0.05)) if self.heartbeats or self.stale else 0.0,
        }

    @staticmethod
    def event_weight(rng: random.Random, event_type: int) -> float:
        """Some events are common, some rare, and any may be absent from a run."""
        weight = COMMON.get(event_type, 1.0)
        if event_type in {plain.PARTITION_REMOVED, plain.STORAGE_FAILED}:
            weight = 0.2
        if event_type == plain.LEADERSHIP:
            weight = 0.5
        return weight * rng.choice((0.0, 0.3, 1.0, 1.0, 3.0))
