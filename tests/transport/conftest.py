"""An authority, the files it has issued for a daemon, and daemons that serve with them."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from examples.secure_demo.authority import Authority, Issued
from purgatory.service.access import access
from purgatory.service.transport import tls

HOSTS = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class TlsFolder:
    """The files that a daemon with TLS reads, and their issuer."""

    folder: Path
    authority: Authority

    def put_server(self, issued: Issued) -> None:
        """Replace certificate and key, each by renaming, as a careful program does."""
        for name, content in (("server.crt", issued.certificate_pem), ("server.key", issued.key_pem)):
            self.put(name, content)

    def put(self, name: str, content: bytes) -> None:
        unfinished = self.folder / f"{name}.part"
        unfinished.write_bytes(content)
        unfinished.replace(self.folder / name)

    def issue_server(self) -> Issued:
        return self.authority.issue("purgatory", hosts=HOSTS)

    def flags(self, *, client_auth: bool = False, crl: bool = False) -> list[str]:
        """Flags of a daemon that uses the files."""
        flags = ["--tls-certificate-file", str(self.folder / "server.crt")]
        flags += ["--tls-key-file", str(self.folder / "server.key")]
        if client_auth:
            flags += ["--tls-client-auth", "required", "--tls-client-ca-file", str(self.folder / "clients.crt")]
        if crl:
            flags += ["--tls-crl-file", str(self.folder / "clients.crl")]
        return flags


@pytest.fixture(autouse=True)
def read_files_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Daemons in this process look for changed certificates, policy or tokens twenty times per second."""
    monkeypatch.setattr(tls, "RELOAD_INTERVAL_S", 0.05)
    monkeypatch.setattr(access, "RELOAD_INTERVAL_S", 0.05)


@pytest.fixture
def authority() -> Authority:
    return Authority("The test's authority")


@pytest.fixture
def tls_folder(tmp_path: Path, authority: Authority) -> TlsFolder:
    """TLS files: a server certificate, the authority of clients, and an empty revocation list."""
    files = TlsFolder(tmp_path / "tls", authority)
    files.folder.mkdir()
    files.put_server(files.issue_server())
    files.put("clients.crt", authority.certificate_pem)
    files.put("clients.crl", authority.revocation_list([]))
    return files
