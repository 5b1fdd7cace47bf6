"""The policy: which principals have which roles on which topics and keys, from a TOML file.

    loopback_principal = "operator"      # who callers from this machine are that show no credential; none by default

    [[grant]]
    to = ["billing", "team-*"]           # principals: a name, a prefix followed by *, or * for all
    roles = ["wait", "observe"]          # wait, advance, observe, admin
    topics = ["orders-*", "payments"]    # names or prefixes, as above
    keys = ["deploy/*"]

    [principals.billing.shares]          # what this principal may hold, in place of what holds for all; or "team-*"
    times_free = 4
    sessions_max = 100

Grants add up, and nothing takes one away: what no grant allows is refused. Of shares one table holds for a principal,
that of its name or else that of the longest prefix.
"""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from purgatory.service.access.errors import AccessError
from purgatory.service.access.own_shares import AS_FOR_ALL, OwnShares
from purgatory.service.access.roles import NONE, ROLES, Grants, Names, Role
from purgatory.service.transport.watched_file import read_regular_file

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


class PrincipalPolicy(BaseModel):
    """What the policy says of one principal, or of all whose names begin with a prefix, besides grants."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shares: OwnShares = AS_FOR_ALL


class _PolicyFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    loopback_principal: str = ""
    grant: list[Grant] = []
    principals: dict[Pattern, PrincipalPolicy] = {}


class AccessPolicy:
    """Who may do what. Immutable: another file makes another policy."""

    def __init__(
        self,
        grants: list[Grant],
        loopback_principal: str = "",
        principals: Mapping[str, PrincipalPolicy] | None = None,
    ) -> None:
        self.loopback_principal: Final = loopback_principal
        """Who a caller from this machine is that shows no credential; empty: nobody, it is refused."""
        self._grants: Final = [(Names(grant.to), grant) for grant in grants]
        self.grant_count: Final = len(grants)
        self.of: Final = lru_cache(PRINCIPALS_KEPT)(self._of)
        """A principal's grants."""
        self._shares: Final = {name: about.shares for name, about in (principals or {}).items()}
        self._prefixes: Final = sorted(
            (name[:-1] for name in self._shares if name.endswith("*")), key=len, reverse=True
        )

    def shares_of(self, principal: str) -> OwnShares:
        """A principal's shares: those of its name, or else of the longest prefix of it that has any."""
        own = None if principal.endswith("*") else self._shares.get(principal)
        if own is None:
            prefix = next((prefix for prefix in self._prefixes if principal.startswith(prefix)), None)
            own = AS_FOR_ALL if prefix is None else self._shares[f"{prefix}*"]
        return own

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
        document = tomllib.loads(read_regular_file(path).decode())
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
    if not parsed.grant:
        raise PolicyError(f"{path}: contains no [[grant]], so every caller would be refused")
    return AccessPolicy(parsed.grant, parsed.loopback_principal, parsed.principals)


def _place(location: tuple[int | str, ...]) -> str:
    """('grant', 1, 'roles', 0) -> 'grant 2, roles 1': people count from 1."""
    words = [f" {part + 1}" if isinstance(part, int) else f", {part}" for part in location]
    return "".join(words).removeprefix(", ")
