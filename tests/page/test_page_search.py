"""The search and the tables of pending operations, which the daemon answers over everything that is pending."""

import json

import pytest
from playwright.sync_api import Browser
from purgatory_client import events
from purgatory_client.blocking import Client

from tests.client.cli.test_commands import program
from tests.client.cli.test_top import PseudoTerminal
from tests.kit.daemon import DaemonProcess
from tests.page.many_waits import CROWD, HOUR_MS, URGENT, URGENT_SESSION
from tests.page.page_calls import call, register_one
from tests.page.watched_page import WatchedPage, watched_page

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

ROWS = "#operations tbody tr:not([hidden])"


def operations(seen: WatchedPage) -> list[str]:
    """The titles (or, if short, the names) of the operations in the table."""
    links = seen.page.locator(f"{ROWS} th a")
    return [str(one.get_attribute("title") or one.text_content()) for one in links.all()]


URGENT_ONES = {f"{URGENT_SESSION} / {number}" for number in range(1, URGENT + 1)}


def test_the_first_to_expire_are_found_among_all(browser: Browser, crowded: DaemonProcess) -> None:
    """By the order, five of five come first; by the search, in any case, there are no others. Long ids are short."""
    with watched_page(browser, crowded.http_address, address="#/waits") as seen:
        seen.wait_for_text("#found", f"{CROWD + URGENT:,} operations wait on 101 names")
        assert set(operations(seen)[:URGENT]) == URGENT_ONES
        assert str(seen.page.locator(f"{ROWS} th a").first.text_content()).startswith("3f2a90cc…d8f0 / ")
        assert seen.page.locator("#hot progress").first.get_attribute("aria-label") == "1 % of these operations"
        for text in ("URGENT-refunds-0", "urgent", URGENT_SESSION[5:20].upper()):
            seen.page.fill("#find", text)
            seen.wait_for_text("#found", f"“{text}” matches {URGENT} operations")
            assert set(operations(seen)) == URGENT_ONES
        seen.page.fill("#find", f"{URGENT_SESSION} / 3")
        seen.wait_for_text("#found", "matches 1 operation,")
        assert operations(seen) == [f"{URGENT_SESSION} / 3"]
        seen.page.locator(f"{ROWS} th a").click()
        seen.wait_for_text("h1", f"{URGENT_SESSION} / 3")
        seen.check()


def test_the_terminal_finds_the_same_five(crowded: DaemonProcess) -> None:
    """`ls --sort` and `top` rank all 200,005 operations: the five that expire first lead; a search finds no others."""
    for search in ([], ["--search", "URGENT"]):
        listed = program("ls", "--sort", "remaining", *search, "--limit", "5", "--json", "--address", crowded.address)
        rows = [json.loads(line) for line in listed.stdout.splitlines()]
        assert {f"{row['session_id']} / {row['operation_id']}" for row in rows} == URGENT_ONES, listed
    snapshot = program("top", "--address", crowded.address).stdout.splitlines()
    first = next(place for place, line in enumerate(snapshot) if "Urgent-Refunds-0" in line)
    assert all("Urgent-Refunds-0" in line for line in snapshot[first : first + URGENT]), snapshot
    assert not any("orders-" in line for line in snapshot[:first])
    terminal = PseudoTerminal("top", "--address", crowded.address, columns=160)
    try:
        terminal.until(f"of {CROWD + URGENT:,}")
        terminal.until("Urgent-Refunds-0")
        place = len(terminal.written)
        terminal.press("/")
        terminal.until("only rows", place)
        terminal.press("urgent\r")
        terminal.until(f"waits: {URGENT} of {CROWD + URGENT:,}", place)
    finally:
        terminal.kill()


def test_columns_sort_and_the_kind_filters(browser: Browser, crowded: DaemonProcess) -> None:
    """A click on a heading lets the daemon rank by it, another one turns the order; the address keeps both."""
    register_one(crowded, "sorted-last", 7, timeout_ms=100 * HOUR_MS)
    with watched_page(browser, crowded.http_address, address="#/waits") as seen:
        left = seen.page.get_by_role("button", name="Left")
        seen.page.wait_for_selector(ROWS)
        left.click()
        seen.wait_for_text(f"{ROWS}:nth-child(2) th", "sorted-last / 1")
        assert seen.page.get_attribute("#operations th[aria-sort]", "aria-sort") == "descending"
        assert not URGENT_ONES & set(operations(seen))
        left.click()
        seen.wait_for_text(f"{ROWS}:nth-child(2) th", "3f2a90cc…d8f0")
        seen.page.get_by_role("button", name="Waited").click()
        seen.wait_for_text(f"{ROWS}:nth-child(2) th", "crowd")
        seen.page.get_by_role("button", name="Waited").click()
        seen.wait_for_text(f"{ROWS}:nth-child(2) th", "sorted-last / 1")
        assert seen.page.url.endswith("#/waits?order=waited")
        seen.page.reload()
        seen.wait_for_text(f"{ROWS}:nth-child(2) th", "sorted-last / 1")
        seen.page.select_option("#kind", "signal")
        seen.wait_for_text("#found", "0 operations")
        seen.wait_for_text("#operations td.empty", "No pending operation matches.")
        seen.page.get_by_role("button", name="Topic and partition, or key").click()
        seen.page.select_option("#kind", "")
        seen.wait_for_text("#hot tbody tr:nth-child(2) th", "Urgent-Refunds-0")
        seen.check()
    call(crowded, "Cancel", {"sessionId": "sorted-last"})


def test_the_dialog_says_how_many_would_be_cancelled(browser: Browser, crowded: DaemonProcess) -> None:
    """A partition's view shows its waits among all others; the button and the dialog say how many there are."""
    with watched_page(browser, crowded.http_address, address="#/partition?topic=orders&partition=7") as seen:
        seen.wait_for_text("#held", "Nothing has been reported for orders-7 yet.")
        seen.wait_for_text(ROWS, "nothing has been reported for orders-7 yet")
        seen.page.get_by_role("button", name="Cancel 2,000 operations …").click()
        seen.wait_for_text("#confirm-what", "Cancel 2,000 operations waiting on orders-7?")
        seen.page.get_by_role("button", name="Keep waiting").click()
        seen.check()


def test_nothing_matches_and_no_such_view(browser: Browser, daemon: DaemonProcess) -> None:
    """A search without results, and an unknown address, say so and lead on. A partition without waits is found."""
    with Client(daemon.address) as client:
        client.advance_many([events.high_watermark(("idle", 4), 9)]).raise_for_refusals()
    with watched_page(browser, daemon.http_address) as seen:
        seen.page.keyboard.press("/")
        seen.page.keyboard.type("no/such thing")
        seen.wait_for_text("#nothing", "Nothing that is pending matches “no/such thing”.")
        seen.page.get_by_role("link", name="look among all partitions").click()
        seen.wait_for_text("td.empty", "No topic begins with “no/such thing”.")
        seen.page.fill("#find", "idle-4")
        seen.wait_for_text("#hot tbody th", "idle-4")
        seen.view("#/nonsense/here")
        seen.wait_for_text("h1", "No such view")
        assert seen.page.locator("nav a[aria-current]").count() == 0
        seen.page.get_by_role("link", name="Go to Now").click()
        seen.wait_for_text("h1", "Now")
        seen.check()
