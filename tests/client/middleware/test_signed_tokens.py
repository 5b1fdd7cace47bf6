"""Signed tokens in real web servers: made with a key, verified with each, and forged, replayed and foreign ones."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from purgatory_client import AsyncClient
from purgatory_client.errors import InvalidRequest
from purgatory_client.middleware.signing import sign, verified
from purgatory_client.sources.position_tokens import Positions

from tests.client.middleware.test_middleware import HEADER, MARK, App, both, visiting

OLD, NEW, FOREIGN = "old key of this shop", b"new key of this shop", "key of another shop"
KEYS = (OLD.encode(), NEW)
PLAIN = Positions({MARK: 1}).token


@both
async def test_only_tokens_of_the_present_keys_are_accepted(app: App, client: AsyncClient) -> None:
    """The first key signs. A key that is no longer listed makes a token as foreign as any other."""
    await client.advance(MARK, high_watermark=1)
    made = {}
    for key in (OLD, NEW, FOREIGN):
        async with visiting(app, client.address, keys=[key]) as visit:
            made[key] = (await visit("POST", "/write?offset=1")).headers[HEADER]
    assert len(set(made.values())) == 3
    async with visiting(app, client.address, keys=[NEW, OLD]) as visit:
        for token in (made[OLD], made[NEW], f"{made[OLD]}, {made[NEW]}"):
            assert (await visit("GET", "/read", token)).status == 200
            assert (await visit("GET", "/read", token)).status == 200  # a replayed one
        assert (await visit("POST", "/write?offset=1")).headers[HEADER] == made[NEW]
        for token in (made[FOREIGN], PLAIN, f"{made[NEW]},{PLAIN}", made[NEW].replace("at1.", "at2.")):
            refused = await visit("GET", "/read", token)
            assert (refused.status, "not signed with a key" in json.loads(refused.body)["detail"]) == (400, True)
    async with visiting(app, client.address) as visit:
        refused = await visit("GET", "/read", made[NEW])
        assert (refused.status, "`keys`" in json.loads(refused.body)["detail"]) == (400, True)


@given(st.sampled_from(KEYS), st.data())
def test_no_changed_token_is_verified(key: bytes, data: st.DataObject) -> None:
    signed = sign(PLAIN, (key,))
    assert verified(signed, KEYS) == PLAIN
    at = data.draw(st.integers(0, len(signed) - 1))
    put = data.draw(st.sampled_from(["", "A", ".", "-", "é", signed[at] * 2]).filter(lambda put: put != signed[at]))
    with pytest.raises(InvalidRequest):
        verified(signed[:at] + put + signed[at + 1 :], KEYS)
