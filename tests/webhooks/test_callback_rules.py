"""Which URLs are allowed as callbacks, and which addresses may be connected to; signatures with every current secret,
unusable files of secrets, and access to dead letters.
"""

import base64
import codecs
import hmac
import ipaddress
import string
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from purgatory.extensions.webhooks.callback_rules import CallbackNotAllowed, CallbackRules
from purgatory.extensions.webhooks.signing import CannotSendWebhooks, WebhookSigner, body_of
from purgatory.service.access.account import Account
from purgatory.service.access.roles import ALL, WAIT, Grants, Names
from purgatory.service.rpc.call import Call
from purgatory.v1 import result_pb2, webhook_pb2
from tests.kit.recorded import assert_recorded, cases_of
from tests.kit.served_host import all_methods, serving

URLS = Path(__file__).with_name("urls.txt")


def rules(*hosts: str, allow_http: bool = True, allow_private: bool = False) -> CallbackRules:
    return CallbackRules(hosts, allow_http=allow_http, allow_private=allow_private)


def test_urls_and_addresses_are_allowed_or_refused_as_recorded() -> None:
    """As in urls.txt. An address that is not public is refused where private ones are not allowed."""

    def answer(case: str) -> str:
        entry, _, url = codecs.decode(case, "unicode_escape").partition(" ")
        try:
            if entry == "address":
                return f"allowed: {rules().allowed_addresses('a.example', url.split())}"
            return f"allowed: {' '.join(map(str, rules(entry).check_url(url)))}"
        except CallbackNotAllowed as refused:
            return str(refused)

    assert_recorded(URLS, map(answer, cases_of(URLS)))


def test_http_and_private_addresses_are_refused_unless_allowed() -> None:
    with pytest.raises(CallbackNotAllowed, match="allow_http"):
        rules("a.example", allow_http=False).check_url("http://a.example/")
    assert rules(allow_private=True).allowed_addresses("a.example", ["127.0.0.1"]) == ["127.0.0.1"]


@given(st.ip_addresses(v=4))
def test_no_disguise_makes_an_address_public(address: ipaddress.IPv4Address) -> None:
    number = int(address)
    disguises = [
        str(address),
        f"::ffff:{address}",
        str(ipaddress.IPv6Address(int(ipaddress.IPv6Address("64:ff9b::")) | number)),
        str(ipaddress.IPv6Address(int(ipaddress.IPv6Address("2002::")) | number << 80)),
    ]
    assert len({_is_allowed(one) for one in disguises}) == 1


def _is_allowed(address: str) -> bool:
    try:
        return bool(rules().allowed_addresses("a.example", [address]))
    except CallbackNotAllowed:
        return False


NOW = datetime(2026, 11, 25, 12, tzinfo=UTC)
OLD, NEW, OTHER = ("whsec_" + base64.b64encode(bytes([number]) * 24).decode() for number in (1, 2, 3))


def test_each_secret_in_force_signs(tmp_path: Path) -> None:
    """While a secret is being replaced, a receiver that knows either one accepts the webhook. A receiver that knows
    neither rejects it, and every receiver rejects a modified body.
    """
    path = tmp_path / "secrets"
    path.write_text(f"{OLD}\n{NEW}\n", "utf-8")
    body = body_of("söme", result_pb2.Result(operation_id=2**64 - 1, outcome=result_pb2.OUTCOME_EXPIRED))
    headers = {name.decode(): value.decode() for name, value in WebhookSigner.from_file(path).headers("id.7", body)}
    for secret in (OLD, NEW):
        told = Webhook(secret).verify(body, headers)
        assert told["data"] == {
            "sessionId": "söme",
            "result": {"operationId": str(2**64 - 1), "outcome": "OUTCOME_EXPIRED"},
        }
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body + " ", headers)
    with pytest.raises(WebhookVerificationError):
        Webhook(OTHER).verify(body, headers)


@pytest.mark.parametrize(
    "content", ["", "\n", "secret", "whsec_", "whsec_c2hvcnQ=", f"{OLD}\nwhsec_!!!", "whsec_ab\xff"]
)
def test_file_without_usable_secrets_is_refused_and_not_shown(tmp_path: Path, content: str) -> None:
    with pytest.raises(CannotSendWebhooks, match="nowhere"):
        WebhookSigner.from_file(tmp_path / "nowhere")
    path = tmp_path / "secrets"
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(CannotSendWebhooks, match=r"webhooks\.secret_file") as raised:
        WebhookSigner.from_file(path)
    assert "c2hvcnQ" not in str(raised.value)


