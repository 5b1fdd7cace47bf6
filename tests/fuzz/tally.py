"""How many requests were tried, by RPC and status, and what was found that must never be."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from google.protobuf import text_format
from google.protobuf.message import Message

NEVER: Final = frozenset({"UNKNOWN", "INTERNAL", "DATA_LOSS", "ABORTED"})
FINDINGS_MAX: Final = 30
ALIKE_MAX: Final = 2
"""Findings of one kind that are kept."""


def shown(request: Message | bytes) -> str:
    """A request on one line, cut off, for a finding."""
    text = repr(request) if isinstance(request, bytes) else text_format.MessageToString(request, as_one_line=True)
    return f"{text[:1_500]}{'...' if len(text) > 1_500 else ''}"


class Tally:
    """Counts of a run. A request is one message sent on an RPC; `bytes` and `http` count attempts at the ports."""

    def __init__(self) -> None:
        self.requests: Final[Counter[tuple[str, str]]] = Counter()
        self.items: Final[Counter[str]] = Counter()
        """Items of batches: accepted, refused, applied."""
        self.findings: Final[list[str]] = []
        self._kinds: Final[Counter[str]] = Counter()

    @property
    def total(self) -> int:
        return self.requests.total()

    def count(self, rpc: str, status: str, times: int = 1) -> None:
        if times:
            self.requests[rpc, status] += times

    def judge(self, rpc: str, status: str, details: str, request: Message | bytes) -> None:
        """One request that ended with a status, which is a finding if it is one that must never be."""
        self.count(rpc, status)
        if status in NEVER:
            self.find(f"{rpc}: {status}: {details[:300]} for {shown(request)}")

    def find(self, what: str) -> None:
        """Records a finding. The first few of each kind are kept."""
        kind = re.sub(r"[0-9]+", "0", what.partition(" for ")[0])[:400]
        self._kinds[kind] += 1
        if self._kinds[kind] <= ALIKE_MAX and len(self.findings) < FINDINGS_MAX:
            self.findings.append(what)

    def merge(self, other: Tally) -> None:
        self.requests.update(other.requests)
        self.items.update(other.items)
        for finding in other.findings:
            self.find(finding)

    def table(self) -> str:
        """Requests by RPC (rows) and status (columns)."""
        statuses = sorted({status for _, status in self.requests}, key=lambda status: (status != "OK", status))
        rpcs = sorted({rpc for rpc, _ in self.requests})
        heads = ["RPC", *statuses, "all"]
        rows = [[rpc, *[self.requests[rpc, status] for status in statuses]] for rpc in rpcs]
        rows = [[*row, sum(cell for cell in row if isinstance(cell, int))] for row in rows]
        sums = [sum(self.requests[rpc, status] for rpc in rpcs) for status in statuses]
        rows.append(["all", *sums, self.total])
        texts = [[cell if isinstance(cell, str) else f"{cell:,}" if cell else "-" for cell in row] for row in rows]
        widths = [max(len(row[place]) for row in [heads, *texts]) for place in range(len(heads))]
        lines = [
            "  ".join(
                cell.ljust(width) if not place else cell.rjust(width) for place, (cell, width) in enumerate(cells)
            )
            for cells in (zip(row, widths, strict=True) for row in [heads, *texts])
        ]
        items = ", ".join(f"{what} {count:,}" for what, count in sorted(self.items.items()))
        return "\n".join([*lines, f"items of batches: {items}"] if items else lines)
