"""The live page in a real browser, where scripts are not enough: its files, churn, charts and the wheel, daemons that
restart or require a token.
"""

import json
import re
import subprocess
import urllib.error
import urllib.request
from importlib.metadata import metadata
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from purgatory_client import events
from purgatory_client.blocking import Client

from purgatory.extensions.page.daemon_views import documentation_url
from purgatory.service.access.tokens import add_token
from tests.kit.daemon import DaemonProcess, StartDaemon, access_flags
from tests.page import page_kit

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

FOLLOWED = "#/operation?session=followed&id=1"
WIRE_BYTES_MAX = 200_000


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
EMPTY_PICTURES = Path(__file__).with_name("empty_pictures.js").read_text("utf-8")


def test_waits_are_never_shown_as_none(browser: Browser, churning: DaemonProcess) -> None:
    with page_kit.watched_page(browser, churning.http_address, address="#/waits") as seen:
        seen.page.wait_for_selector("#operations tbody th")
        assert seen.page.evaluate(EMPTY_PICTURES, PICTURES) == 0
        assert seen.sticking_out() == []


def test_views_that_come_and_go_leave_nothing_behind(browser: Browser, churning: DaemonProcess) -> None:
    with page_kit.watched_page(browser, churning.http_address) as seen:
        sizes = []
        for _ in range(ROUNDS):
            for view in VIEWS:
                seen.view(f"#/{view}")
                seen.page.wait_for_function(HAS_ROWS)  # a handle to an element would keep its view alive
                seen.wait_live()
            seen.view("#/nonsense")
            seen.wait_for_text("h1", "No such view")
            sizes.append(page_kit.size_of(seen.page))
        heap, nodes = zip(*sizes[1:], strict=True)
        assert max(nodes) < nodes[0] + 300, sizes
        assert max(heap) < heap[0] + 1_000, sizes


def test_an_empty_page_shows_a_first_wait_that_works(browser: Browser, start_daemon: StartDaemon) -> None:
    """Also on a phone, the wait that the page shows becomes visible on it, the second command ends the wait, and both
    can be copied. The commands disappear once anything has been registered.
    """
    with page_kit.watched_page(browser, start_daemon().http_address, width=360) as seen:
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


GONE = ("net::ERR_", "the server responded with a status of 503")
"""The browser itself reports connections that are refused or cut; 503 comes from a daemon that is shutting down."""

POLICY = Path(__file__).with_name("policy.toml").read_text("utf-8")


def test_views_are_grey_without_their_daemon_and_continue_when_it_is_back(
    browser: Browser, start_daemon: StartDaemon, tmp_path: Path
) -> None:
    journal = ["--data-dir", str(tmp_path / "journal")]
    first = start_daemon(*journal, "--shutdown-grace-ms", "100")
    with Client(first.address) as client:
        page_kit.register_waits(client)
    page_kit.register_one(first, "followed", 300)
    with (
        page_kit.watched_page(browser, first.http_address, expected=GONE) as now,
        page_kit.watched_page(browser, first.http_address, expected=GONE, address=FOLLOWED) as operation,
        page_kit.watched_page(browser, first.http_address, expected=GONE, address="#/waits") as waits,
    ):
        now.wait_for_text("#pending", f"{page_kit.WAITS + 1:,}")
        operation.wait_for_text(".lead", "It is pending")
        waits.wait_for_text("#found", f"{page_kit.WAITS + 1:,} operations wait on")
        assert first.stop() == 0
        for seen in (now, operation, waits):
            seen.page.wait_for_selector('#state[data-state="away"]')
            seen.wait_for_text("#banner:not([hidden])", f"The daemon at {first.http_address} is unreachable.")
            assert seen.page.evaluate("() => getComputedStyle(document.querySelector('main')).filter") == "grayscale(1)"
        second = start_daemon(*journal, "--http-address", first.http_address)
        page_kit.register_one(second, "after", 5)
        now.wait_for_text("#pending", f"{page_kit.WAITS + 2:,}")
        waits.wait_for_text("#found", f"{page_kit.WAITS + 2:,} operations wait on")
        operation.wait_live()
        operation.page.wait_for_selector("#banner", state="hidden")
        operation.wait_for_text(".lead", "It is pending")
        page_kit.report(second, 300)
        operation.wait_for_text("#outcome", "satisfied")
        now.view("#/sessions")
        now.wait_for_text("tbody th", page_kit.SESSION)


def test_a_daemon_with_a_policy_asks_for_a_token(browser: Browser, start_daemon: StartDaemon, tmp_path: Path) -> None:
    """The page asks again after a wrong token. With the right one it shows everything, keeps the token across a reload
    but not in the address, names the role that another token lacks, and asks again when the token is revoked.
    """
    flags, tokens = access_flags(tmp_path, POLICY), tmp_path / "tokens"
    admin, waiter = add_token(tokens, "admin"), add_token(tokens, "waiter")
    daemon = start_daemon(*flags)
    expected = ("the server responded with a status of 40",)
    with page_kit.watched_page(browser, daemon.http_address, is_let_in=False, expected=expected) as seen:

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


NAME = (page_kit.TOPIC_OF_ITS_OWN, 0)


