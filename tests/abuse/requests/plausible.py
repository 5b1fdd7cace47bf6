"""Plausible values for requests: names in use, rising ids, and sequence numbers and page tokens from the daemon.

They let requests pass the first checks and reach deep states.
"""

import base64
import json
import random
from collections import deque
from collections.abc import Sequence
from typing import Final, TypeVar

from google.protobuf.message import Message

from purgatory.v1 import operation_pb2
from purgatory.v1 import purgatory_service_pb2 as wire

T = TypeVar("T")

RENEWED_EACH: Final = 3_000
"""Messages generated before topics and sessions are renamed, so that an extreme mark does not block the whole run."""


class PlausibleValues:
    """Names and numbers for messages, also from responses. One instance per run; all chance comes from `rng`."""

    def __init__(self, seed: int) -> None:
        self.rng: Final = random.Random(seed)
        self._random: Final = self.rng.random
        self.made = 0
        self.last_id = 0
        self.front = 10
        self.sequences: Final[dict[str, int]] = {}
        self.tokens: Final[deque[str]] = deque(maxlen=50)
        self.partitions: Final[deque[tuple[str, int]]] = deque(maxlen=2_000)
        self.pending: Final[deque[tuple[str, int]]] = deque(maxlen=200)
        self.wildness = 0.05

    @property
    def era(self) -> int:
        return self.made // RENEWED_EACH

    def pick(self, some: Sequence[T]) -> T:
        """A random element; three times as fast as `choice`, which would dominate the time for generating messages."""
        return some[int(self._random() * len(some))]

    def next_message(self) -> None:
        """Call before each message: draws the probability of hostile values."""
        self.made += 1
        self.wildness = self.pick((0.0, 0.0, 0.0, 0.01, 0.05, 0.3))
        self.front += self.rng.random() < 0.05

    def hostile(self) -> bool:
        """Whether the next value should be hostile."""
        return self.wildness > 0 and self.rng.random() < self.wildness

    # Plausible values, by the name of their field.

    def topic(self) -> str:
        return f"topic-{self.era}-{self.rng.randrange(4)}"

    def partition(self) -> int:
        return self.pick((0, 0, 0, 1, 2))

    def key(self) -> str:
        return f"key-{self.era}-{self.rng.randrange(6)}"

    def session_id(self) -> str:
        return f"session-{self.era}-{self.rng.randrange(8)}"

    def operation_id(self) -> int:
        """Usually a new id, otherwise one that was used."""
        if self.rng.random() < 0.04:
            return max(1, self.last_id - self.rng.randrange(200))
        self.last_id += 1
        return self.last_id

    def used_operation_id(self) -> int:
        """An id that may be pending."""
        return max(1, self.last_id - self.rng.randrange(60))

    def timeout_ms(self) -> int:
        """Usually short. 0: respond immediately."""
        return self.pick((0, 1, 2, 5, 20, 50, 100, 300, 1_000, 5_000))

    def offset(self) -> int:
        return max(0, self.front + self.rng.randrange(-8, 12))

    def sequence(self) -> int:
        """A sequence number of some session, or one near it."""
        known = self.sequences.get(self.session_id(), 0)
        return max(0, known + self.pick((0, 0, 0, 0, -1, -3, 1)))

    def page_token(self) -> str:
        """No token; or one from the daemon, unchanged or with another position."""
        drawn = self.rng.random()
        if drawn < 0.4 or not self.tokens:
            return ""
        token = self.pick(self.tokens)
        return token if drawn < 0.8 else self.forged(token)

    def forged(self, token: str) -> str:
        """A token that is valid for its request but has another position."""
        try:
            parts = json.loads(base64.urlsafe_b64decode(token))
        except ValueError:
            return token[: len(token) // 2]
        place = self.rng.randrange(len(parts))
        parts[place] = self.pick(
            (-1, 0, 2**31, 2**61, 2**63, 2**64, 10**300, "x", "\ud800", None, True, 1.5, [], {}, [1], "1")
        )
        if self.rng.random() < 0.1:
            text = "[" * self.pick((100, 5_000, 100_000))
        else:
            text = json.dumps(parts[: self.pick((1, 2, 3, 3))])
        return base64.urlsafe_b64encode(text.encode()).decode()

    # Values from responses.

    def learn_from(self, answer: Message, session_id: str = "") -> None:
        """Remember values that later requests can use."""
        if isinstance(answer, wire.ListOperationsResponse | wire.ListPartitionsResponse) and answer.next_page_token:
            self.tokens.append(answer.next_page_token)
        if isinstance(answer, wire.ListOperationsResponse):
            self.pending.extend((found.session_id, found.operation_id) for found in answer.operations)
        if isinstance(answer, wire.ListPartitionsResponse):
            self.partitions.extend((p.topic_partition.topic, p.topic_partition.partition) for p in answer.partitions)
        if isinstance(answer, wire.SessionResponse | wire.StreamResultsResponse) and answer.HasField("results"):
            shape = answer.results.columns if answer.results.HasField("columns") else None
            count = len(answer.results.rows.results) if shape is None else len(shape.operation_id)
            if len(self.sequences) > 500:
                self.sequences.clear()
            self.sequences[session_id] = answer.results.first_sequence + count - 1

    def old_partitions(self, count: int) -> list[operation_pb2.TopicPartition]:
        """Partitions that the daemon has listed. They are removed so that not every request fails at their limit."""
        names = [self.partitions.popleft() for _ in range(min(count, len(self.partitions)))]
        return [operation_pb2.TopicPartition(topic=topic, partition=partition) for topic, partition in names]
