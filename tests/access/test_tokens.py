"""Bearer tokens: their principals and expiry, refusals that reveal nothing else, and the commands for access files.

Files named in settings must be regular files, or links to regular files.
"""

import asyncio
import codecs
import contextlib
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import grpc
import pytest

from purgatory.extensions.webhooks.signing import CannotSendWebhooks, WebhookSigner
from purgatory.extensions.webhooks.webhooks import WebhooksSettings, _ssl_context
from purgatory.service.access.access_policy import read_policy
from purgatory.service.access.json_web_tokens import JsonWebTokens
from purgatory.service.access.tokens import HEAD, PREFIX, AccessError, TokensError, add_token, hash_of, read_tokens
from purgatory.service.setting_sources import SettingsError, load_settings
from purgatory.service.settings import HostSettings, SessionSettings, TlsSettings
from purgatory.service.transport.certificate_files import CannotUseCertificates, read_tls_material
from purgatory.service.transport.watched_file import read_regular_file
from purgatory.v1 import purgatory_service_pb2 as wire
from tests.access.guarded import POLICY, guarding
from tests.kit.eventually import PATIENCE_S
from tests.kit.programs import policy_command, token_command
from tests.kit.recorded import assert_recorded, cases_of
from tests.kit.served_host import refused

UNAUTHENTICATED = grpc.StatusCode.UNAUTHENTICATED
LINES = Path(__file__).with_name("token_lines.txt")


async def test_a_token_is_kept_as_a_hash_only(tmp_path: Path) -> None:
    token = add_token(tmp_path / "tokens", "ann")
    assert stat.S_IMODE((tmp_path / "tokens").stat().st_mode) == 0o600
    content = (tmp_path / "tokens").read_text()
    assert token.startswith(PREFIX)
    assert len(token) >= len(PREFIX) + 43
    assert token[len(PREFIX) :] not in content
    known = read_tokens(tmp_path / "tokens")[hash_of(token)]
    assert (known.principal, known.expires_s) == ("ann", float("inf"))
    assert abs(known.created_s - time.time()) < 3_600


@pytest.mark.parametrize("name", ["", " ", "a b", "a*", "#a", "a\nb", "x" * 257, "\x1b[31m"])
def test_names_that_no_principal_can_have(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="a principal must have"):
        add_token(tmp_path / "tokens", name)
    assert not (tmp_path / "tokens").exists()


def test_a_file_of_tokens_is_read_line_by_line(tmp_path: Path) -> None:
    """As in token_lines.txt. An invalid line is reported by its number and not quoted; nothing is appended to such a
    file.
    """
    path = tmp_path / "tokens"

    def reason(line: str) -> str:
        content = f"# a comment\n\n{codecs.decode(line, 'unicode_escape')}\n"
        path.write_text(content, "utf-8")
        for use in (read_tokens, lambda path: add_token(path, "ann")):
            with pytest.raises(TokensError) as refused:
                use(path)
        assert path.read_text("utf-8") == content
        return str(refused.value).replace(str(path), "tokens")

    assert_recorded(LINES, map(reason, cases_of(LINES)))


def test_a_token_follows_a_line_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    add_token(path, "one")
    path.write_text(path.read_text("utf-8").rstrip("\n"), "utf-8")
    add_token(path, "two")
    assert [token.principal for token in read_tokens(path).values()] == ["one", "two"]


async def test_only_valid_tokens_are_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with guarding(tmp_path) as served:
        good = add_token(served.tokens_file, "root")
        expired = add_token(served.tokens_file, "root", int(time.time()) - 1)
        later = add_token(served.tokens_file, "root", int(time.time()) + 3_600)
        served.access.reload()
        for token in (good, later):
            await served.asks(f"Bearer {token}")
            await served.asks(f"bearer {token}")
        unknown = PREFIX + "x" * 43
        refusals = {
            None: "show a bearer token or a client certificate",
            f"Bearer {expired}": "the token has expired",
            f"Bearer {unknown}": "the token is not known",
            f"Bearer {good}x": "the token is not known",
            f"Bearer {good[:-1]}": "the token is not known",
            f"Bearer  {good}": "the token is not known",
            "Bearer a.b.c": "the token is not known",
            "Bearer": "the authorization is not a bearer token",
            "Bearer ": "the authorization is not a bearer token",
            good: "the authorization is not a bearer token",
            f"Basic {good}": "the authorization is not a bearer token",
        }
        for authorization, said in refusals.items():
            with refused(UNAUTHENTICATED, re.escape(said)) as error:
                await served.asks(authorization)
            assert error.value.details() == said
        assert served.audit.refusals["unauthenticated"] == len(refusals)
        secrets = [good, expired, later, unknown]
        assert not [one for one in secrets if one in caplog.text or hash_of(one) in caplog.text]


