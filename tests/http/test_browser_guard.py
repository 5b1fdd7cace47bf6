"""On loopback, pages of other sites get nothing, whichever way they come."""

from __future__ import annotations

import pytest

from purgatory.service.http.browser_guard import is_own_host
from tests.http.http_serving import SERVICE, serving_http


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
    """Programs, pages of the daemon itself, and what somebody types; no other pages, and no names of others, which may
    point to this machine for an attack. Who shows a token is no such page.
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
        ("example.com", False),
        ("localhost.example.com:80", False),
        ("127.0.0.1.example.com", False),
        ("", False),
        (":", False),
    ],
)
def test_local_names(host: str | None, is_local: bool) -> None:
    """Those that nobody else's name server can answer for."""
    assert is_own_host(host) == is_local
