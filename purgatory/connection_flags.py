"""The options with which commands connect to a daemon."""

from functools import partial
from typing import Final

from purgatory_client.aio import DEFAULT_ADDRESS

from purgatory.command_line import FILE, Option

_FILES: Final = {
    "tls_ca": "Certificate authorities to trust (PEM file).",
    "tls_certificate": "Client certificate (PEM file).",
    "tls_key": "Private key of the client certificate (PEM file).",
    "token_file": "File with the bearer token.",  # other users can see a command line, so the token is not an option
}
_option: Final = partial(Option, heading="Connection", show_envvar=True)
_TLS: Final = _option(["--tls"], is_flag=True, help="Use TLS and trust the public certificate authorities.")
_ADDRESS: Final = _option(
    ["--address", "-a"],
    metavar="HOST:PORT",
    envvar="PURGATORY_ADDRESS",
    default=DEFAULT_ADDRESS,
    help="The daemon's gRPC address, or several: a:7440,b:7440.",
)
FILES: Final[dict[str, Option]] = {
    name: _option(
        [f"--{name.replace('_', '-')}"], metavar="FILE", type=FILE, envvar=f"PURGATORY_{name.upper()}", help=text
    )
    for name, text in _FILES.items()
}
SECURITY: Final = {"tls": _TLS, **FILES}
CONNECTION: Final = {"address": _ADDRESS, **SECURITY}
"""By the names of their parameters."""