async def test_an_empty_file_revokes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A file whose last token was deleted, but which still has its comment, revokes all of them."""
    async with guarding(tmp_path) as served:
        token = add_token(served.tokens_file, "root")
        served.access.reload()
        for count, empty in enumerate(("", "\n \n"), 1):
            served.tokens_file.write_text(empty, "utf-8")
            served.access.reload()
            assert served.audit.reloads["tokens", "refused"] == count
            await served.asks(f"Bearer {token}")
        assert "is empty" in caplog.text
        served.tokens_file.write_text(HEAD, "utf-8")
        served.access.reload()
        with refused(UNAUTHENTICATED):
            await served.asks(f"Bearer {token}")


@pytest.mark.parametrize(("becomes", "code"), [("", UNAUTHENTICATED), (" advance ", grpc.StatusCode.PERMISSION_DENIED)])
async def test_token_that_is_no_longer_the_callers_ends_streams(
    tmp_path: Path, becomes: str, code: grpc.StatusCode
) -> None:
    """At their next message, and silent ones soon after. The next owner may advance, but not wait."""
    often = HostSettings(session=SessionSettings(heartbeat_interval_ms=800))
    async with guarding(tmp_path, host_settings=often) as served, served.caller("root") as caller:
        streams = [caller.stream("Session"), caller.stream("Session"), caller.stream("AdvanceStream")]
        for number, stream in enumerate(streams[:2]):
            await stream.write(wire.SessionRequest(open=wire.OpenSession(session_id=f"s{number}")))
        await streams[2].write(wire.AdvanceStreamRequest(rows={}))
        for stream, field in zip(streams, ("opened", "opened", "receipt"), strict=True):
            assert (await stream.read()).HasField(field)
        tokens = served.tokens_file.read_text("utf-8")
        served.tokens_file.write_text(tokens.replace(" root ", becomes) if becomes else HEAD, "utf-8")
        served.access.reload()
        await streams[0].write(wire.SessionRequest(heartbeat=wire.Heartbeat()))
        await streams[2].write(wire.AdvanceStreamRequest(rows={}))
        codes = [await asyncio.wait_for(stream.code(), PATIENCE_S) for stream in streams]
        assert codes == [code, code, UNAUTHENTICATED]
        assert served.host.sessions.count == 2, "the sessions wait for their owner to come back"


@pytest.mark.parametrize("policy", ['loopback_principal = "root"', ""])
async def test_caller_without_credential_on_loopback_is_its_principal_or_refused(tmp_path: Path, policy: str) -> None:
    grants = '[[grant]]\nto = ["root"]\nroles = ["observe"]\ntopics = ["*"]\n'
    async with guarding(tmp_path, f"{policy}\n{grants}") as served:
        with contextlib.nullcontext() if policy else refused(UNAUTHENTICATED):
            await served.asks(None)
        with refused(UNAUTHENTICATED, "not known"):
            await served.asks("Bearer nonsense")


def test_a_token_is_shown_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is the only output on stdout, so that it can be redirected into a file."""
    tokens = ["--tokens", str(tmp_path / "tokens")]
    assert token_command(["new", "ann", *tokens, "--expires", "90d"]) == 0
    shown = capsys.readouterr()
    token = shown.out.strip()
    known = read_tokens(tmp_path / "tokens")[hash_of(token)]
    assert known.principal == "ann"
    assert 0 <= time.time() + 90 * 86_400 - known.expires_s < 60
    assert token not in shown.err
    assert token_command(["list", *tokens]) == 0
    listed = capsys.readouterr().out
    assert listed.startswith("ann  ")
    assert token not in listed