@given(
    st.binary(max_size=40).map(lambda key: base64.b64encode(key).decode())
    | st.binary(max_size=40).map(lambda key: base64.urlsafe_b64encode(key).decode())
    | st.text(string.ascii_letters + string.digits + "+/-_=.*", max_size=50),
    st.integers(0, 3),
)
@example("A" * 40 + "_", 0)
@example("_" * 43, 0)
@example("-" * 4 + "A" * 40, 0)
@example("A" * 41 + "B", 0)
@example("A" * 20 + "==" + "A" * 20, 0)
def test_a_secret_means_one_key_or_is_refused(text: str, cut: int) -> None:
    """A secret that is accepted, padded or not, signs with the key from strict decoding, which is also the key that the
    receivers' package computes from the same text.
    """
    secret = "whsec_" + text[: len(text) - cut]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "secrets"
        path.write_text(secret, "utf-8")
        try:
            headers = dict(WebhookSigner.from_file(path).headers("id", "{}", NOW))
        except CannotSendWebhooks:
            return
    encoded = secret.removeprefix("whsec_")
    key = base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True)
    assert len(key) >= 24
    signed = f"id.{int(NOW.timestamp())}.{{}}".encode()
    expected = "v1," + base64.b64encode(hmac.digest(key, signed, "sha256")).decode()
    assert headers[b"webhook-signature"].decode() == expected == Webhook(secret).sign("id", NOW, "{}")


@pytest.mark.parametrize("count", [24, 25, 26, 32])
def test_secrets_of_any_random_bytes(tmp_path: Path, count: int) -> None:
    """In the standard alphabet they are accepted, with or without padding. In the URL-safe alphabet the same bytes are
    refused if their text differs.
    """
    path = tmp_path / "secrets"
    key = bytes(range(255, 255 - count, -1))
    standard, of_urls = base64.b64encode(key).decode(), base64.urlsafe_b64encode(key).decode()
    for text in (standard, standard.rstrip("=")):
        path.write_text("whsec_" + text, "utf-8")
        WebhookSigner.from_file(path)
    for text in (of_urls, of_urls.rstrip("=")):
        path.write_text("whsec_" + text, "utf-8")
        with pytest.raises(CannotSendWebhooks, match="receivers cannot read - and _"):
            WebhookSigner.from_file(path)


async def test_letters_are_their_principals_and_the_admins() -> None:
    """Only the owner and the role admin on everything may list, resend or delete letters. Pages continue where they
    ended.
    """
    async with serving() as served:
        methods: Any = all_methods(served.host)
        webhooks: Any = methods["ListDeadLetters"].__self__.callbacks
        for number in range(3):
            for whose in ("me", "you"):
                webhooks.letters.add(webhook_pb2.DeadLetter(webhook_id=f"{whose}.{number}", principal=whose))
        own = Grants({WAIT: Names(["*"])}, {WAIT: Names(["*"])})
        for principal, grants, seen in (("me", own, 3), ("you", own, 3), ("they", own, 0), ("root", ALL, 5)):
            account = Account(principal, served.host.sessions.accounts, grants)
            call = Call(mock.Mock(), account)
            request, found = webhook_pb2.ListDeadLettersRequest(page_size=2), list[str]()
            while True:
                page = await methods["ListDeadLetters"](request, call)
                assert len(page.dead_letters) <= 2
                found.extend(letter.webhook_id for letter in page.dead_letters)
                request.page_token = page.next_page_token
                if not request.page_token:
                    break
            assert len(found) == len(set(found)) == seen
            assert principal == "root" or all(one.startswith(principal) for one in found)
            mine = webhook_pb2.ResendDeadLettersRequest(webhook_ids=["me.1"])
            assert (await methods["ResendDeadLetters"](mine, call)).resent == (principal in ("me", "root"))
            theirs = webhook_pb2.DeleteDeadLettersRequest(webhook_ids=["you.2", "me.2" if principal == "root" else "x"])
            deleted = await methods["DeleteDeadLetters"](theirs, call)
            assert deleted.deleted == {"me": 0, "you": 1, "they": 0, "root": 1}[principal]
            assert "you.2" in deleted.unknown_webhook_ids or principal == "you"
        await webhooks.stop(0.0)
