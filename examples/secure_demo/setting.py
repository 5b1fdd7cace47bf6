"""Sets the scene in a temporary folder: an authority, certificates, tokens, a policy, and the real daemon that uses
them.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from purgatory_client import AsyncClient

from examples.local_daemon import serving as daemon_serving
from examples.secure_demo.authority import Authority, Issued

PRINCIPALS: Final = ("leader", "billing", "shipping", "operator", "intern")
POLICY: Final = """\
[[grant]]
to = ["leader"]
roles = ["advance"]
topics = ["orders", "payroll"]

[[grant]]
to = ["billing", "shipping"]
roles = ["wait", "observe"]
topics = ["orders"]

[[grant]]
to = ["operator"]
roles = ["admin"]
topics = ["*"]
keys = ["*"]
"""


@dataclass(frozen=True)
class Scene:
    """A serving daemon, and the credentials of its callers."""

    address: str
    authority: Authority
    gateway: Issued
    """The certificate that all services share; it has no grants of its own."""
    revoked: Issued
    foreign: Issued
    """A certificate from an authority that the daemon does not trust."""
    tokens: dict[str, str]

    def client(self, token: str | None = None, certificate: Issued | None = None, **options: Any) -> AsyncClient:  # noqa: ANN401 - those of AsyncClient
        """A client that trusts the authority and presents the gateway's certificate, or the one given."""
        shown = certificate or self.gateway
        return AsyncClient(
            self.address,
            tls_ca=self.authority.certificate_pem,
            tls_certificate=shown.certificate_pem,
            tls_key=shown.key_pem,
            token=token,
            **options,
        )


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[Scene]:
    """Create all files in `folder`, and run a daemon until the end of the block."""
    authority = Authority("The demonstration's authority")
    revoked = authority.issue("stolen laptop")
    authority.issue("purgatory", hosts=("127.0.0.1", "localhost")).write(folder, "server")
    (folder / "ca.crt").write_bytes(authority.certificate_pem)
    (folder / "ca.crl").write_bytes(authority.revocation_list([revoked.serial_number]))
    (folder / "policy.toml").write_text(POLICY, "utf-8")
    tokens = {name: _purgatory("token", "new", name, "--tokens", str(folder / "tokens")) for name in PRINCIPALS}
    _purgatory("policy", "check", str(folder / "policy.toml"))
    settings = {
        "tls-certificate-file": folder / "server.crt",
        "tls-key-file": folder / "server.key",
        "tls-client-auth": "required",
        "tls-client-ca-file": folder / "ca.crt",
        "tls-crl-file": folder / "ca.crl",
        "access-policy-file": folder / "policy.toml",
        "access-tokens-file": folder / "tokens",
    }
    arguments = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    async with daemon_serving(folder, *arguments) as address:
        gateway, foreign = authority.issue("gateway"), Authority("Somebody else's authority").issue("gateway")
        yield Scene(address, authority, gateway, revoked, foreign, tokens)


def _purgatory(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "purgatory", *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()
