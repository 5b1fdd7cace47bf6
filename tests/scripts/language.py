"""The language of the scripts: one call on each line and, indented below it, its answer and what it ended.

A line consists of a verb, words and options (`name=value`, or the name alone for a flag). Options have the names of the
fields in `tests.engine.plain`. docs/testing-scripts.md has the table of verbs.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.engine import plain

FOLDER: Final = Path(__file__).parent
TIMEOUT_MS: Final = 60_000
"""Timeout of a wait that names none."""
ITEMS_SHOWN_MAX: Final = 8
"""Of an ended operation with more items, only the number of items by error code is printed."""

WAITS: Final = {
    "produce": plain.PRODUCE,
    "fetch": plain.FETCH,
    "delete-records": plain.DELETE_RECORDS,
    "await": plain.SIGNAL,
    "composite": plain.COMPOSITE,
}
EVENTS: Final[dict[str, tuple[int, tuple[str, ...]]]] = {
    "append": (plain.LEADER_APPEND, ("offset",)),
    "follower": (plain.FOLLOWER_PROGRESS, ("replica_id", "offset")),
    "high-watermark": (plain.HIGH_WATERMARK, ("offset",)),
    "last-stable": (plain.LAST_STABLE_OFFSET, ("offset",)),
    "log-start": (plain.LOG_START_OFFSET, ("offset",)),
    "in-sync": (plain.IN_SYNC_REPLICAS, ("in_sync",)),
    "lead": (plain.LEADERSHIP, ("epoch",)),
    "follow": (plain.LEADERSHIP, ("epoch",)),
    "replica": (plain.REPLICA_STATE, ("replica_id",)),
    "truncate": (plain.TRUNCATION, ("offset",)),
    "remove": (plain.PARTITION_REMOVED, ()),
    "storage-failed": (plain.STORAGE_FAILED, ()),
    "storage-online": (plain.STORAGE_ONLINE, ()),
    "signal": (plain.KEY_SIGNALLED, ("offset",)),
}
"""The type of event, and the fields that the words after the name set."""
FLAGS: Final = {"moved": 1, "dead": 1, "fenced": 2, "failed": 1, "decided": 2}
"""Flags of events, as bits of `plain.Event.flag`."""
LISTS: Final = {"in_sync", "proposed", "replicas"}
OUTCOMES: Final = {**plain.OUTCOME_WORDS, plain.SHUTTING_DOWN: "shut down"}


class Line(NamedTuple):
    """One line of a script, and the recorded output below it."""

    text: str
    output: list[str]

    @property
    def verb(self) -> str:
        return self.text.partition(" ")[0]


class Script(NamedTuple):
    """One script of a file: a name, comments that say which rule it shows, and lines."""

    name: str
    comments: list[str]
    lines: list[Line]


class Words(NamedTuple):
    """A part of a line: words without options, and options."""

    words: list[str]
    options: dict[str, str]


def read_scripts(path: Path) -> list[Script]:
    """Read a file: `== name` begins a script."""
    scripts: list[Script] = []
    for text in path.read_text("utf-8").splitlines():
        if text.startswith("== "):
            scripts.append(Script(text[3:], [], []))
        elif text.startswith("#") and scripts:
            assert not scripts[-1].lines, f"{path.name}: a comment stands before the lines of its script: {text}"
            scripts[-1].comments.append(text)
        elif text.startswith("  "):
            scripts[-1].lines[-1].output.append(text.strip())
        elif text.strip() and scripts:
            scripts[-1].lines.append(Line(text, []))
    names = [script.name for script in scripts]
    assert len(set(names)) == len(names), f"{path.name}: a name is used twice"
    return scripts


def write_scripts(path: Path, scripts: list[Script]) -> None:
    """Write a file, after the comments at its head."""
    text = path.read_text("utf-8").partition("== ")[0] if path.exists() else ""
    for script in scripts:
        lines = [part for line in script.lines for part in (line.text, *[f"  {output}" for output in line.output])]
        text += "\n".join([f"== {script.name}", *script.comments, *lines, "", ""])
    path.write_text(text.rstrip("\n") + "\n", "utf-8")


def all_scripts() -> dict[str, Script]:
    paths = sorted(FOLDER.glob("*.txt"))
    return {f"{path.stem}: {script.name}": script for path in paths for script in read_scripts(path)}


# Reading a line.


def parts_of(text: str) -> list[Words]:
    """The parts of a line, which ` & ` separates. Each begins with its verb."""
    parts = []
    for part in text.split(" & "):
        words = part.split()
        named = {word.partition("=")[0]: word.partition("=")[2] for word in words if re.match(r"[a-z_]+=", word)}
        parts.append(Words([word for word in words if not re.match(r"[a-z_]+=", word)], named))
    return parts


def name_of(word: str, *, is_key: bool = False) -> plain.Name:
    """Read "orders-0" as ("orders", 0), and anything else as a key."""
    found = re.fullmatch(r"(.+)-(\d+)", word)
    return (word, -1) if is_key or found is None else (found[1], int(found[2]))


def repeated(word: str) -> Iterator[str]:
    """The names that "k*3" stands for: k-0, k-1 and k-2."""
    name, star, count = word.partition("*")
    yield from (f"{name}-{place}" for place in range(int(count))) if star else (word,)


def numbers_of(text: str) -> range:
    """Read "3..5" as 3, 4 and 5."""
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


def ids_of(*words: str) -> tuple[str, list[int]]:
    """Read "b:3..5" as the ids 3, 4 and 5 of the session b; without one, the session is a."""
    session, colon, _ = words[0].rpartition(":")
    return session if colon else "a", [number for word in words for number in numbers_of(word.rpartition(":")[2])]


def operations_of(part: Words) -> tuple[str, list[plain.Operation]]:
    """The session and the operations of a registration."""
    verb, ids, *words = part.words
    kind, options = WAITS[verb], dict(part.options)
    flags = {word for word in words if word in {"any", "from_now", "follower_reads", "committed"}}
    of_items: dict[str, int] = {
        name: int(options.pop(name)) for name in ("epoch", "max_bytes", "last_epoch") if name in options
    }
    items: list[plain.Item] = []
    terms = -1
    for word in words:
        if word == "unless":
            terms = len(items)
        elif word not in flags:
            items += items_of(kind, word, of_items)
    session, operation_ids = ids_of(ids)
    fields: dict[str, Any] = {name: int(value) for name, value in options.items()}
    fields |= {name: True for name in ("from_now", "follower_reads") if name in flags}
    fields |= {"any_key": "any" in flags, "isolation": 1 + ("committed" in flags)}
    if terms >= 0:
        fields["unless_count"] = len(items) - terms
    timeout_ms = fields.pop("timeout", TIMEOUT_MS)
    return session, [plain.Operation(kind, number, timeout_ms, tuple(items), **fields) for number in operation_ids]


def items_of(kind: int, word: str, shared: dict[str, int]) -> Iterator[plain.Item]:
    """Read "orders-0@5", "orders*3@5", "orders-0@1..5" (an item for each offset) or "orders-0@5,throttled,epoch=3"."""
    target, *given = word.split(",")
    names, _, offset = target.partition("@")
    fields: dict[str, Any] = dict(shared)
    for field in given:
        name, _, value = field.partition("=")
        fields[name] = int(value) if value else True
    for name in repeated(names):
        for number in numbers_of(offset or "1"):
            yield plain.Item(name_of(name, is_key=kind == plain.SIGNAL), number, **fields)


def events_of(part: Words) -> list[plain.Event]:
    """The events of a part: one for each name."""
    verb, names, *words = part.words
    event_type, positional = EVENTS[verb]
    fields: dict[str, Any] = {"flag": int(verb == "lead")}
    values = [word for word in words if word not in FLAGS]
    given = dict(part.options) | dict(zip(positional, values, strict=False))
    for name, value in given.items():
        numbers = [number for word in value.split(",") for number in numbers_of(word)]
        fields[name] = tuple(numbers) if name in LISTS else numbers[0]
    for word in set(words) & set(FLAGS):
        fields["flag"] += FLAGS[word]
    is_key = event_type == plain.KEY_SIGNALLED
    return [plain.Event(event_type, name_of(name, is_key=is_key), **fields) for name in repeated(names)]


# Printing.


def ended_texts(ended: Iterable[tuple[str, plain.Ended]]) -> list[str]:
    """One line for each ended operation, or for consecutive ids that ended alike, by session and id."""
    rows = sorted((session, row.operation_id, end_text(row)) for session, row in ended)
    twice = [one for one, other in pairwise(rows) if one[:2] == other[:2]]
    assert not twice, f"ended twice: {twice}"
    groups: list[tuple[str, int, int, str]] = []
    for session, number, text in rows:
        if groups and groups[-1][0] == session and groups[-1][2] == number - 1 and groups[-1][3] == text:
            groups[-1] = (session, groups[-1][1], number, text)
        else:
            groups.append((session, number, number, text))
    return [
        f"{'' if session == 'a' else f'{session}:'}{first}{f'..{last}' if last > first else ''} {text}"
        for session, first, last, text in groups
    ]


def end_text(row: plain.Ended) -> str:
    after = f" after {row.waited_ms} ms" if row.waited_ms else ""
    if len(row.items) <= ITEMS_SHOWN_MAX:
        items = ", ".join(item_text(row.kind, item) for item in row.items)
    else:
        errors = [item.error for item in row.items]
        counts = [f"{errors.count(code)} with {f'error {code}' if code else 'success'}" for code in sorted(set(errors))]
        items = f"{len(errors)} items, {', '.join(counts)}"
    return f"{OUTCOMES[row.outcome]}{after}: {items}"


def item_text(kind: int, item: plain.EndedItem) -> str:
    """An item as in `orders-0@5 at 9`: the offset that it waited for, and the one that it reached."""
    name = item.name[0] if item.name[1] < 0 else f"{item.name[0]}-{item.name[1]}"
    text = f"{name}@{item.required} at {item.reached}" + (f" error {item.error}" if item.error else "")
    text += f" from {item.log_start}" if item.log_start > 0 else ""
    text += f" value {item.value}" if item.value else ""
    text += f" remaining {item.remaining_ms} ms at {item.pace:g}/s" if item.remaining_ms >= 0 else ""
    if kind == plain.FETCH:
        text += f" bytes {item.available_bytes} of {item.high_watermark}/{item.last_stable}"
    return text + (f" diverges at {item.diverging_epoch}/{item.diverging_end}" if item.diverging_end >= 0 else "")


def marks_texts(marks: plain.PartitionMarks | None) -> list[str]:
    """The marks of a partition, without those that are missing or 0, and its replicas."""
    if marks is None:
        return ["not known"]
    fields = zip(plain.PartitionMarks._fields, marks, strict=True)
    shown = [(name.replace("_", " "), value) for name, value in fields if name not in {"in_sync", "replicas"}]
    texts = [f"{name}{'' if value is True else f' {value}'}" for name, value in shown if value not in (-1, 0)]
    texts += [f"in sync {' '.join(map(str, marks.in_sync))}"] if marks.in_sync else []
    return [", ".join(texts), *[replica_text(*replica) for replica in marks.replicas]]


def replica_text(number: int, end: int, start: int, in_sync: bool, dead: bool, fenced: bool) -> str:
    states = [name for name, is_set in (("in sync", in_sync), ("dead", dead), ("fenced", fenced)) if is_set]
    return ", ".join([f"replica {number} at {end}", *([f"from {start}"] if start >= 0 else []), *states])
