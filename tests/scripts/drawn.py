"""Random scripts: every kind of wait and of event on a few names, and sizes around the daemon's internal ones.

A large operation or batch always has a small one behind it. What is right, the engine and the oracle say.
"""

import random
from typing import Final

from purgatory import sizes
from tests.scripts.language import Line, Script

EDGES: Final = (sizes.ROW_RESULTS_MAX, sizes.ROWS_COST_MAX, sizes.VALUES_PER_PART)
SIZES: Final = [edge + more for edge in EDGES for more in (-1, 0, 1)]
ITEMS_MAX: Final = 2_000
LINES: Final = 25
VERBS: Final = {"wait": 9, "large": 1, "many": 1, "event": 9, "pass": 2, "cancel": 2, "extend": 1, "cancel-key": 1}


class Drawing:
    """One script, drawn line by line."""

    def __init__(self, seed: int) -> None:
        self._random: Final = random.Random(seed)
        self._last: Final = {"a": 0, "b": 0}
        """The last operation id of each session."""
        self.lines: Final[list[str]] = ["high-watermark p-0 1", "append p-1 5 position=50"]
        for _ in range(LINES):
            verb = self._random.choices(list(VERBS), list(VERBS.values()))[0]
            self.lines.extend(getattr(self, f"_{verb.replace('-', '_')}")())
        self.lines.append("pass 3000")

    def _next_id(self, count: int = 1) -> str:
        session = self._random.choice("ab")
        first = self._last[session] + 1
        self._last[session] += count
        return f"{session}:{first}" + (f"..{first + count - 1}" if count > 1 else "")

    def _mark(self) -> str:
        return f"p-{self._random.randrange(4)}"

    def _item(self) -> str:
        return f"{self._mark()}@{self._random.randint(0, 9)}"

    def _key(self) -> str:
        return self._random.choice(("x", "y", "z", "k-0", "k-998", "k-999", "k-1000"))

    def _timeout(self) -> str:
        return self._random.choice(("", " timeout=0", " timeout=300", " timeout=2500"))

    def _wait(self) -> list[str]:
        kind = self._random.choice(("produce", "fetch", "delete-records", "await", "composite"))
        items = sorted({self._mark() for _ in range(self._random.choice((1, 1, 2, 3)))})
        words = [f"{name}@{self._random.randint(0, 9)}" for name in items]
        if kind == "await":
            keys = sorted({self._key() for _ in range(self._random.choice((1, 1, 2)))})
            words = [f"{key}@{self._random.randint(1, 3)}" for key in keys] + self._random.choice(([], ["any"]))
        elif kind == "composite":
            words = [*words, f"x@{self._random.randint(1, 3)}"]
            words += self._random.choice(([], ["required_terms=1"], ["unless", "y"], ["unless", self._item()]))
        elif kind == "fetch":
            words += [f"min_bytes={self._random.choice((1, 3, 100))}"]
        return [f"{kind} {self._next_id()} {' '.join(words)}{self._timeout()}"]

    def _large(self) -> list[str]:
        size = min(self._random.choice(SIZES), ITEMS_MAX)
        kind, names = self._random.choice((("await", "k"), ("produce", "q"), ("fetch", "q"), ("composite", "q")))
        return [f"{kind} {self._next_id()} {names}*{size}@1 timeout=300", f"await {self._next_id()} x@9 timeout=300"]

    def _many(self) -> list[str]:
        count = self._random.choice(SIZES)
        return [f"produce {self._next_id(count)} {self._item()}{self._timeout()}", *self._wait()]

    def _event(self) -> list[str]:
        mark, offset = self._mark(), self._random.randint(0, 10)
        key = self._key()
        often = [f"{verb} {mark} {offset}" for verb in ("high-watermark", "append", "log-start")]
        often += [f"signal {key} {self._random.randint(0, 2)}", f"signal {key} 1 value={self._random.randint(1, 3)}"]
        rarely = [f"truncate {mark} {offset}", f"remove {mark}", f"follow {mark} {offset}", f"signal {key} failed"]
        return [self._random.choice(often * 3 + rarely)]

    def _pass(self) -> list[str]:
        return [f"pass {self._random.choice((100, 299, 300, 2500))}"]

    def _cancel(self) -> list[str]:
        known = [f"{session}:{self._random.randint(1, last)}" for session, last in self._last.items() if last]
        return [f"cancel {self._random.choice(known)}"] if known else []

    def _extend(self) -> list[str]:
        return [line.replace("cancel", "extend") + " timeout=1000" for line in self._cancel()]

    def _cancel_key(self) -> list[str]:
        return [f"cancel-key {self._key()}"]


def drawn(seed: int) -> Script:
    """The script of a seed, without output."""
    return Script(f"seed {seed}", [], [Line(text, []) for text in Drawing(seed).lines])
