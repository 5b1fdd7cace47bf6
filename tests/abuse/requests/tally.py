"""Counts of requests by RPC and status, and findings: behaviour that is never allowed."""

from __future__ import annotations

import re
from collections import Counter
from typing import Final

from google.protobuf import text_format
from google.protobuf.message import Message

NEVER: Final = frozenset({"UNKNOWN", "INTERNAL", "DATA_LOSS", "ABORTED"})
FINDINGS_MAX: Final = 30
ALIKE_MAX: Final = 2
"""Maximum of findings kept per kind."""


def shown(request: Message | bytes) -> str:
    """A request on one line, shortened, for a finding."""
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
        """Judge one request by its status; a status that is never allowed is a finding."""
        self.count(rpc, status)
        if status in NEVER:
            self.find(f"{rpc}: {status}: {details[:300]} for {shown(request)}")

    def find(self, what: str) -> None:
        """Record a finding. The first few of each kind are kept."""
        kind = re.sub(r"[0-9]+", "0", what.partition(" for ")[0])[:400]
        self._kinds[kind] += 1
        if self._kinds[kind] <= ALIKE_MAX and len(self.findings) < FINDINGS_MAX:
            self.findings.append(what)
