"""Unusable TLS files and settings are refused at start, in one line that explains the remedy."""

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from examples.secure_demo.authority import Authority
from purgatory.service.setting_sources import SettingsError, load_settings
from purgatory.service.settings import TlsSettings, is_loopback
from purgatory.service.transport.certificate_files import CannotUseCertificates, read_tls_material
from purgatory.service.transport.peer import peer_certificate
from purgatory.service.transport.tls import Tls
from tests.kit.daemon import RunDaemon
from tests.transport.conftest import TlsFolder

NOW = datetime.now(UTC)
HOUR = timedelta(hours=1)


def settings_of(files: TlsFolder) -> TlsSettings:
    return TlsSettings(
        certificate_file=files.folder / "server.crt",
        key_file=files.folder / "server.key",
        client_auth="required",
        client_ca_file=files.folder / "clients.crt",
        crl_file=files.folder / "clients.crl",
    )


def problem(files: TlsFolder) -> str:
    with pytest.raises(CannotUseCertificates) as caught:
        read_tls_material(settings_of(files), NOW)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_each_file_is_checked(tls_folder: TlsFolder) -> None:
    folder, authority = tls_folder.folder, tls_folder.authority
    server = tls_folder.issue_server()
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    for name, content, words in (
        ("server.crt", b"no certificate", f"tls.certificate_file: {folder / 'server.crt'} has no readable certificate"),
        ("server.crt", server.certificate_pem, f"tls.key_file: {folder / 'server.key'} is not the key of"),
        ("server.key", b"no key", f"tls.key_file: {folder / 'server.key'} has no readable private key"),
        ("clients.crt", b"", f"tls.client_ca_file: {folder / 'clients.crt'} has no readable certificate"),
        ("clients.crl", b"", f"tls.crl_file: {folder / 'clients.crl'} has no revocation list"),
        ("clients.crl", Authority("Another").revocation_list([]), "which no certificate in tls.client_ca_file has"),
        ("clients.crl", Authority("The test's authority").revocation_list([]), "has signed"),
    ):
        tls_folder.put(name, content)
        assert words in problem(tls_folder)
        tls_folder.put(name, files[name])
    (folder / "server.key").unlink()
    assert problem(tls_folder) == f"tls.key_file: cannot read {folder / 'server.key'}: No such file or directory"
    for words, valid_from, valid_until in (
        ("expired on", NOW - 2 * HOUR, NOW - HOUR),
        ("is not valid before", NOW + HOUR, NOW + 2 * HOUR),
    ):
        issued = authority.issue("purgatory", valid_from=valid_from, valid_until=valid_until)
        tls_folder.put_server(issued)
        assert words in problem(tls_folder)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    name=st.sampled_from(["server.crt", "server.key", "clients.crt", "clients.crl"]),
    where=st.floats(0, 1, exclude_max=True),
    byte=st.integers(0, 255),
    cut=st.booleans(),
)
def test_damaged_files_are_told(tls_folder: TlsFolder, name: str, where: float, byte: int, cut: bool) -> None:
    """Any byte of any file is changed, or any file is truncated."""
    path = tls_folder.folder / name
    whole = path.read_bytes()
    place = int(where * len(whole))
    path.write_bytes(whole[:place] + (b"" if cut else bytes([byte]) + whole[place + 1 :]))
    said = ""
    try:
        read_tls_material(settings_of(tls_folder), NOW)
    except CannotUseCertificates as error:
        said = str(error)
    finally:
        path.write_bytes(whole)
    assert said.startswith("tls.") or not said


def test_revoked_serials_of_all_lists(tls_folder: TlsFolder) -> None:
    """The file may contain a list of each authority."""
    other = Authority("Another")
    tls_folder.put("clients.crt", tls_folder.authority.certificate_pem + other.certificate_pem)
    lists = tls_folder.authority.revocation_list([7]), other.revocation_list([8, 9], next_update=NOW + HOUR)
    tls_folder.put("clients.crl", b"".join(lists))
    material = read_tls_material(settings_of(tls_folder), NOW)
    assert sorted(serial for _, serial in material.revoked) == [7, 8, 9]
    assert material.crl_expires == (NOW + HOUR).replace(microsecond=0)


