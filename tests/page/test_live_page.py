"""The live page in a real browser, on a real daemon with a thousand waits of every kind."""

import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from tests.kit.daemon import DaemonProcess
from tests.page.many_waits import HOSTILE_KEY, HOSTILE_TOPIC, SESSION, WAITS
from tests.page.page_calls import TOPIC_OF_ITS_OWN, call, register_one
from tests.page.watched_page import watched_page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

WIRE_BYTES_MAX = 200_000
HOSTILE_SESSION = "<b>\u202e\x1b]0;owned\x07"


def test_numbers_follow_without_reload(browser: Browser, daemon: DaemonProcess) -> None:
    """Operations registered while the page is open are counted on it."""
    with watched_page(browser, daemon.http_address) as seen:
        seen.page.wait_for_function("() => Number(document.querySelector('#pending').textContent.replace(',', '')) > 0")
        before = int(seen.page.text_content("#pending").replace(",", ""))  # type: ignore[union-attr]
        register_one(daemon, "one more", 77)
        seen.wait_for_text("#pending", f"{before + 1:,}")
        assert before >= WAITS - 1
        call(daemon, "Cancel", {"sessionId": "one more"})
        seen.wait_for_text("#pending", f"{before:,}")
        seen.check()


def test_the_wheel_shows_every_level(browser: Browser, daemon: DaemonProcess) -> None:
    """Each level is a ring of sectors; together the rings contain all pending operations."""
    with watched_page(browser, daemon.http_address, address="#/wheel") as seen:
        seen.page.wait_for_selector("path.sector")
        rings = seen.page.locator("tbody tr:visible").count()
        assert rings >= 5
        assert seen.page.locator("path.sector").count() == 20 * rings
        seen.page.wait_for_function("""() => {
          const number = (text) => Number(text.replace(/[^0-9]/g, ""));
          const rows = [...document.querySelectorAll("tbody tr:not([hidden])")];
          const held = rows.map((row) => number(row.cells[3].textContent));
          return held.reduce((sum, one) => sum + one, 0) === number(document.querySelector(".hub").textContent);
        }""")
        seen.check()


def test_search_finds_names(browser: Browser, daemon: DaemonProcess) -> None:
    """Searching for a substring shows only matching names, and the address contains the search."""
    with watched_page(browser, daemon.http_address, address="#/waits") as seen:
        seen.wait_for_text("#hot tbody", "orders")
        seen.page.fill("#find", "nightly-3")
        seen.wait_for_text("#found", " 11 names")
        shown = seen.page.locator("#hot tbody th a").all_text_contents()
        assert shown
        assert all("nightly-3" in name for name in shown)
        assert seen.page.url.endswith("#/waits?q=nightly-3")
        seen.check()


def test_an_operation_is_followed_to_its_end(browser: Browser, daemon: DaemonProcess) -> None:
    """An operation shows its required offset, its mark and its obstacle, then its outcome without a reload."""
    register_one(daemon, "followed", 300)
    partition = {"topicPartition": {"topic": TOPIC_OF_ITS_OWN, "partition": 0}}
    call(daemon, "Advance", {"rows": {"events": [{**partition, "highWatermark": {"offset": 120}}]}})
    with watched_page(browser, daemon.http_address, address="#/operation?session=followed&id=1") as seen:
        seen.wait_for_text("tbody", "300")
        seen.wait_for_text("tbody", "120")
        seen.wait_for_text(".lead", "It is pending.")
        call(daemon, "Advance", {"rows": {"events": [{**partition, "highWatermark": {"offset": 300}}]}})
        seen.wait_for_text("#outcome", "satisfied")
        seen.check()


