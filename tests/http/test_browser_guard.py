"""On loopback, pages of other sites are refused, whichever way they send requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from purgatory.service.access.tokens import add_token
from purgatory.service.http.site import is_own_host
from tests.http.http_serving import SERVICE, serving_http
from tests.http.raw_http import RawConnection, request
from tests.kit.daemon import DaemonProcess, ServeDaemon


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Host": "localhost"}, 200),
        ({"Host": "evil.example"}, 421),
        ({"Host": "LOCALHOST"}, 200),
        ({"Host": "evil.example", "Authorization": "Bearer x"}, 421),
        ({"Host": "evil.example", "Authorization": ""}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "localhost:1", "Origin": "http://localhost:1"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Sec-Fetch-Site": "none"}, 200),
    ],
)
async def test_who_may_ask(headers: dict[str, str], status: int) -> None:
    """Programs, pages of the daemon itself and typed addresses are served. Pages of other sites are refused, and so are
    other host names, which an attacker may have pointed to this machine. A token that is not verified makes no
    difference.
    """
    sent = {"content-type": "application/json", **headers}
    async with serving_http() as caller:
        async with caller.client.post(f"{SERVICE}/GetStatus", data=b"{}", headers=sent) as response:
            assert response.status == status
        async with caller.client.get("/v1/watch", headers=headers) as response:
            assert response.status == status


@pytest.mark.parametrize(
    ("host", "is_local"),
    [
        ("localhost", True),
        ("localhost:7441", True),
        ("app.localhost:7441", True),
        ("127.0.0.1", True),
        ("127.0.0.1:7441", True),
        ("[::1]:7441", True),
        ("[::1]", True),
        (None, True),
        ("LocalHost:7441", True),
        ("purgatory.example.org:7441", True),
        ("Purgatory.Example.org", True),
        ("a.b.example.net", True),
        ("example.net", False),
        ("badexample.net", False),
        ("example.com", False),
        ("localhost.example.com:80", False),
        ("127.0.0.1.example.com", False),
        ("", False),
        (":", False),
    ],
)
def test_own_names(host: str | None, is_local: bool) -> None:
    """Names that no foreign name server can resolve, and the names in the settings."""
    assert is_own_host(host, ["purgatory.example.org", "*.example.net"]) == is_local


POLICY = """
[[grant]]
to = ["caller"]
roles = ["observe", "wait"]
topics = ["*"]
"""


@pytest.mark.parametrize("is_insecure", [False, True])
def test_a_token_counts_where_a_policy_verifies_it(
    serve_daemon: ServeDaemon, tmp_path: Path, is_insecure: bool
) -> None:
    """With a wrong Host header, a call with a valid token is served. A page is served with a token only if pages
    require tokens, which they do not on loopback. A wrong token is refused.
    """
    (tmp_path / "policy.toml").write_text(POLICY)
    token = add_token(tmp_path / "tokens", "caller")
    access = ("--access-policy-file", tmp_path / "policy.toml", "--access-tokens-file", tmp_path / "tokens")
    public = ("--http-address", "127.1:0", "--insecure") if is_insecure else ()
    daemon = serve_daemon(*map(str, access), *public)
    call, headers = f"{SERVICE}/GetStatus", {"content-type": "application/json"}
    for host, authorization, path, status in [
        ("localhost", f"Bearer {token}", call, 200),
        ("evil.example", f"Bearer {token}", call, 200),
        ("evil.example", "Bearer wrong", call, 401),
        ("evil.example", None, call, 421),
        ("evil.example", f"Bearer {token}", "/metrics", 200 if is_insecure else 421),
        ("evil.example", "", "/metrics", 401 if is_insecure else 421),
        ("evil.example", None, "/healthz", 200),
    ]:
        given = headers | {"host": host} | ({} if authorization is None else {"authorization": authorization})
        is_call = path == call
        with RawConnection(daemon.http_address.replace("127.1:", "127.0.0.1:")) as connection:
            connection.send(request("POST" if is_call else "GET", path, given, b"{}" if is_call else None))
            assert connection.answer().status == status, (host, authorization, path)


def test_names_of_the_daemon_behind_a_proxy(serve_daemon: ServeDaemon) -> None:
    """Without TLS the guard also applies to a public address. `http.allowed_hosts` allows names in the Host header and
    in the Origin header of a page.
    """
    daemon = serve_daemon(
        "--http-address", "127.1:0", "--insecure", "--http-allowed-hosts", "purgatory.example.org *.internal"
    )
    for headers, status in [
        ({"host": "evil.example"}, 421),
        ({"host": "evil.example", "authorization": "Bearer x"}, 421),
        ({"host": "purgatory.example.org"}, 200),
        ({"host": "a.internal:80"}, 200),
        ({"host": "127.0.0.1:7441", "origin": "https://purgatory.example.org"}, 200),
        ({"host": "127.0.0.1:7441", "origin": "https://evil.example"}, 403),
        ({"host": "a.internal", "origin": "http://localhost"}, 403),
    ]:
        with RawConnection(daemon.http_address.replace("127.1:", "127.0.0.1:")) as connection:
            connection.send(request("GET", "/", headers))
            assert connection.answer().status == status, headers


@pytest.mark.parametrize(
    "headers",
    [b"Sec-Fetch-Site: Cross-Site", b"Sec-Fetch-Site: same-origin\r\nSec-Fetch-Site: same-site",
     b"Origin: http://localhost\r\nOrigin: http://evil.example"],
)  # fmt: skip
def test_foreign_page_is_refused_by_any_of_its_headers(shared_daemon: DaemonProcess, headers: bytes) -> None:
    """However the browser spells it, and also if the first header of that name is harmless."""
    with RawConnection(shared_daemon.http_address) as connection:
        connection.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n\r\n")
        assert connection.answer().status == 403
