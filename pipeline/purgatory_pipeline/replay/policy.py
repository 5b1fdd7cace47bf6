"""Policies of a replay: timeouts, minimum bytes, the in-sync minimum, and other replicas than there were.

- `timeout_ms=800`: every operation waits 800 ms
- `timeout_ms=*1.5`: half as long again; `+200` and `-200` add and subtract
- `orders:timeout_ms=800`: only operations on the topic orders
- `fetch:timeout_ms=800`: only fetches (produce, fetch, delete_records and signal are kinds, other words topics)
- `min_bytes=4096`: only fetches have it
- `min_in_sync_replicas=2`: replaces the value in the partitions' events
- `3=+20ms`: a slow replica; the progress of replica 3 arrives 20 ms later
- `3`: a replica that is gone
- `10s`: how long each change of leadership takes
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from purgatory.engine.codes import FETCH, KIND_NAMES, OFFSET_MAX
from purgatory_pipeline.engine_rows.integers import Integers
from purgatory_pipeline.errors import PipelineError
from purgatory_pipeline.time_arguments import parse_span_ms

TIMEOUT_MS: Final = "timeout_ms"
MIN_BYTES: Final = "min_bytes"
MIN_IN_SYNC_REPLICAS: Final = "min_in_sync_replicas"
HIGHEST: Final = {TIMEOUT_MS: 2**31 - 1, MIN_BYTES: OFFSET_MAX - 1, MIN_IN_SYNC_REPLICAS: 2**31 - 1}
"""Names of settings and their highest values; the lowest is 1."""

DELAY_MS_MAX: Final = 3_600_000
REPLICA_MAX: Final = 2**31 - 1
POLICIES_MAX: Final = 64
KIND_CODES: Final = {name: kind for kind, name in KIND_NAMES.items()}

_NUMBER: Final = r"[0-9]{1,40}(?:\.[0-9]{1,40})?"
_SETTING: Final = re.compile(rf"(?:(?P<scope>.+):)?(?P<name>[a-z_]+)=(?P<how>[*+-]?)(?P<value>{_NUMBER})")
_SLOW: Final = re.compile(r"(?P<replica>[0-9]{1,40})=\+(?P<delay>[0-9]{1,40})ms")
SETTINGS_HELP: Final = "[TOPIC:|KIND:]NAME=VALUE with NAME one of " + ", ".join(HIGHEST)
SLOW_HELP: Final = "ID=+MILLISECONDSms, for example 3=+20ms"


@dataclass(frozen=True)
class Change:
    """One setting, set (`=`), multiplied (`*`) or added to (`+`); of one kind (0: all) or one topic (empty: all)."""

    name: str
    how: str
    value: float
    kind: int = 0
    topic: str = ""

    def applied(self, values: Integers) -> Integers:
        """The changed values, within what the engine accepts."""
        if self.how == "*":
            changed = np.rint(values * self.value)
        else:
            changed = np.full(len(values), self.value) if self.how == "=" else values + self.value
        # A timeout of 0 asks for an immediate answer; a factor leaves it at 0.
        lowest = np.minimum(values, 1) if self.name == TIMEOUT_MS else 1
        within: Integers = np.clip(changed, lowest, HIGHEST[self.name]).astype(np.int64)
        return within


@dataclass(frozen=True)
class Policy:
    """The changes of a replay. `label` is the user's text."""

    changes: tuple[Change, ...] = ()
    slow_replicas: tuple[tuple[int, int], ...] = ()
    """(replica id, milliseconds)."""
    without_replicas: tuple[int, ...] = ()
    leader_move_ms: int = 0
    """How long a partition reports nothing after a change of leadership."""
    label: str = ""
    is_prompt: bool = True
    """Operations expire when they are due. False: when they expired in the recording, however late that was."""

    @property
    def changes_something(self) -> bool:
        return bool(self.changes or self.moves_marks)

    def named(self, name: str) -> list[Change]:
        """The changes of one setting, in the order they were asked for."""
        return [change for change in self.changes if change.name == name]

    @property
    def moves_marks(self) -> bool:
        """True: high watermarks may move differently, so pushed ones may no longer be right."""
        moves = self.slow_replicas or self.without_replicas or self.leader_move_ms
        return bool(moves or self.named(MIN_IN_SYNC_REPLICAS))


UNCHANGED: Final = Policy(label="as recorded", is_prompt=False)
"""Compared with the recording, to check that the replay is right."""
BASELINE: Final = Policy(label="unchanged")
"""The reference of other policies: replayed like them, so that only their changes make a difference."""


