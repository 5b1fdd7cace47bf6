"""Terms of composite waits: marks and signals, and how many of them must be true.

`client.wait(at_least(2, mark("a-0", 42), mark("b-0", 7), signal("job-17")), unless=signal("job-17/failed"))`
"""

from collections.abc import Iterable
from dataclasses import dataclass

from purgatory_client.argument_checks import checked_type, int64, several
from purgatory_client.errors import InvalidRequest
from purgatory_client.partition_names import PartitionName, checked_key, partition_name


@dataclass(frozen=True, slots=True)
class Term:
    """A condition on one mark or key. Made by `mark` or `signal`."""

    name: PartitionName | str
    """The partition, or the key."""
    required: int
    """The offset that the high watermark must reach, or the number of signals."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Terms of which `required_terms` must be true. Made by `all_of`, `any_of` or `at_least`."""

    terms: tuple[Term, ...]
    required_terms: int


def mark(partition: str | PartitionName, offset: int) -> Term:
    """True when the high watermark of a partition has reached an offset.

    Args:
        partition: "orders-3" or ("orders", 3); for PostgreSQL "pg/main/r1".
        offset: The last offset to be reached + 1.
    """
    return Term(partition_name(partition), int64(offset, "mark.required_offset"))


def signal(key: str, count: int = 1) -> Term:
    """True when a key has been signalled `count` times. Earlier signals count."""
    return Term(checked_key(key), int64(count, "signal.required_count"))


def all_of(*terms: Term) -> Terms:
    """Satisfied when all of these are true."""
    return at_least(len(terms), *terms)


def any_of(*terms: Term) -> Terms:
    """Satisfied when one of these is true."""
    return at_least(1, *terms)


def at_least(count: int, *terms: Term) -> Terms:
    """Satisfied when `count` of these are true.

    Raises:
        InvalidRequest: There are no terms, or fewer than `count`.
    """
    checked = checked_terms(terms, "composite.terms")
    if not checked:
        raise InvalidRequest("composite.terms", "empty; at least one is required")
    if not 1 <= int64(count, "composite.required_terms") <= len(checked):
        raise InvalidRequest(
            "composite.required_terms", f"{count}; must be from 1 to {len(checked)}, the number of terms"
        )
    return Terms(checked, count)


def checked_condition(condition: Term | Terms) -> Terms:
    """A condition as terms. Raises InvalidRequest for several terms in a list: it could mean all of them or any."""
    if isinstance(condition, Term):
        return Terms((condition,), 1)
    return checked_type(
        condition, Terms, "composite.terms", "give mark(...) or signal(...), or several in all_of(...) or any_of(...)"
    )


def checked_terms(terms: Term | Iterable[Term], field: str) -> tuple[Term, ...]:
    """One term, or several, as a tuple. Raises InvalidRequest for anything else; conditions cannot be nested."""
    if isinstance(terms, Terms):
        raise InvalidRequest(field, f"{terms!r}; give one term or a list of terms")
    checked = (terms,) if isinstance(terms, Term) else tuple(several(terms, field))
    for place, term in enumerate(checked):
        if not isinstance(term, Term):
            raise InvalidRequest(f"{field}[{place}]", f"{term!r} is not a term; use mark(...) or signal(...)")
    return checked