def test_a_composite_is_a_tree_of_terms(browser: Browser, daemon: DaemonProcess) -> None:
    """The two arms of a composite are a small tree with what each term has reached, also when it has ended."""
    columns = {
        "kind": "OPERATION_KIND_COMPOSITE",
        "partitions": [{"topic": TOPIC_OF_ITS_OWN, "partition": 7}],
        "keys": [HOSTILE_KEY, "tree/failed"],
        "operationId": [1],
        "itemCount": [4],
        "itemIndex": [0, 0, 1, 2],
        "offset": [20, 900, 1, 1],
        "requiredTerms": [2],
        "unlessCount": [1],
        "timeoutMs": [600_000],
    }
    call(daemon, "Register", {"sessionId": "tree", "batch": {"columns": columns}})
    mark = {"topicPartition": {"topic": TOPIC_OF_ITS_OWN, "partition": 7}, "highWatermark": {"offset": 20}}
    with watched_page(browser, daemon.http_address, address="#/operation?session=tree&id=1") as seen:
        seen.wait_for_text("#terms", "Satisfied when 2 of 3 are true")
        call(daemon, "Advance", {"rows": {"events": [mark]}})
        seen.wait_for_text("#terms li.good", f"{TOPIC_OF_ITS_OWN}-7: 20 of 20")
        arms = seen.page.locator("#terms > li")
        assert [arms.nth(place).locator("li").count() for place in range(arms.count())] == [3, 1]
        assert seen.page.locator("tbody tr:not([hidden])").count() == 4
        call(daemon, "Advance", {"rows": {"events": [{"keySignalled": {"key": "tree/failed"}}]}})
        seen.wait_for_text("#outcome", "failed")
        seen.wait_for_text("#terms li.bad", "tree/failed: 1 of 1")
        assert seen.page.locator("main img").count() == 0
        assert seen.sticking_out() == []
        seen.check()


def test_a_large_composite_shows_both_arms(browser: Browser, daemon: DaemonProcess) -> None:
    """The page shows the first terms only; it says how many there are in each arm besides."""
    columns = {
        "kind": "OPERATION_KIND_COMPOSITE",
        "partitions": [{"topic": TOPIC_OF_ITS_OWN, "partition": 8}],
        "operationId": [1],
        "itemCount": [151],
        "offset": [900],
        "unlessCount": [1],
        "timeoutMs": [600_000],
    }
    call(daemon, "Register", {"sessionId": "large tree", "batch": {"columns": columns}})
    with watched_page(browser, daemon.http_address, address="#/operation?session=large%20tree&id=1") as seen:
        seen.wait_for_text("#terms", "Satisfied when 150 of 150 are true")
        last = seen.page.locator("#terms > li li:last-child")
        assert last.all_inner_texts() == ["and 50 more", "and 1 more"]
        seen.check()


def test_a_partition_says_who_holds_it_back(browser: Browser, daemon: DaemonProcess) -> None:
    """A partition shows its marks, its replicas, the replica that lags, and the operations that wait."""
    with watched_page(browser, daemon.http_address, address="#/partition?topic=orders&partition=2") as seen:
        seen.wait_for_text("#held", "held back by replica 3")
        seen.wait_for_text("tbody", SESSION)
        assert seen.page.locator("svg.chart path.curve").get_attribute("d")
        seen.check()


def test_cancelling_asks_first(browser: Browser, daemon: DaemonProcess) -> None:
    """A click alone cancels nothing. After confirmation the operation ends, and the page reports that."""
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


def test_what_expires_is_shown_with_how_far_it_came(browser: Browser, daemon: DaemonProcess) -> None:
    """An operation that expires while the page is open appears with its marks; sessions are listed."""
    with watched_page(browser, daemon.http_address, address="#/ends") as seen:
        register_one(daemon, "hasty", 1_000_000, timeout_ms=5)
        seen.wait_for_text("tbody th", "hasty / 1")
        seen.wait_for_text("tbody tr", "of 1,000,000")
        seen.view("#/sessions")
        seen.wait_for_text("tbody th", SESSION)
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
    columns = {
        "kind": "OPERATION_KIND_SIGNAL",
        "keys": [HOSTILE_KEY + HOSTILE_SESSION],
        "operationId": [1, 2],
        "timeoutMs": [600_000],
    }
    call(daemon, "Register", {"sessionId": HOSTILE_SESSION, "batch": {"columns": columns}})
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