def parse_policy(
    settings: Sequence[str] = (),
    slow_replicas: Sequence[str] = (),
    without_replicas: Sequence[str] = (),
    leader_moves: str = "",
) -> Policy:
    """Parses the options of a command line. Raises `PipelineError` with the valid values."""
    changes = tuple(parse_change(text) for text in settings)
    slow = tuple(parse_slow_replica(text) for text in slow_replicas)
    twice = {replica_id for replica_id, _ in slow if [other for other, _ in slow].count(replica_id) > 1}
    if twice:
        raise PipelineError(f"--slow-replica: replica {min(twice)} is given twice")
    without = tuple(parse_replica(text) for text in without_replicas)
    move_ms = parse_span_ms("--leader-moves", leader_moves) if leader_moves else 0
    if leader_moves and not 1 <= move_ms <= DELAY_MS_MAX:
        raise PipelineError(f"--leader-moves {leader_moves}: the delay must be 1 to {DELAY_MS_MAX} ms")
    label = [*settings, *(f"replica {text}" for text in slow_replicas)]
    label += [f"without replica {replica_id}" for replica_id in without]
    label += [f"leader moves {leader_moves}"] if leader_moves else []
    return Policy(changes, slow, without, move_ms, ", ".join(label))


def parse_policies(base: Policy, sweeps: Sequence[str] = ()) -> list[Policy]:
    """The policies to play: UNCHANGED, and if there are any others, BASELINE and those: `base`, or `base` with each
    value of the sweeps. Raises `PipelineError`.
    """
    policies = [policy for text in sweeps for policy in parse_sweep(text, base)]
    if not policies and base.changes_something:
        policies = [base]
    if len(policies) > POLICIES_MAX:
        raise PipelineError(f"{len(policies)} policies; at most {POLICIES_MAX} can be compared")
    labels = [policy.label for policy in policies]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise PipelineError(f"--sweep: {twice} is given twice")
    return [UNCHANGED, *([BASELINE, *policies] if policies else [])]


def parse_change(text: str, option: str = "--set") -> Change:
    """Parses `orders:timeout_ms=*1.5`. Raises `PipelineError`."""
    found = _SETTING.fullmatch(text.strip())
    if found is None or found["name"] not in HIGHEST:
        raise PipelineError(f"{option} {text}: give {SETTINGS_HELP}")
    name, how, scope = found["name"], found["how"] or "=", found["scope"] or ""
    value = float(found["value"])
    if how != "*" and value != int(value):
        raise PipelineError(f"{option} {text}: {name} must be a whole number (write a factor as *1.5)")
    if how == "=" and not 1 <= value <= HIGHEST[name]:
        raise PipelineError(f"{option} {text}: {name} must be 1 to {HIGHEST[name]}")
    if how == "*" and value == 0:
        raise PipelineError(f"{option} {text}: a factor must be above 0")
    kind = KIND_CODES.get(scope, 0)
    if kind and (name == MIN_IN_SYNC_REPLICAS or (name == MIN_BYTES and kind != FETCH)):
        raise PipelineError(f"{option} {text}: {scope} has no {name}")
    return Change(name, "+" if how == "-" else how, -value if how == "-" else value, kind, "" if kind else scope)


def parse_slow_replica(text: str) -> tuple[int, int]:
    """Parses `3=+20ms`. Raises `PipelineError`."""
    found = _SLOW.fullmatch(text.strip())
    if found is None:
        raise PipelineError(f"--slow-replica {text}: give {SLOW_HELP}")
    replica_id, delay_ms = int(found["replica"]), int(found["delay"])
    if replica_id > REPLICA_MAX or not 1 <= delay_ms <= DELAY_MS_MAX:
        raise PipelineError(f"--slow-replica {text}: the delay must be 1 to {DELAY_MS_MAX} ms")
    return replica_id, delay_ms


def parse_replica(text: str) -> int:
    """Parses the id of a replica. Raises `PipelineError`."""
    if re.fullmatch("[0-9]{1,10}", text.strip()) is None or int(text) > REPLICA_MAX:
        raise PipelineError(f"--without-replica {text}: give the id of a replica, 0 to {REPLICA_MAX}")
    return int(text)


def parse_sweep(text: str, base: Policy) -> list[Policy]:
    """Parses `timeout_ms=100,200,500`: a policy for each value, on top of `base`. Raises `PipelineError`."""
    name, equals, values = text.strip().partition("=")
    words = [word.strip() for word in values.split(",") if word.strip()]
    if not equals or not words:
        raise PipelineError(f"--sweep {text}: give NAME=VALUE,VALUE,..., for example timeout_ms=100,200,500")
    if len(set(words)) != len(words):
        raise PipelineError(f"--sweep {text}: a value is given twice")
    policies = []
    for word in words:
        own = f"{name}={word}"
        change = parse_change(own, "--sweep")
        label = f"{base.label}, {own}" if base.label else own
        policies.append(replace(base, changes=(*base.changes, change), label=label))
    return policies
