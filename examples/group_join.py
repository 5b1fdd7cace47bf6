"""A group coordinator's rebalance, as in Kafka, with `purgatory.embedded`: joins that wait for each other.

    python examples/group_join.py

Kafka's coordinator keeps three of its delayed operations for this. Here each is a class of a few lines:

- `InitialDelayedJoin` waits for an empty group to fill, so that the first member does not get all partitions for being
  the first. It ends by its timeout alone; if another member has joined, another one follows.
- `DelayedJoin` answers the members once all of them have joined again. At the rebalance timeout, those that have not
  are removed, and the others are answered.
- `DelayedHeartbeat` removes a member that has been silent for its session timeout.

It needs no daemon. Time is a manual clock here, so that the output is the same each time; with the default clock, the
purgatory's own thread ends what is due.

Prints:
    0 ms: a joins
    2000 ms: b joins
    6000 ms: generation 1: a b
    8000 ms: c joins
    8500 ms: a joins
    11000 ms: b has been silent for 5000 ms
    11000 ms: generation 2: a c
    12000 ms: d joins
    12500 ms: a joins
    21000 ms: c has not joined within 9000 ms
    21000 ms: generation 3: a d
"""

from collections.abc import Callable

from purgatory.embedded import EXPIRED, DelayedOperation, EmbeddedPurgatory
from purgatory.testing import ManualClock

INITIAL_DELAY_MS = 3_000
REBALANCE_TIMEOUT_MS = 9_000
SESSION_TIMEOUT_MS = 5_000
HEARTBEAT_MS = 500
JOIN = "join"
"""The key of joins; a member's heartbeats have its name as their key."""


class InitialDelayedJoin(DelayedOperation):
    """Ends by its timeout alone. `remaining_ms`: how much longer the group may take to fill, itself included."""

    def __init__(self, group: "Group", remaining_ms: int) -> None:
        super().__init__(min(INITIAL_DELAY_MS, remaining_ms))
        self._group, self._members = group, len(group.has_joined)
        self._remaining_ms = remaining_ms - INITIAL_DELAY_MS

    def try_complete(self) -> bool:
        return False

    def on_complete(self) -> None:
        if len(self._group.has_joined) > self._members and self._remaining_ms > 0:
            self._group.wait(InitialDelayedJoin(self._group, self._remaining_ms), JOIN)
        else:
            self._group.answer()


class DelayedJoin(DelayedOperation):
    """Ends once all members have joined, or at the rebalance timeout."""

    def __init__(self, group: "Group") -> None:
        super().__init__(REBALANCE_TIMEOUT_MS)
        self._group = group

    def try_complete(self) -> bool:
        return all(self._group.has_joined.values()) and self.force_complete()

    def on_complete(self) -> None:
        for name in [name for name, joined in self._group.has_joined.items() if not joined]:
            assert self.outcome == EXPIRED
            self._group.remove(name, f"has not joined within {REBALANCE_TIMEOUT_MS} ms")
        self._group.answer()


class DelayedHeartbeat(DelayedOperation):
    """Ends with the member's next heartbeat, or when the member is gone."""

    def __init__(self, group: "Group", name: str) -> None:
        super().__init__(SESSION_TIMEOUT_MS)
        self._group, self._name = group, name
        self._seen = group.heartbeats[name]

    def try_complete(self) -> bool:
        return self._group.heartbeats.get(self._name) != self._seen and self.force_complete()

    def on_complete(self) -> None:
        """Nobody waits for its end; see `on_expiration`."""

    def on_expiration(self) -> None:
        self._group.remove(self._name, f"has been silent for {SESSION_TIMEOUT_MS} ms")
        # The member may have been the last that a join was waiting for.
        self._group.purgatory.check_and_complete(JOIN)


class Group:
    """The coordinator's state of one group. A threaded coordinator would guard it with a lock of its own."""

    def __init__(self, purgatory: EmbeddedPurgatory, say: Callable[[str], None]) -> None:
        self.purgatory, self._say = purgatory, say
        self.has_joined: dict[str, bool] = {}
        """The members, and whether each has joined the generation to come."""
        self.heartbeats: dict[str, int] = {}
        self._generation = 0
        self._is_rebalancing = False

    def wait(self, operation: DelayedOperation, key: str) -> None:
        self.purgatory.try_complete_else_watch(operation, [key])

    def join(self, name: str) -> None:
        self._say(f"{name} joins")
        is_empty = not self.has_joined
        if not self._is_rebalancing:  # everyone has to join again, by the answer to the next heartbeat
            self.has_joined = dict.fromkeys(self.has_joined, False)
        self.has_joined[name] = True
        if name not in self.heartbeats:
            self.heartbeats[name] = 0
            self.wait(DelayedHeartbeat(self, name), name)
        if self._is_rebalancing:
            self.purgatory.check_and_complete(JOIN)
        else:
            self._is_rebalancing = True
            self.wait(InitialDelayedJoin(self, REBALANCE_TIMEOUT_MS) if is_empty else DelayedJoin(self), JOIN)

    def heartbeat(self, name: str) -> None:
        self.heartbeats[name] += 1
        self.purgatory.check_and_complete(name)
        self.wait(DelayedHeartbeat(self, name), name)

    def remove(self, name: str, reason: str) -> None:
        self._say(f"{name} {reason}")
        del self.has_joined[name], self.heartbeats[name]
        self.purgatory.check_and_complete(name)

    def answer(self) -> None:
        self._generation += 1
        self._is_rebalancing = False
        self._say(f"generation {self._generation}: {' '.join(self.has_joined)}")


def main() -> None:
    """Let members come and go: b dies in generation 1, and c, which is alive, does not join generation 3."""
    clock = ManualClock()
    joins = {0: "a", 2_000: "b", 8_000: "c", 8_500: "a", 12_000: "d", 12_500: "a"}
    with EmbeddedPurgatory("group", clock=clock, reaper_enabled=False) as purgatory:
        group = Group(purgatory, lambda text: print(f"{clock.now_ms()} ms: {text}"))
        while clock.now_ms() <= 22_000:
            purgatory.advance_clock()
            if clock.now_ms() in joins:
                group.join(joins[clock.now_ms()])
            for name in list(group.heartbeats):
                if name != "b" or clock.now_ms() <= 6_000:
                    group.heartbeat(name)
            clock.jump(HEARTBEAT_MS)


if __name__ == "__main__":
    main()
