"""The commands for running daemons: `purgatory fleet status`, over HTTP, and `purgatory fleet handover`, over gRPC."""

import argparse
import json
import os
import ssl
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

from purgatory_client.aio import DEFAULT_ADDRESS, AsyncClient

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
    _add_files(parser)


def _add_files(parser: argparse.ArgumentParser) -> None:
    for name, text in FILES.items():
        default = os.environ.get(f"PURGATORY_{name.upper()}")
        parser.add_argument(f"--{name.replace('_', '-')}", metavar="FILE", type=Path, default=default, help=text)


async def hand_over(given: argparse.Namespace) -> int:
    """Raises `PurgatoryClientError`."""
    files = {name: getattr(given, name) for name in FILES if name != "token_file"}
    async with AsyncClient(given.address, name="cli", tls=given.tls, token=given.token_file, **files) as client:
        await client.hand_over()
    print("handing over: the leader ends, and a standby claims")
    return 0


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
