"""`purgatory token` and `purgatory policy`: create and check access files without a daemon."""

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, cast

from purgatory.service.access.access_policy import read_policy
from purgatory.service.access.errors import AccessError
from purgatory.service.access.roles import ROLES, Grants, Role
from purgatory.service.access.tokens import add_token, read_tokens

EXIT_OK: Final = 0
EXIT_REFUSED: Final = 1
UNITS_S: Final = {"m": 60, "h": 3_600, "d": 86_400}


def token_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="purgatory token", description="Create and list bearer tokens; the file stores only their hashes."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    new = commands.add_parser("new", help="make a token, print it once, and add its hash to the file")
    new.add_argument("principal", metavar="NAME", help="the principal of the token, as named in the policy")
    new.add_argument("--expires", metavar="TIME", type=_seconds, help="lifetime: 90d, 12h or 30m (default: none)")
    listing = commands.add_parser("list", help="list tokens with their principals and expiry times")
    for command in (new, listing):
        command.add_argument("--tokens", metavar="FILE", type=Path, required=True, help="access.tokens_file")
    return parser


def run_token(arguments: Sequence[str]) -> int:
    """`purgatory token new NAME --tokens FILE [--expires 90d]` and `purgatory token list --tokens FILE`."""
    given = token_parser().parse_args(arguments)
    try:
        if given.command == "list":
            return _list(given.tokens)
        expires_s = None if given.expires is None else int(time.time()) + given.expires
        # The token alone on stdout, so that it can be redirected to a file; everything for people is on stderr.
        print(add_token(given.tokens, given.principal, expires_s))
    except (AccessError, ValueError, OSError) as error:
        return _fail("token", str(error))
    print(f"for {given.principal}; this is the only time it is shown", file=sys.stderr)
    return EXIT_OK


def policy_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="purgatory policy", description="Check a policy file without a daemon.")
    commands = parser.add_subparsers(dest="command", required=True)
    check = commands.add_parser("check", help="validate a policy and show what a principal may do")
    check.add_argument("file", metavar="FILE", type=Path)
    check.add_argument("--as", dest="principal", metavar="NAME", help="show the grants of this principal")
    check.add_argument("--may", nargs=2, metavar=("ROLE", "NAME"), help="test a role on a topic; exit code 1: denied")
    check.add_argument("--key", action="store_true", help="with --may: NAME is a key and not a topic")
    return parser


def run_policy(arguments: Sequence[str]) -> int:
    """`purgatory policy check FILE [--as NAME [--may ROLE TOPIC] [--key]]`."""
    parser = policy_parser()
    given = parser.parse_args(arguments)
    if given.may is not None and (given.principal is None or given.may[0] not in ROLES):
        parser.error(f"--may requires --as and one of the roles {', '.join(ROLES)}")
    try:
        policy = read_policy(given.file)
    except AccessError as error:
        return _fail("policy", str(error))
    if given.principal is None:
        print(f"{given.file}: {policy.grant_count} grants")
        return EXIT_OK
    grants = policy.of(given.principal)
    if given.may is None:
        for role in ROLES:
            print(f"{role:8} topics: {_shown(grants, role, is_key=False)}  keys: {_shown(grants, role, is_key=True)}")
        own = policy.shares_of(given.principal).model_dump(exclude_none=True)
        print(f"shares   {', '.join(f'{name} = {value}' for name, value in own.items()) or 'as for all'}")
        return EXIT_OK
    role, name = cast("Role", given.may[0]), given.may[1]
    may = name in (grants.on_keys(role) if given.key else grants.on_topics(role))
    print("yes" if may else "no")
    return EXIT_OK if may else EXIT_REFUSED


def _list(tokens_file: Path) -> int:
    for digest, token in read_tokens(tokens_file).items():
        until = "never expires"
        if token.expires_s != float("inf"):
            until = time.strftime("expires %Y-%m-%d %H:%M UTC", time.gmtime(token.expires_s))
        print(f"{token.principal}  {digest[:12]}...  {until}")
    return EXIT_OK


def _shown(grants: Grants, role: Role, *, is_key: bool) -> str:
    return str(grants.on_keys(role) if is_key else grants.on_topics(role)) or "none"


def _seconds(text: str) -> int:
    matched = re.fullmatch(r"([0-9]{1,9})([mhd])", text)
    if matched is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration; use a form such as 90d, 12h or 30m")
    return int(matched[1]) * UNITS_S[matched[2]]


def _fail(command: str, message: str) -> int:
    for line in message.splitlines():
        print(f"purgatory {command}: {line}", file=sys.stderr)
    return EXIT_REFUSED
