"""The live page across restarts of its daemon, and with a daemon that requires a token."""

from pathlib import Path

import pytest
from playwright.sync_api import Browser
from purgatory_client.blocking import Client

from purgatory.service.access.tokens import add_token
from tests.kit.daemon import StartDaemon
from tests.page.many_waits import SESSION, WAITS, register_waits
from tests.page.page_calls import TOPIC_OF_ITS_OWN, call, register_one
from tests.page.watched_page import watched_page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

NOT_CONNECTED = "net::ERR_"
"""The browser itself reports connections that are refused or cut."""
NOT_LET_IN, GOING = "the server responded with a status of 40", "the server responded with a status of 503"
"""It also reports refused requests; 503 comes from a daemon that is shutting down."""

POLICY = """
[[grant]]
to = ["admin"]
roles = ["wait", "advance", "observe", "admin"]
topics = ["*"]
keys = ["*"]

[[grant]]
to = ["waiter"]
roles = ["wait"]
topics = ["*"]
"""


def test_a_restarted_daemon_is_noticed(browser: Browser, start_daemon: StartDaemon) -> None:
    """While a daemon is gone, the page names it in a banner and dims the last figures. Then it reconnects by itself and
    shows the state of the new daemon.
    """
    first = start_daemon()
    register_one(first, "before", 5)
    with watched_page(browser, first.http_address) as seen:
        seen.wait_for_text("#pending", "1")
        assert seen.page.locator("#banner").is_hidden()
        first.kill()
        seen.page.wait_for_selector('#state[data-state="away"]')
        seen.wait_for_text("#banner:not([hidden])", f"The daemon at {first.http_address} is unreachable.")
        assert float(seen.page.evaluate("() => getComputedStyle(document.querySelector('main')).opacity")) < 0.5
        second = start_daemon("--http-address", first.http_address)
        seen.wait_live()
        seen.page.wait_for_selector("#banner", state="hidden")
        seen.wait_for_text("#pending", "0")
        register_one(second, "after", 5)
        register_one(second, "after that", 5)
        seen.wait_for_text("#pending", "2")
        seen.check(NOT_CONNECTED)


def test_a_daemon_comes_back_with_its_journal(browser: Browser, start_daemon: StartDaemon, tmp_path: Path) -> None:
    """When a daemon is drained and started again, every view continues without a reload: pending operations are counted
    once, and the outcome of an operation that is open in a view appears there.
    """
    journal = ["--data-dir", str(tmp_path / "journal")]
    first = start_daemon(*journal, "--shutdown-grace-ms", "100")
    with Client(first.address) as client:
        register_waits(client)
    register_one(first, "followed", 300)
    with (
        watched_page(browser, first.http_address) as now,
        watched_page(browser, first.http_address, address="#/operation?session=followed&id=1") as operation,
        watched_page(browser, first.http_address, address="#/waits") as waits,
    ):
        now.wait_for_text("#pending", f"{WAITS + 1:,}")
        operation.wait_for_text(".lead", "It is pending.")
        waits.wait_for_text("#found", f"{WAITS + 1:,} operations wait on")
        assert first.stop() == 0
        for seen in (now, operation, waits):
            seen.page.wait_for_selector('#state[data-state="away"]')
        second = start_daemon(*journal, "--http-address", first.http_address)
        register_one(second, "after", 5)
        now.wait_for_text("#pending", f"{WAITS + 2:,}")
        waits.wait_for_text("#found", f"{WAITS + 2:,} operations wait on")
        operation.wait_live()
        operation.wait_for_text(".lead", "It is pending.")
        partition = {"topicPartition": {"topic": TOPIC_OF_ITS_OWN, "partition": 0}}
        call(second, "Advance", {"rows": {"events": [{**partition, "highWatermark": {"offset": 300}}]}})
        operation.wait_for_text("#outcome", "satisfied")
        now.view("#/sessions")
        now.wait_for_text("tbody th", SESSION)
        for seen in (now, operation, waits):
            seen.check(NOT_CONNECTED, GOING)


def test_a_cancel_without_an_answer_is_not_said_to_be_done(browser: Browser, start_daemon: StartDaemon) -> None:
    """If the daemon is gone when a cancellation is confirmed, the page reports the failure and throws no error."""
    daemon = start_daemon()
    register_one(daemon, "before", 5)
    with watched_page(browser, daemon.http_address, address="#/operation?session=before&id=1") as seen:
        seen.page.get_by_role("button", name="Cancel this operation …").click()
        daemon.kill()
        seen.page.get_by_role("button", name="Cancel this operation", exact=True).click()
        seen.wait_for_text("main .notice", "The daemon did not answer")
        seen.check(NOT_CONNECTED)


def test_a_daemon_with_a_policy_asks_for_a_token(browser: Browser, start_daemon: StartDaemon, tmp_path: Path) -> None:
    """The page asks again after a wrong token. With the right one it shows everything, keeps the token across a reload
    but not in the address, names the role that another token lacks, and asks again when the token is revoked.
    """
    (tmp_path / "policy.toml").write_text(POLICY, "utf-8")
    tokens = tmp_path / "tokens"
    tokens.touch()
    admin, waiter = add_token(tokens, "admin"), add_token(tokens, "waiter")
    flags = ["--access-policy-file", str(tmp_path / "policy.toml"), "--access-tokens-file", str(tokens)]
    daemon = start_daemon(*flags)
    with watched_page(browser, daemon.http_address, is_let_in=False) as seen:

        def show(token: str) -> None:
            seen.page.wait_for_selector("#token[open]")
            seen.page.get_by_label("Token").fill(token)
            seen.page.keyboard.press("Enter")

        seen.wait_for_text("#token-why", "show a bearer token")
        seen.page.keyboard.press("Escape")
        for view in ("waits", "now"):  # the dialog stays closed, although more requests are refused
            seen.page.evaluate("() => { document.querySelector('#banner-text').textContent = ''; }")
            seen.view(f"#/{view}")
            seen.wait_for_text("#banner:not([hidden])", "Not signed in: show a bearer token")
            assert not seen.page.locator("#token[open]").count()
        assert seen.page.inner_text("#state") == "not signed in"
        seen.page.get_by_role("button", name="Sign in …").click()
        show("pgt_wrong")
        seen.wait_for_text("#token-why", "the token is not known")
        show(admin)
        seen.wait_live()
        assert seen.page.locator("#banner").is_hidden()
        seen.wait_for_text("#pending", "0")
        seen.page.reload()
        seen.wait_live()
        for view in ("wheel", "waits", "partitions", "sessions", "ends"):
            seen.view(f"#/{view}")
            seen.page.wait_for_selector(f'nav a[href="#/{view}"][aria-current]')
            seen.wait_live()
        assert not seen.page.locator("#token[open]").count()
        assert not [address for address in (seen.page.url, *seen.requests) if admin in address]

        tokens.write_text("".join(line for line in tokens.read_text("utf-8").splitlines(True) if "waiter" in line))
        show(waiter)
        seen.wait_live()  # the caller's own operations are shown, but no marks
        seen.view("#/partitions")
        seen.wait_for_text("main .notice", "needs the role")
        assert seen.page.get_attribute("#state", "data-state") == "refused"
        seen.check(NOT_LET_IN)
