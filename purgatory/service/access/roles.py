"""Roles, the sets of names they are granted on, and the roles that admit a caller to each method."""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

Role = Literal["wait", "advance", "observe", "admin"]

PERMISSION_DENIED: Final = 7
"""google.rpc.Code of a refusal for a missing role."""
TOPIC_AUTHORIZATION_FAILED: Final = 29
"""Kafka's error code for a missing role."""

WAIT: Final = "wait"
ADVANCE: Final = "advance"
OBSERVE: Final = "observe"
ADMIN: Final = "admin"
ROLES: Final[tuple[Role, ...]] = (WAIT, ADVANCE, OBSERVE, ADMIN)

_ADMITTED: Final[Mapping[str, tuple[Role, ...]]] = {
    "Wait Session Register StreamResults Acknowledge CloseSession GetSourceEnds": (WAIT,),
    "Advance AdvanceStream AttachSource": (ADVANCE,),
    "GetPartition ListPartitions ListHotNames": (OBSERVE,),
    "Cancel Extend GetOperation ListOperations TailResults": (WAIT, ADMIN),
    "ListDeadLetters ResendDeadLetters DeleteDeadLetters": (WAIT, ADMIN),
    "HandOver": (ADMIN,),
    "GetStatus GetTopology": ROLES,
}
CALLS: Final[Mapping[str, frozenset[Role]]] = {
    method: frozenset(roles) for methods, roles in _ADMITTED.items() for method in methods.split()
}
"""Roles by method: a caller with none of these roles on any name is refused before its request is read."""


class Names:
    """A set of names: exact names, and all names that start with certain prefixes."""

    def __init__(self, patterns: Iterable[str] = ()) -> None:
        """`patterns` are names, or prefixes followed by an asterisk; a single asterisk matches all names."""
        patterns = list(patterns)
        self._exact: Final = frozenset(pattern for pattern in patterns if not pattern.endswith("*"))
        self._prefixes: Final = tuple(pattern[:-1] for pattern in patterns if pattern.endswith("*"))
        self.has_all: Final = "" in self._prefixes

    def __contains__(self, name: str) -> bool:
        # With no prefixes, the empty tuple matches nothing; an empty string would match everything.
        return name in self._exact or name.startswith(self._prefixes)

    def has_prefix(self, prefix: str) -> bool:
        """Return whether all names that start with this prefix are in the set."""
        return prefix.startswith(self._prefixes)

    def meets_prefix(self, prefix: str) -> bool:
        """Return whether any name that starts with this prefix can be in the set."""
        return self.has_prefix(prefix) or any(
            name.startswith(prefix) for names in (self._exact, self._prefixes) for name in names
        )

    def __str__(self) -> str:
        return ", ".join([*sorted(self._exact), *(f"{prefix}*" for prefix in sorted(set(self._prefixes)))])

    def __bool__(self) -> bool:
        return bool(self._exact or self._prefixes)


class Grants:
    def __init__(self, topics: Mapping[Role, Names], keys: Mapping[Role, Names]) -> None:
        nothing = Names()
        self._topics: Final = {role: topics.get(role, nothing) for role in ROLES}
        self._keys: Final = {role: keys.get(role, nothing) for role in ROLES}
        self._held: Final = frozenset(role for role in ROLES if self._topics[role] or self._keys[role])
        # On all topics and on all keys: for these roles the check of each row is skipped.
        self.everywhere: Final = frozenset(
            role for role in ROLES if self._topics[role].has_all and self._keys[role].has_all
        )
        """Roles that are granted on all topics and all keys."""

    def holds_any(self, roles: frozenset[Role]) -> bool:
        """Return whether any of these roles is granted on any name."""
        return not roles.isdisjoint(self._held)

    def on_topics(self, role: Role) -> Names:
        return self._topics[role]

    def on_keys(self, role: Role) -> Names:
        return self._keys[role]


_EVERYTHING: Final = dict.fromkeys(ROLES, Names(["*"]))
ALL: Final = Grants(_EVERYTHING, _EVERYTHING)
"""The grants of all callers on a daemon without a policy."""
NONE: Final = Grants({}, {})
