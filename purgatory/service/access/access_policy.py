"""The policy: which principals have which roles on which topics and keys, from a TOML file.

    loopback_principal = "operator"      # callers from this machine without a credential; by default they are refused

    [[grant]]
    to = ["billing", "team-*"]           # principals: a name, a prefix followed by *, or * for all
    roles = ["wait", "observe"]          # wait, advance, observe, admin
    topics = ["orders-*", "payments"]    # names or prefixes, as above
    keys = ["deploy/*"]

    [principals.billing.shares]          # overrides the default shares for this principal; or "team-*"
    times_free = 4
    sessions_max = 100

Grants are cumulative and cannot be revoked by another grant; everything that is not granted is refused. Only one table
of shares applies to a principal: the one for its name, or else the one for the longest matching prefix.
"""

import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from purgatory.service.access.account import AS_FOR_ALL, OwnShares
from purgatory.service.access.roles import NONE, ROLES, Grants, Names, Role
from purgatory.service.access.tokens import AccessError
from purgatory.service.transport.watched_file import read_regular_file

PRINCIPALS_KEPT: Final = 10_000
"""Number of principals whose grants are cached; the grants of others are computed on each use."""


class PolicyError(AccessError):
    """The file is not a valid policy. The message has a line for each fault, with its place."""


def _checked_pattern(pattern: str) -> str:
    if not pattern or "*" in pattern[:-1]:
        raise ValueError("must be a name, a prefix followed by *, or * for all")
    return pattern


Pattern = Annotated[str, AfterValidator(_checked_pattern)]


class Grant(BaseModel):
    """Grants roles to principals on some topics and keys."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    to: list[Pattern] = Field(min_length=1)
    roles: list[Role] = Field(min_length=1)
    topics: list[Pattern] = []
    keys: list[Pattern] = []


class PrincipalPolicy(BaseModel):
    """Settings other than grants for one principal, or for all principals with a prefix."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    shares: OwnShares = AS_FOR_ALL


class _PolicyFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    loopback_principal: str = ""
    grant: list[Grant] = []
    principals: dict[Pattern, PrincipalPolicy] = {}


class AccessPolicy:
    """The rights of all principals. Immutable: changed files are read into a new policy."""

    def __init__(
        self, grants: list[Grant], loopback_principal: str = "", principals: Mapping[str, PrincipalPolicy] | None = None
    ) -> None:
        self.loopback_principal: Final = loopback_principal
        """Principal of callers from this machine without a credential; empty: they are refused."""
        self._grants: Final = [(Names(grant.to), grant) for grant in grants]
        self.grant_count: Final = len(grants)
        self.of: Final = lru_cache(PRINCIPALS_KEPT)(self._of)
        """Returns the grants of a principal."""
        self._shares: Final = {name: about.shares for name, about in (principals or {}).items()}
        self._prefixes: Final = sorted(
            (name[:-1] for name in self._shares if name.endswith("*")), key=len, reverse=True
        )

    def shares_of(self, principal: str) -> OwnShares:
        """Return a principal's shares: those for its name, or else those for its longest prefix in the policy."""
        # A principal whose name ends with an asterisk must not be taken for the pattern of that spelling.
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
    """Read the policy from a file. Raises `PolicyError`."""
    try:
        document = tomllib.loads(read_regular_file(path).decode())
        parsed = _PolicyFile.model_validate(document)
    except OSError as error:
        raise PolicyError(f"{path}: {error.strerror or error}") from None
    except ValidationError as error:
        faults = [f"{path}: {_place(fault['loc'])}: {fault['msg']}" for fault in error.errors()]
        raise PolicyError("\n".join(faults)) from None
    except ValueError as error:  # of TOML, of UTF-8, or of Python, for a number of more than 4,300 digits
        raise PolicyError(f"{path}: {error}") from None
    # Refused, although harmless: the author certainly meant something else.
    useless = [
        f"{path}: grant {number}: names neither topics nor keys, so it grants nothing"
        for number, grant in enumerate(parsed.grant, 1)
        if not grant.topics and not grant.keys
    ]
    if useless:
        raise PolicyError("\n".join(useless))
    # Most likely a file that was truncated. As an empty policy it would lock all callers out.
    if not parsed.grant:
        raise PolicyError(f"{path}: contains no [[grant]], so every caller would be refused")
    return AccessPolicy(parsed.grant, parsed.loopback_principal, parsed.principals)


def _place(location: tuple[int | str, ...]) -> str:
    """('grant', 1, 'roles', 0) -> 'grant 2, roles 1': counted from 1, for people."""
    words = [f" {part + 1}" if isinstance(part, int) else f", {part}" for part in location]
    return "".join(words).removeprefix(", ")
