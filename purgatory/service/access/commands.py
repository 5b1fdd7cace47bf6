"""`purgatory token` and `purgatory policy`: create and check access files without a daemon."""

import re
import sys
import time
from pathlib import Path
from typing import Final, cast

import click

from purgatory.command_line import FILE, ExitCodes
from purgatory.service.access.access_policy import read_policy
from purgatory.service.access.roles import ROLES, Grants, Role
from purgatory.service.access.tokens import AccessError, add_token, read_tokens

EXIT_OK: Final = 0
EXIT_DENIED: Final = 1
EXIT_FAILED: Final = 2
UNITS_S: Final = {"m": 60, "h": 3_600, "d": 86_400}


def _seconds(text: str) -> int:
    matched = re.fullmatch(r"([0-9]{1,9})([mhd])", text)
    if matched is None:
        raise click.BadParameter(f"{text!r} is not a duration; use a form such as 90d, 12h or 30m")
    return int(matched[1]) * UNITS_S[matched[2]]


TOKENS: Final = click.option("--tokens", metavar="FILE", type=FILE, required=True, help="access.tokens_file")


@click.group(cls=ExitCodes, errors=(AccessError, ValueError, OSError), failed=EXIT_FAILED)
def token() -> None: ...


@token.command()
@click.argument("principal", metavar="NAME", help="The principal of the token, as named in the policy.")
@click.option("--expires", metavar="TIME", type=_seconds, help="Lifetime: 90d, 12h or 30m (default: none).")
@TOKENS
def new(principal: str, expires: int | None, tokens: Path) -> int:
    """Make a token, print it once, and add its hash to the file."""
    # The token alone on stdout, so that it can be redirected to a file; everything for people is on stderr.
    print(add_token(tokens, principal, None if expires is None else int(time.time()) + expires))
    print(f"for {principal}; this is the only time it is shown", file=sys.stderr)
    return EXIT_OK


@token.command("list")
@TOKENS
def list_(tokens: Path) -> int:
    """List tokens with their principals and expiry times."""
    for digest, one in read_tokens(tokens).items():
        until = "never expires"
        if one.expires_s != float("inf"):
            until = time.strftime("expires %Y-%m-%d %H:%M UTC", time.gmtime(one.expires_s))
        print(f"{one.principal}  {digest[:12]}...  {until}")
    return EXIT_OK


@click.group(cls=ExitCodes, errors=(AccessError,), failed=EXIT_FAILED)
def policy() -> None: ...


@policy.command()
@click.argument("file", metavar="FILE", type=FILE)
@click.option("--as", "principal", metavar="NAME", help="Show the grants of this principal.")
@click.option("--may", nargs=2, metavar="ROLE NAME", help="Test a role on a topic; exit code 1: denied.")
@click.option("--key", "is_key", is_flag=True, help="With --may: NAME is a key and not a topic.")
def check(file: Path, principal: str | None, may: tuple[str, str] | None, is_key: bool) -> int:
    """Validate a policy and show what a principal may do."""
    if may is not None and (principal is None or may[0] not in ROLES):
        raise click.UsageError(f"--may requires --as and one of the roles {', '.join(ROLES)}")
    read = read_policy(file)
    if principal is None:
        print(f"{file}: {read.grant_count} grants")
        return EXIT_OK
    grants = read.of(principal)
    if may is None:
        for role in ROLES:
            print(f"{role:8} topics: {_shown(grants, role, is_key=False)}  keys: {_shown(grants, role, is_key=True)}")
        own = read.shares_of(principal).model_dump(exclude_none=True)
        print(f"shares   {', '.join(f'{name} = {value}' for name, value in own.items()) or 'as for all'}")
        return EXIT_OK
    role, name = cast("Role", may[0]), may[1]
    allowed = name in (grants.on_keys(role) if is_key else grants.on_topics(role))
    print("yes" if allowed else "no")
    return EXIT_OK if allowed else EXIT_DENIED


def _shown(grants: Grants, role: Role, *, is_key: bool) -> str:
    return str(grants.on_keys(role) if is_key else grants.on_topics(role)) or "none"
