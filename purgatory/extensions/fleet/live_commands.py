"""The commands for running daemons: `purgatory fleet status`, over HTTP, and `purgatory fleet handover`, over gRPC."""

import argparse
import contextlib
import json
import os
import ssl
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

from purgatory_client.aio import DEFAULT_ADDRESS, AsyncClient
from purgatory_client.errors import InvalidRequest, Unavailable
from purgatory_client.unary import shards_of

from purgatory.extensions.fleet.fleet_view import describe

ANSWER_S: Final = 5.0
FILES: Final = {
    "tls_ca": "certificate authorities to trust (PEM file)",
    "tls_certificate": "client certificate (PEM file)",
    "tls_key": "private key of the client certificate (PEM file)",
    "token_file": "file with the bearer token",
}


def add_status(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "addresses", metavar="HOST:PORT", nargs="+", help="HTTP address of a daemon; with TLS: https://HOST:PORT"
    )
    _add_files(parser)


def add_connection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--address",
        "-a",
        metavar="HOST:PORT",
        default=os.environ.get("PURGATORY_ADDRESS", DEFAULT_ADDRESS),
        help="the leader's gRPC address, or those of all daemons: a:7440,b:7440",
    )
    parser.add_argument("--tls", action="store_true", help="use TLS and trust the public certificate authorities")
    parser.add_argument(
        "--balance",
        action="store_true",
        help="in each shard, let the daemon lead that its target names first",
    )
    _add_files(parser)


def _add_files(parser: argparse.ArgumentParser) -> None:
    for name, text in FILES.items():
        default = os.environ.get(f"PURGATORY_{name.upper()}")
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="FILE", type=Path, default=default, help=text)


async def hand_over(given: argparse.Namespace) -> int:
    """Raises `PurgatoryClientError`."""
    async with _client(given, given.address) as client:
        if given.balance:
            return max([await _balance(given, n, one.address) for n, one in enumerate(await shards_of(client))])
        await client.hand_over()
    print("handing over: the leader ends, and a standby claims")
    return 0


async def _balance(given: argparse.Namespace, shard: int, target: str) -> int:
    """Let the leader of a shard hand over if it is not the first daemon of the target."""
    first, *others = target.split(",")
    try:
        async with _client(given, first) as client:
            await shards_of(client)  # answered by standbys too
    except Unavailable as error:
        print(f"shard {shard}: {first} cannot lead: {error}")
        return 1
    for other in others:
        # A standby refuses; one that is down does not lead.
        with contextlib.suppress(InvalidRequest, Unavailable):
            async with _client(given, other) as client:
                await client.hand_over()
            print(f"shard {shard}: {other} hands over")
    return 0


def _client(given: argparse.Namespace, address: str) -> AsyncClient:
    files = {name: getattr(given, name) for name in FILES if name != "token_file"}
    return AsyncClient(address, name="cli", tls=given.tls, token=given.token_file, **files)


def show_status(given: argparse.Namespace) -> int:
    """Print a line for each daemon, and return how many of them lead. Raises OSError for a file that cannot be read."""
    trusted = ssl.create_default_context(cafile=given.tls_ca)
    if given.tls_certificate is not None:
        trusted.load_cert_chain(given.tls_certificate, given.tls_key)
    token = given.token_file and given.token_file.read_text("utf-8").strip()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    leaders = 0
    for address in given.addresses:
        url = address if address.startswith("https://") else f"http://{address.removeprefix('http://')}"
        request = Request(f"{url.rstrip('/')}/fleet", headers=headers)  # noqa: S310 - as above
        try:
            with urlopen(request, timeout=ANSWER_S, context=trusted) as answer:  # noqa: S310 - as above
                view = json.load(answer)
        except (OSError, ValueError) as error:
            print(f"{address}: does not answer ({error})")
            continue
        leaders += view["state"] == "leading"
        print(f"{address}: {describe(view)}")
    return leaders
