"""The elements of histories (features, paths and faults), and a count of the pairs that a run has seen.

A pair is a feature and a path, or a feature and a fault, that met in one operation.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from typing import Final

import purgatory_client.wire.sizes

import purgatory.sizes
from tests.engine import plain

KINDS: Final = {
    plain.PRODUCE: "produce",
    plain.FETCH: "fetch",
    plain.DELETE_RECORDS: "delete_records",
    plain.SIGNAL: "signal",
    plain.COMPOSITE: "composite",
}
OF_OPERATIONS: Final = {
    **{name: f"a wait of the kind {name}" for name in KINDS.values()},
    "failure arm": "a composite with terms after `unless`",
    "any key": "a signal wait that one of several keys ends",
    "from now": "a signal wait that counts from its registration on",
    "heartbeat": "a wait that fails when its key is silent",
    "stale timeout": "a wait that fails when its mark is stale",
    "epoch": "an item that names a leader epoch",
    "value": "a result with the value of a key",
    "failed key": "a result with a key that was signalled as failed",
    "extended": "a wait whose deadline was moved",
    "cancelled": "a wait that was cancelled by its id, or with its session or name",
    "zero timeout": "a wait that does not wait",
    "many items": "a wait with at least as many items as the smallest internal size",
}
OF_SESSIONS: Final = {
    "returning session": "a session that closes, or is dropped, and returns",
    "two principals": "operations of two principals with shares",
    "webhook": "results that are posted",
    "tail": "results that a subscriber sees",
    "gate": "a ready gate",
    "prefix": "demand for the names with a prefix",
    "shards": "names that are divided over several daemons",
}
FEATURES: Final = OF_OPERATIONS | OF_SESSIONS
PATHS: Final = {
    "engine": "calls of the engine",
    "host": "methods of the service",
    "rows": "gRPC, rows",
    "columns": "gRPC, columns",
    "unary": "gRPC, a call for each wait",
    "http": "HTTP with JSON",
    "sse": "results as server-sent events",
    "client": "the Python client",
    "replay": "the archive, and its replay",
    "stream": "the purgatory as a Spark stream",
}
FAULTS: Final = {
    "none": "nothing goes wrong",
    "cut": "a connection that is cut, held, or swallows bytes",
    "kill": "the daemon is killed",
    "stop": "the daemon is stopped for seconds",
    "stall": "the reaper, or the loop, is late",
    "full disk": "the journal has no room",
    "handover": "a leader hands over",
    "failover": "a leader is lost",
    "listener": "a listener raises",
    "lying source": "a source reports what is not so",
    "wall clock": "the wall clock is set",
}
CANNOT: Final[dict[tuple[str, str], str]] = {
    **{(feature, "engine"): "the engine knows owners, and nothing of a session" for feature in OF_SESSIONS},
    **{(feature, "replay"): "not recorded in an archive" for feature in ("webhook", "tail", "gate", "prefix")},
    **{(feature, "stream"): "a stream has no such call" for feature in (*OF_SESSIONS, "extended", "cancelled")},
    **{("zero timeout", fault): "it ends at once, and meets no fault" for fault in ("stall", "stop")},
    ("extended", "unary"): "a unary wait ends with its call, and cannot be extended",
    ("returning session", "unary"): "a unary wait has no session",
    ("webhook", "unary"): "a unary wait is answered by its call",
    ("webhook", "sse"): "results of a session with a webhook are not read otherwise",
}
"""Pairs that cannot occur, with the reason."""

ELSEWHERE: Final = {
    "webhook": "tests/webhooks",
    "tail": "tests/tail",
    "gate": "tests/ready",
    "prefix": "tests/sources and tests/kafka",
}
"""Features that no world draws, and where they are tested."""

SIZE_MAX: Final = 10_000
"""Larger sizes are bytes, or take too long to reach."""
SIZES: Final = {
    f"{name}.{constant}": value
    for name, module in (("daemon", purgatory.sizes), ("client", purgatory_client.wire.sizes))
    for constant, value in vars(module).items()
    if isinstance(value, int) and value <= SIZE_MAX
}
"""Every internal size at which the daemon or the client cuts messages, parts, pages or slices."""
MANY_ITEMS: Final = min(SIZES.values())


def features_of(operation: plain.Operation) -> Iterator[str]:
    """The features that an operation has when it is registered."""
    yield KINDS[operation.kind]
    signals = operation.kind == plain.SIGNAL
    found = {
        "failure arm": operation.unless_count > 0,
        "any key": signals and operation.any_key,
        "from now": signals and operation.from_now,
        "heartbeat": operation.heartbeat_timeout_ms >= 0,
        "stale timeout": operation.stale_timeout_ms >= 0,
        "epoch": any(item.epoch >= 0 for item in operation.items),
        "zero timeout": operation.timeout_ms == 0,
        "many items": len(operation.items) >= MANY_ITEMS,
    }
    yield from (name for name, is_so in found.items() if is_so)


def features_of_end(ended: plain.Ended) -> Iterator[str]:
    """The features that show in a result."""
    if ended.outcome == plain.CANCELLED:
        yield "cancelled"
    if any(item.value for item in ended.items):
        yield "value"
    if any(item.error == 1003 for item in ended.items):
        yield "failed key"


class Seen:
    def __init__(self) -> None:
        self.pairs: Final[Counter[tuple[str, str]]] = Counter()

    def note(self, features: Iterable[str], *columns: str) -> None:
        for feature in features:
            for column in columns:
                self.pairs[feature, column] += 1

    def missing(self, drawn: Collection[str], columns: Collection[str]) -> list[tuple[str, str]]:
        """The pairs of these features and columns that can occur and were not seen."""
        every = ((feature, column) for feature in FEATURES if feature in drawn for column in columns)
        return [pair for pair in every if not self.pairs[pair] and pair not in CANNOT]

    def table(self, drawn: Collection[str], columns: Collection[str]) -> str:
        width = max(map(len, FEATURES))
        lines = [" " * width + "".join(f"{column:>13}" for column in columns)]
        for feature in (one for one in FEATURES if one in drawn):
            cells = ("-" if (feature, one) in CANNOT else self.pairs[feature, one] for one in columns)
            lines.append(f"{feature:<{width}}" + "".join(f"{cell:>13}" for cell in cells))
        return "\n".join(lines)