@pytest.mark.parametrize("expires", ["90", "90s", "d", "-1d", "1.5h", "", "\u0663d", "9" * 23 + "d"])
def test_token_with_an_invalid_expiry_is_not_made(tmp_path: Path, expires: str) -> None:
    assert token_command(["new", "ann", "--tokens", str(tmp_path / "tokens"), f"--expires={expires}"]) == 2
    assert not (tmp_path / "tokens").exists()


def test_bad_name_or_file_of_tokens_is_one_line_and_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert token_command(["new", "a b", "--tokens", str(tmp_path / "tokens")]) == 2
    assert token_command(["list", "--tokens", str(tmp_path / "absent")]) == 2
    assert token_command(["new", "ann", "--tokens", str(tmp_path / "no" / "folder")]) == 2
    said = capsys.readouterr()
    assert not said.out
    assert [line.partition(":")[0] for line in said.err.splitlines()] == ["purgatory token"] * 3


def test_policy_check_answers_as_the_daemon_would_decide(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(POLICY, "utf-8")
    assert policy_command(["check", str(path)]) == 0
    asked = ["check", str(path), "--as", "advance", "--may", "advance"]
    assert (policy_command([*asked, "mine-3"]), policy_command([*asked, "yours-3"])) == (0, 1)
    assert (policy_command([*asked, "mine/x", "--key"]), policy_command([*asked, "mine/x"])) == (0, 1)
    assert policy_command(["check", str(path), "--as", "nobody", "--may", "wait", "mine-3"]) == 1
    assert policy_command(["check", str(path), "--as", "advance"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1:6] == ["yes", "no", "yes", "no", "no"]
    assert "advance  topics: mine-*  keys: mine/*" in out
    assert out.splitlines()[-1] == "shares   as for all"
    path.write_text(f"{POLICY}\n[principals.advance.shares]\ntimes_free = 0\nsessions_max = 9\n", "utf-8")
    assert policy_command(["check", str(path), "--as", "advance"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "shares   times_free = 0, sessions_max = 9"


def test_policy_check_prints_each_fault_with_its_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('[[grant]]\nto = ["a"]\nroles = ["x"]\ntopics = ["t"]\n[[grant]]\nroles = ["wait"]\n', "utf-8")
    assert policy_command(["check", str(path)]) == 2
    faults = capsys.readouterr().err.splitlines()
    assert ["grant 1, roles 1" in faults[0], "grant 2, to" in faults[1]] == [True, True]
    path.write_text(f"x = {'9' * 5_000}", "utf-8")
    assert policy_command(["check", str(path)]) == 2
    assert policy_command(["check", str(path), "--may", "wait", "x"]) == 2
    assert policy_command(["check", str(path), "--as", "a", "--may", "rule", "x"]) == 2


READERS: dict[str, tuple[Callable[[Path], object], type[Exception]]] = {
    "policy": (read_policy, AccessError),
    "tokens": (read_tokens, AccessError),
    "key set": (lambda path: asyncio.run(JsonWebTokens(str(path), "issuer", "audience", "sub").load()), AccessError),
    "certificate": (
        lambda path: read_tls_material(TlsSettings(certificate_file=path, key_file=path), datetime.now(UTC)),
        CannotUseCertificates,
    ),
    "webhook secrets": (WebhookSigner.from_file, CannotSendWebhooks),
    "webhook authorities": (
        lambda path: _ssl_context(WebhooksSettings(allowed_hosts="a", secret_file=path, ca_file=path)),
        CannotSendWebhooks,
    ),
    "settings": (lambda path: load_settings({"config": str(path)}), SettingsError),
}


@pytest.fixture(params=["FIFO", "device", "folder"])
def no_regular_file(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / "file"
    if request.param == "FIFO":
        os.mkfifo(path)
        # If the FIFO is opened after all, the reader gets data, so that the test fails instead of hanging.
        threading.Thread(target=path.write_text, args=("x",), daemon=True).start()
    elif request.param == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_refused(reader: str, no_regular_file: Path) -> None:
    read, error = READERS[reader]
    with pytest.raises(error, match="not a regular file"):
        read(no_regular_file)


def test_links_to_a_regular_file_are_followed(tmp_path: Path) -> None:
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "key").write_bytes(b"content")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "key").symlink_to("..data/key")
    assert read_regular_file(tmp_path / "key") == b"content"