def test_the_last_hour_has_time_axes(browser: Browser, daemon: DaemonProcess) -> None:
    """Five charts are drawn without another host, follow the theme, and their figures are in a table too."""
    with page_kit.watched_page(browser, daemon.http_address, address="#/hour") as seen:
        seen.wait_for_text("#hour-lead", "A point every ten seconds")
        assert seen.page.locator(".plot canvas").count() == 5
        seen.wait_for_text("tbody th", "Pending operations")
        seen.wait_for_text("tbody th", "Operations per second: registered")
        light = seen.page.locator(".plot .u-marker").nth(1).evaluate("(one) => one.style.border")
        seen.page.emulate_media(color_scheme="dark")
        seen.page.wait_for_function(
            "(light) => document.querySelectorAll('.plot .u-marker')[1].style.border !== light", arg=light
        )
        assert seen.page.locator(".plot canvas").count() == 5
        assert seen.sticking_out() == []
        seen.view("#/now")
        seen.page.wait_for_selector("#pending")


def test_charts_are_loaded_again_if_that_failed(browser: Browser, daemon: DaemonProcess) -> None:
    missing, expected = f"#/operation?session={page_kit.SESSION}&id=999999", ("404", "net::ERR_FAILED", "error: ")
    with page_kit.watched_page(browser, daemon.http_address, address=missing, expected=expected) as seen:
        seen.wait_for_text(".lead", "It is not pending")
        assert seen.page.locator(".figures").is_hidden()
        seen.page.route("**/uPlot.iife.min.js", lambda route: route.abort(), times=1)
        with seen.page.expect_event("requestfailed"):
            seen.view("#/hour")
        seen.view("#/now")
        seen.wait_for_text("h1", "Now")
        seen.view("#/hour")
        seen.wait_for_text("#hour-lead", "A point every ten seconds")


def test_ended_rows_are_not_drawn_again(browser: Browser, daemon: DaemonProcess) -> None:
    with page_kit.watched_page(browser, daemon.http_address, address="#/ends") as seen:
        page_kit.register_one(daemon, "ended-first", 1_000_000, timeout_ms=5)
        seen.wait_for_text("tbody th", "ended-first / 1")
        ended = seen.page.evaluate("""() => {
          const rows = [...document.querySelectorAll("tbody tr")];
          const row = rows.find((one) => one.textContent.includes("ended-first"));
          window.touched = 0;
          new MutationObserver((all) => { window.touched += all.length; })
            .observe(row, {subtree: true, childList: true, characterData: true, attributes: true});
          return row.lastElementChild.textContent;
        }""")
        assert re.search(r"\d\d:\d\d:\d\d$", ended), ended
        page_kit.register_one(daemon, "ended-second", 1_000_000, timeout_ms=5)
        seen.wait_for_text("tbody th", "ended-second / 1")
        assert seen.page.evaluate("() => window.touched") == 0


def test_the_wheel_stays_readable_with_many_operations(browser: Browser, crowded: DaemonProcess) -> None:
    with page_kit.watched_page(browser, crowded.http_address, address="#/wheel") as seen:
        seen.page.wait_for_function(
            """(many) => {
              const rows = [...document.querySelectorAll("tbody tr:not([hidden])")];
              const texts = rows.map((row) => row.cells[3].textContent);
              const total = texts.reduce((sum, text) => sum + Number(text.replace(/[^0-9]/g, "")), 0);
              return total === many && !texts.some((text) => text.includes("≥"));
            }""",
            arg=page_kit.CROWD + page_kit.URGENT,
        )
        rings = seen.page.locator("tbody tr:visible").count()
        assert (rings >= 5, seen.page.locator("path.sector").count()) == (True, 20 * rings)
        colours = seen.page.evaluate(
            "() => [...new Set([...document.querySelectorAll('path.sector')].map((one) => one.style.fill))]"
        )
        assert len(colours) >= 8, colours
        assert seen.page.locator("#scale > span").all_text_contents()[-1] in {"10,000", "100,000"}
        assert "17 h a turn" in seen.page.locator(".ring-name").all_text_contents()


def test_estimate_says_whether_a_wait_ends_in_time(browser: Browser, start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    page_kit.register_one(daemon, "soon", 10_000)
    page_kit.register_one(daemon, "never", 1 << 40)
    with (
        page_kit.watched_page(browser, daemon.http_address, address="#/waits") as waits,
        page_kit.watched_page(browser, daemon.http_address, address="#/operation?session=never&id=1") as never,
        Client(daemon.address) as client,
    ):
        has_both = """() => {
          const rows = [...document.querySelectorAll("#operations tbody tr")].map((row) => row.textContent);
          return rows.some((row) => /soon.*in time/.test(row)) && rows.some((row) => /never.*too late/.test(row));
        }"""
        for mark in range(100, 9_000, 100):
            client.advance_many([events.high_watermark(NAME, mark)]).raise_for_refusals()
            waits.page.wait_for_timeout(100)  # the marks of the page's next pictures
            if waits.page.evaluate(has_both) and "too late" in str(never.page.text_content("main")):
                break
        assert waits.page.evaluate(has_both)
        never.wait_for_text("main td", "too late")
        title = str(waits.page.locator("#operations td span[title]").first.get_attribute("title"))
        assert re.fullmatch(r"expires .*\d\d:\d\d:\d\d", title)


def test_footer_links_to_the_documentation_of_the_package(browser: Browser, daemon: DaemonProcess) -> None:
    named = [url for url in metadata("purgatory-waits").get_all("Project-URL", []) if url.startswith("Documentation")]
    with page_kit.watched_page(browser, daemon.http_address) as seen:
        seen.wait_for_text("#about", "Purgatory")
        link = seen.page.locator("#docs")
        assert (link.get_attribute("href") or "") == documentation_url()
        assert link.is_visible() == bool(named)
