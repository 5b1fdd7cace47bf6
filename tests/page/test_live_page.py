"""The live page in a real browser: operations and names, churn, daemons that restart or require a token."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from purgatory_client.blocking import Client

from purgatory.service.access.tokens import add_token
from tests.kit.daemon import DaemonProcess, StartDaemon, access_flags
from tests.page.page_kit import (
    HOSTILE_KEY,
    HOSTILE_TOPIC,
    SESSION,
    TOPIC_OF_ITS_OWN,
    WAITS,
    call,
    register,
    register_one,
    register_waits,
    report,
    signal_key,
    size_of,
    watched_page,
)

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

WIRE_BYTES_MAX = 200_000
HOSTILE_SESSION = "<b>\u202e\x1b]0;owned\x07"


def test_an_operation_is_followed_to_its_end(browser: Browser, daemon: DaemonProcess) -> None:
    register_one(daemon, "followed", 300)
    report(daemon, 120)
    with watched_page(browser, daemon.http_address, address="#/operation?session=followed&id=1") as seen:
        seen.wait_for_text("tbody", "300")
        seen.wait_for_text("tbody", "120")
        seen.wait_for_text(".lead", "It is pending.")
        report(daemon, 300)
        seen.wait_for_text("#outcome", "satisfied")
        seen.check()


def test_composite_is_a_tree_of_what_each_term_has_reached(browser: Browser, daemon: DaemonProcess) -> None:
    partition, keys = {"topic": TOPIC_OF_ITS_OWN, "partition": 7}, [HOSTILE_KEY, "tree/failed"]
    items = {"itemCount": [4], "itemIndex": [0, 0, 1, 2], "offset": [20, 900, 1, 1]}
    register(
        daemon, "tree", "COMPOSITE", partitions=[partition], keys=keys, requiredTerms=[2], unlessCount=[1], **items
    )
    with watched_page(browser, daemon.http_address, address="#/operation?session=tree&id=1") as seen:
        seen.wait_for_text("#terms", "Satisfied when 2 of 3 are true")
        report(daemon, 20, partition=7)
        seen.wait_for_text("#terms li.good", f"{TOPIC_OF_ITS_OWN}-7: 20 of 20")
        arms = seen.page.locator("#terms > li")
        assert [arms.nth(place).locator("li").count() for place in range(arms.count())] == [3, 1]
        assert seen.page.locator("tbody tr:not([hidden])").count() == 4
        signal_key(daemon, "tree/failed")
        seen.wait_for_text("#outcome", "failed")
        seen.wait_for_text("#terms li.bad", "tree/failed: 1 of 1")
        assert seen.page.locator("main img").count() == 0
        assert seen.sticking_out() == []
        seen.check()


def test_large_composite_shows_the_first_terms_of_both_arms(browser: Browser, daemon: DaemonProcess) -> None:
    partition = {"topic": TOPIC_OF_ITS_OWN, "partition": 8}
    register(daemon, "large tree", "COMPOSITE", partitions=[partition], itemCount=[151], offset=[900], unlessCount=[1])
    with watched_page(browser, daemon.http_address, address="#/operation?session=large%20tree&id=1") as seen:
        seen.wait_for_text("#terms", "Satisfied when 150 of 150 are true")
        last = seen.page.locator("#terms > li li:last-child")
        assert last.all_inner_texts() == ["and 50 more", "and 1 more"]
        seen.check()


def test_a_partition_says_who_holds_it_back(browser: Browser, daemon: DaemonProcess) -> None:
    with watched_page(browser, daemon.http_address, address="#/partition?topic=orders&partition=2") as seen:
        seen.wait_for_text("#held", "held back by replica 3")
        seen.wait_for_text("tbody", SESSION)
        assert seen.page.locator("svg.chart path.curve").get_attribute("d")
        seen.check()


def test_operation_is_cancelled_after_a_confirmation_only(browser: Browser, daemon: DaemonProcess) -> None:
    register_one(daemon, "regretted", 900)
    with watched_page(browser, daemon.http_address, address="#/operation?session=regretted&id=1") as seen:
        cancel = seen.page.get_by_role("button", name="Cancel this operation …")
        cancel.click()
        seen.page.get_by_role("button", name="Keep waiting").click()
        assert call(daemon, "GetOperation", {"sessionId": "regretted", "operationId": 1})
        cancel.click()
        seen.page.get_by_role("button", name="Cancel this operation", exact=True).click()
        seen.wait_for_text("#outcome", "cancelled")
        seen.check()


def test_hostile_names_are_only_text(browser: Browser, daemon: DaemonProcess) -> None:
    """HTML remains text; invisible characters and changes of text direction are shown as their code."""
    with watched_page(browser, daemon.http_address, address="#/waits") as seen:
        seen.page.fill("#find", HOSTILE_TOPIC[:20])
        seen.wait_for_text("#hot tbody", HOSTILE_TOPIC[:20])
        seen.page.fill("#find", HOSTILE_KEY[:20])
        seen.wait_for_text("#hot tbody", "<img src=")
        shown = seen.page.text_content("#hot tbody th a")
        assert shown is not None
        assert shown.startswith("<img src=")
        assert "\\u{202e}\\u{7}\\u{1b}[31mred\\u{200b}" in shown
        seen.page.locator("#hot tbody th a").first.click()
        seen.wait_for_text("h1", "<img src=")
        seen.wait_for_text("tbody", SESSION)
        seen.view("#/partitions")
        seen.wait_for_text("tbody", "\\u{2066}")
        assert seen.page.locator("main img, main script").count() == 0
        seen.check()


def test_hostile_sessions_are_only_text(browser: Browser, daemon: DaemonProcess) -> None:
    """The same for the id of a session and the names of its operation: in lists, on its own view, in the title, in the
    confirmation of a cancellation, and after it has ended.
    """
    register(daemon, HOSTILE_SESSION, "SIGNAL", (1, 2), keys=[HOSTILE_KEY + HOSTILE_SESSION])
    shown = "<b>\\u{202e}\\u{1b}]0;owned\\u{7}"
    key_view = f"#/key?{urllib.parse.urlencode({'key': HOSTILE_KEY + HOSTILE_SESSION})}"
    with watched_page(browser, daemon.http_address, address=key_view) as seen:
        seen.page.get_by_role("link", name=f"{shown} / 2").click()
        seen.wait_for_text("h1", f"{shown} / 2")
        seen.wait_for_text("tbody th", "<img src=")
        assert seen.page.title().startswith(shown)
        seen.view(key_view)
        seen.page.get_by_role("button", name="Cancel 2 operations …").click()
        seen.wait_for_text("#confirm-what", "<img src=")
        seen.page.get_by_role("button", name="Cancel 2 operations", exact=True).click()
        seen.wait_for_text("#said", "2 cancelled.")
        seen.view("#/sessions")
        seen.wait_for_text("tbody th", shown)
        seen.view("#/ends")
        seen.wait_for_text("tbody th", f"{shown} / 1")
        seen.wait_for_text("tbody td", "<img src=")
        assert seen.page.locator("main img, main script, main b").count() == 0
        assert seen.sticking_out() == []
        seen.check()


def test_files_are_small_and_strict(daemon: DaemonProcess) -> None:
    """All files together are below 200 kB, their headers forbid foreign scripts, and no other files are served."""
    origin, total = f"http://{daemon.http_address}", 0
    folder = Path(__file__).parents[2] / "purgatory/extensions/page/static"
    for path in ("/", *(f"/page/static/{file.name}" for file in folder.iterdir())):
        with urllib.request.urlopen(origin + path, timeout=30) as answer:
            total += len(answer.read())
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
    assert total < WIRE_BYTES_MAX
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(f"{origin}/page/static/..%2Flive_page.py", timeout=30)


PICTURES = 5
ROUNDS = 4
VIEWS = ("now", "hour", "wheel", "waits", "partitions", "sessions", "webhooks", "ends")
HAS_ROWS = "() => document.querySelector('.scroll:not([hidden]) tbody tr:not([hidden])') !== null"
EMPTY_PICTURES = """(pictures) => new Promise((done) => {
  let seen = 0, empty = 0;
  new MutationObserver(() => {
    const rows = [...document.querySelectorAll("#operations tbody tr:not([hidden])")];
    const found = document.querySelector("#found").textContent;
    empty += rows.some((row) => row.querySelector("td.empty")) || found.startsWith("0 ");
    if ((seen += 1) === pictures) done(empty);
  }).observe(document.querySelector("#operations tbody"), {subtree: true, childList: true, characterData: true});
})"""


def test_waits_are_never_shown_as_none(browser: Browser, churning: DaemonProcess) -> None:
    with watched_page(browser, churning.http_address, address="#/waits") as seen:
        seen.page.wait_for_selector("#operations tbody th")
        assert seen.page.evaluate(EMPTY_PICTURES, PICTURES) == 0
        assert seen.sticking_out() == []
        seen.check()


def test_views_that_come_and_go_leave_nothing_behind(browser: Browser, churning: DaemonProcess) -> None:
    with watched_page(browser, churning.http_address) as seen:
        sizes = []
        for _ in range(ROUNDS):
            for view in VIEWS:
                seen.view(f"#/{view}")
                seen.page.wait_for_function(HAS_ROWS)  # a handle to an element would keep its view alive
                seen.wait_live()
            seen.view("#/nonsense")
            seen.wait_for_text("h1", "No such view")
            sizes.append(size_of(seen.page))
        heap, nodes = zip(*sizes[1:], strict=True)
        assert max(nodes) < nodes[0] + 300, sizes
        assert max(heap) < heap[0] + 1_000, sizes
        seen.check()


def test_an_empty_page_shows_a_first_wait_that_works(browser: Browser, start_daemon: StartDaemon) -> None:
    """Also on a phone, the wait that the page shows becomes visible on it, the second command ends the wait, and both
    can be copied. The commands disappear once anything has been registered.
    """
    with watched_page(browser, start_daemon().http_address, width=360) as seen:
        seen.page.wait_for_selector("#first")
        wait, advance = seen.page.locator("#first pre").all_inner_texts()
        seen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        seen.page.locator("#first button").last.click()
        seen.wait_for_text("#first button", "Copied")
        assert seen.page.evaluate("navigator.clipboard.readText()") == advance
        assert seen.sticking_out() == []
        waiting = subprocess.Popen(["sh", "-c", wait], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        try:
            seen.page.wait_for_selector("#first", state="hidden")
            seen.view("#/waits")
            seen.wait_for_text("#operations tbody tr", "nothing has been reported for orders-3 yet")
            subprocess.run(["sh", "-c", advance], check=True, capture_output=True, timeout=60)
            answer, _ = waiting.communicate(timeout=60)
        finally:
            waiting.kill()
        assert json.loads(answer)["result"]["outcome"] == "OUTCOME_SATISFIED"
        seen.check()


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


def test_page_dims_while_a_daemon_is_gone_and_reconnects(browser: Browser, start_daemon: StartDaemon) -> None:
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


def test_views_continue_when_a_daemon_is_back_with_its_journal(
    browser: Browser, start_daemon: StartDaemon, tmp_path: Path
) -> None:
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
        report(second, 300)
        operation.wait_for_text("#outcome", "satisfied")
        now.view("#/sessions")
        now.wait_for_text("tbody th", SESSION)
        for seen in (now, operation, waits):
            seen.check(NOT_CONNECTED, GOING)


def test_a_cancel_without_an_answer_is_not_said_to_be_done(browser: Browser, start_daemon: StartDaemon) -> None:
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
    flags, tokens = access_flags(tmp_path, POLICY), tmp_path / "tokens"
    admin, waiter = add_token(tokens, "admin"), add_token(tokens, "waiter")
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
