"""Daemons that serve callers while faults are caused: the common part of the worlds `crash` and `pair`."""

import asyncio
import random
import signal
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from purgatory.journal.crash_points import NEVER
from tests.histories.judge import Broken, Judge
from tests.histories.wire_caller import WireCaller
from tests.histories.wire_load import WireLoad
from tests.kit.eventually import eventually
from tests.kit.faults import stopped
from tests.kit.fleet import Member

SERVED: Final = 0.5
"""Share of faults after which the next one waits until a daemon serves; the others may find none."""


def accepted_batches(caller: WireCaller) -> int:
    return caller.accepted_batches


class SupervisedWorld:
    """Each daemon is started again whenever it has ended, as by a supervisor."""

    pause_s = (0.2, 2.0)
    stops_s: Sequence[float] = (0.3, 1.5, 2.5)
    """How long a daemon is stopped, or away."""
    crash_points: Sequence[str] = ()
    caller_restarted = 0.5
    """Share of faults after which a caller is restarted; it has lost what it did not acknowledge."""
    exit_codes: frozenset[int | None] = frozenset({None, -signal.SIGKILL})
    probe = "/readyz"
    """Answered with 200 by a daemon that serves."""

    def __init__(self, seed: int, kinds: Sequence[str], *, is_durable: bool = True, may_refuse: bool = False) -> None:
        self.members: Final[list[Member]] = []
        self.random: Final = random.Random(seed)
        self.judge: Final = Judge(is_durable=is_durable)
        self.load: Final = WireLoad(self.judge, seed, may_refuse=may_refuse)
        self.kinds: Final = list(kinds)

    async def start(self, stack: AsyncExitStack) -> None:
        """Start the members, and the load. The contexts in `stack` end with the history."""
        raise NotImplementedError

    async def finish(self) -> None:
        """Called when all operations have ended, while the daemons serve."""

    def tally(self) -> Counter[str]:
        """Figures of a run, after its end. May raise."""
        return Counter(
            {"operations": self.load.operations, "results sent again": self.load.repeats, "reads": self.load.reads}
        )

    async def run(self, faults: int) -> Counter[str]:
        """Cause faults, see that each caller is served after them, then let all operations end. Raises `Broken`."""
        rounds = faults // len(self.kinds) + 1
        drawn = [kind for _ in range(rounds) for kind in self.random.sample(self.kinds, len(self.kinds))][:faults]
        async with AsyncExitStack() as stack:
            try:
                await self.start(stack)
                for kind in drawn:
                    await asyncio.sleep(self.random.uniform(*self.pause_s))
                    await self.fault(kind, self.random.choice(self.members))
                    self.check()
                    if self.random.random() < self.caller_restarted:
                        await self.load.restart_caller()
                    if self.random.random() < SERVED:
                        await self.until_served()
                await self.load.until_all_rise(accepted_batches, self.check, "served again")
                await self.load.settle(self.check)
                await self.finish()
            finally:
                await self.load.end()
                for member in self.members:
                    member.end()
        self.judge.check_end()
        self.judge.check()
        return Counter(drawn) | self.tally()

    async def fault(self, kind: str, member: Member) -> None:
        if kind == "stop":
            await stopped(member.process, self.random.choice(self.stops_s))
            return
        await asyncio.to_thread(member.end)
        point = f"{self.random.choice(self.crash_points)}:{self.random.randint(1, 20)}"
        member.start_if_ended(point if kind == "crash point" else NEVER)

    async def until_served(self) -> None:
        async def is_served() -> bool:
            self.check()
            return any([await asyncio.to_thread(member.answers, self.probe) for member in self.members])

        await eventually(is_served, lambda: f"a daemon serves:\n{self.logs}")

    @property
    def logs(self) -> str:
        return "".join(member.log[-4_000:] for member in self.members)

    def check(self) -> None:
        """Start what has ended; raise `Broken` if it ended in a way that it must not, or if a rule is broken."""
        self.load.check()
        for member in self.members:
            code = member.process.poll()
            if code not in self.exit_codes:
                raise Broken(f"a daemon ended with {code}:\n{member.log[-4_000:]}")
            member.start_if_ended()