def test_names_of_a_peer(authority: Authority) -> None:
    """The names of a peer are those in its certificate; a connection without a certificate has none."""
    issued = authority.issue("orders", hosts=["orders.example", "10.0.0.7"], uris=["spiffe://example/orders"])
    peer = peer_certificate({"x509_pem_cert": [issued.certificate_pem]})
    assert peer is not None
    assert (peer.common_name, peer.subject) == ("orders", "CN=orders")
    assert peer.uris == ("spiffe://example/orders",)
    assert peer.serial_number == issued.serial_number
    assert peer_certificate({"x509_pem_cert": [issued.certificate_pem]}) is peer
    assert peer.principal == "orders"
    nameless = peer_certificate({"x509_pem_cert": [authority.issue("", uris=["spiffe://example/a"]).certificate_pem]})
    assert nameless is not None
    assert nameless.principal == "spiffe://example/a"
    assert peer_certificate({"transport_security_type": [b"ssl"]}) is None


def test_expiry_is_warned_of_once_a_day(tls_folder: TlsFolder, caplog: pytest.LogCaptureFixture) -> None:
    """A warning is logged from two weeks before the expiry on, and after it; also for an overdue revocation list."""
    now = NOW
    tls = Tls(settings_of(tls_folder), lambda: now)
    day = timedelta(days=1)

    def warnings_after(time: timedelta) -> list[str]:
        nonlocal now
        now += time
        caplog.clear()
        tls.warn_of_expiry()
        tls.warn_of_expiry()
        return [record.getMessage() for record in caplog.records]

    assert warnings_after(0 * day) == []
    tls_folder.put("clients.crl", tls_folder.authority.revocation_list([], next_update=NOW + 90 * day))
    tls = Tls(settings_of(tls_folder), lambda: now)
    assert warnings_after(15 * day) == []
    (near,) = warnings_after(8 * day)
    assert "the TLS certificate expires on" in near
    assert warnings_after(day / 2) == []
    (past,) = warnings_after(10 * day)
    assert "the TLS certificate EXPIRED on" in past
    _, overdue = warnings_after(60 * day)
    assert "was due for replacement by" in overdue


def test_loopback_is_what_other_machines_cannot_reach() -> None:
    addresses = ("127.0.0.1:1", "127.8.8.8:1", "[::1]:1", "localhost:1")
    others = ("0.0.0.0:1", "[::]:1", "10.0.0.1:1", "localhost.example:1")
    assert [*filter(is_loopback, addresses + others)] == [*addresses]


def test_plain_text_beyond_loopback_is_allowed_in_words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without them it is refused: see tests/client/cli/transcripts/serve.txt."""
    flags = {"grpc": {"address": "0.0.0.0:0"}}
    assert load_settings({**flags, "insecure": True}).insecure
    monkeypatch.setenv("PURGATORY_INSECURE", "true")
    assert load_settings(flags).insecure


def test_tls_beyond_loopback_needs_a_policy_or_client_certificates(tmp_path: Path) -> None:
    tls = {"certificate_file": "server.crt", "key_file": "server.key"}
    flags = {"grpc": {"address": "0.0.0.0:0"}, "tls": tls}
    with pytest.raises(SettingsError, match=r"set access\.policy_file, or tls\.client_auth = .* to trust all callers"):
        load_settings(flags)
    (tmp_path / "policy.toml").touch()
    load_settings({**flags, "access": {"policy_file": str(tmp_path / "policy.toml")}})
    load_settings({**flags, "tls": {**tls, "client_auth": "required", "client_ca_file": "ca.crt"}})
    assert load_settings({**flags, "insecure": True}).tls.certificate_file


async def test_unusable_files_end_the_start(run_daemon: RunDaemon, tls_folder: TlsFolder) -> None:
    (tls_folder.folder / "server.key").unlink()
    reason = f"tls.key_file: cannot read {tls_folder.folder / 'server.key'}"
    with pytest.raises(CannotUseCertificates, match=re.escape(reason)):
        await run_daemon(*tls_folder.flags())
