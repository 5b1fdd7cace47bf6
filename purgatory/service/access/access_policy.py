"""The policy: which principals have which roles on which topics and keys, from a TOML file.

    loopback_principal = "operator"      # who callers from this machine are that show no credential; none by default

    [[grant]]
    to = ["billing", "team-*"]           # principals: a name, a prefix followed by *, or * for all
    roles = ["wait", "observe"]          # wait, advance, observe, admin
    topics = ["orders-*", "payments"]    # names or prefixes, as above
    keys = ["deploy/*"]

Grants add up, and nothing takes one away: what no grant allows is refused.
"""

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from purgatory.service.access.errors import AccessError
from purgatory.service.access.roles import NONE, ROLES, Grants, Names, Role

PRINCIPALS_KEPT: Final = 10_000
"""Principals whose grants are kept ready; those of others are worked out again."""


class PolicyError(AccessError):
    """The file is not a policy. The message has a line for each fault, with its place."""


def _checked_pattern(pattern: str) -> str:
    if not pattern or "*" in pattern[:-1]:
        raise ValueError("should be a name, a prefix followed by *, or * for all")
    return pattern


Pattern = Annotated[str, AfterValidator(_checked_pattern)]


class Grant(BaseModel):
    """Gives roles to principals on some topics and keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: list[Pattern] = Field(min_length=1)
    roles: list[Role] = Field(min_length=1)
    topics: list[Pattern] = []
    keys: list[Pattern] = []


class _PolicyFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    loopback_principal: str = ""
    grant: list[Grant] = []


class AccessPolicy:
    """Who may do what. Immutable: another file makes another policy."""

    def __init__(self, grants: list[Grant], loopback_principal: str = "") -> None:
        self.loopback_principal: Final = loopback_principal
        """Who a caller from this machine is that shows no credential; empty: nobody, it is refused."""
        self._grants: Final = [(Names(grant.to), grant) for grant in grants]
        self.grant_count: Final = len(grants)
        self.of: Final = lru_cache(PRINCIPALS_KEPT)(self._of)
        """A principal's grants."""

    def _of(self, principal: str) -> Grants:
        mine = [grant for to, grant in self._grants if principal in to]
        if not mine:
            return NONE
        topics = {role: Names(name for grant in mine if role in grant.roles for name in grant.topics) for role in ROLES}
        keys = {role: Names(name for grant in mine if role in grant.roles for name in grant.keys) for role in ROLES}
        return Grants(topics, keys)


def read_policy(path: Path) -> AccessPolicy:
    """The policy in a file. Raises `PolicyError`."""
    try:
        document = tomllib.loads(path.read_text("utf-8"))
        parsed = _PolicyFile.model_validate(document)
    except OSError as error:
        raise PolicyError(f"{path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PolicyError(f"{path}: {error}") from None
    except ValidationError as error:
        faults = [f"{path}: {_place(fault['loc'])}: {fault['msg']}" for fault in error.errors()]
        raise PolicyError("\n".join(faults)) from None
    useless = [
        f"{path}: grant {number}: names neither topics nor keys, so it gives nothing"
        for number, grant in enumerate(parsed.grant, 1)
        if not grant.topics and not grant.keys
    ]
    if useless:
        raise PolicyError("\n".join(useless))
    return AccessPolicy(parsed.grant, parsed.loopback_principal)


def _place(location: tuple[int | str, ...]) -> str:
    """('grant', 1, 'roles', 0) -> 'grant 2, roles 1': people count from 1."""
    words = [f" {part + 1}" if isinstance(part, int) else f", {part}" for part in location]
    return "".join(words).removeprefix(", ")
