"""Plays the scripts of page_scripts.txt in a real browser, at a real daemon.

Every view and dialog of the live page at three widths and in both themes: laid out within the window, and scanned
for accessibility problems by axe-core, which is installed from npm at the version of package-lock.json.

If npm is missing, the tests are skipped with a message; with PURGATORY_REQUIRE_NODE=1 they fail instead.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from string import Template
from typing import Any, Final, Literal
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Locator, Page

from tests.kit.daemon import DaemonProcess, StartDaemon
from tests.kit.programs import skip_unless_required
from tests.page.page_kit import (
    HOSTILE_KEY,
    HOSTILE_TOPIC,
    SESSION,
    TOPIC_OF_ITS_OWN,
    URGENT_SESSION,
    WatchedPage,
    call,
    register,
    register_one,
    report,
    signal_key,
    watched_page,
)
from tests.pipeline.page.browser import FLAGS, chromium_path

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

HOSTILE_SESSION: Final = "<b>\u202e\x1b]0;owned\x07"
NAMES: Final = {
    "SESSION": SESSION,
    "URGENT_SESSION": URGENT_SESSION,
    "TOPIC_START": HOSTILE_TOPIC[:20],
    "KEY_START": HOSTILE_KEY[:20],
    "HOSTILE_SESSION": HOSTILE_SESSION,
    "HOSTILE_KEYS": json.dumps([HOSTILE_KEY + HOSTILE_SESSION]),
    "QUOTED_KEY": quote(HOSTILE_KEY + HOSTILE_SESSION),
    "ROWS": "#operations tbody tr:not([hidden])",
}
FOCUS: Final = "() => document.activeElement.id || document.activeElement.textContent"
TABS_MAX: Final = 40


class PageScript:
    """Plays one script: each line is a call of a method here, of the daemon, or of Playwright's keyboard or page."""

    def __init__(self, browser: Browser, daemon: DaemonProcess) -> None:
        self._browser: Final = browser
        self._daemon: Final = daemon
        self._stack: Final = ExitStack()
        self._expected: Final[list[str]] = []
        self._seen: WatchedPage | None = None

    def play(self, lines: Sequence[str]) -> None:
        with self._stack:
            for line in lines:
                verb, _, rest = line.partition(" ")
                players = [self, self._daemon, *([self.seen.page.keyboard, self.seen.page] if self._seen else [])]
                method = next(getattr(one, verb) for one in players if hasattr(one, verb))
                try:
                    method(*map(str.strip, rest.split("=>") if rest else ()))
                except Exception as error:
                    error.add_note(f"in the line: {line}")
                    raise

    @property
    def seen(self) -> WatchedPage:
        assert self._seen is not None, "the page is not open"
        return self._seen

    def _found(self, selector: str) -> Locator:
        return self.seen.page.locator(selector)

    # At the daemon.

    def wait(self, session: str, offset: str, topic: str = TOPIC_OF_ITS_OWN, timeout_ms: str = "600000") -> None:
        register_one(self._daemon, session, int(offset), int(timeout_ms), topic=topic)

    def register(self, session: str, kind: str, columns: str) -> None:
        register(self._daemon, session, kind, **json.loads(columns))

    def report(self, offset: str, topic: str = TOPIC_OF_ITS_OWN, partition: str = "0") -> None:
        report(self._daemon, int(offset), int(partition), topic)

    def remove(self, topic: str) -> None:
        event = {"topicPartition": {"topic": topic}, "partitionRemoved": {}}
        call(self._daemon, "Advance", {"rows": {"events": [event]}})

    def signal(self, key: str) -> None:
        signal_key(self._daemon, key)

    def pending(self, session: str) -> None:
        assert call(self._daemon, "GetOperation", {"sessionId": session, "operationId": 1})

    def cancel(self, session: str) -> None:
        call(self._daemon, "Cancel", {"sessionId": session})

    # In the browser.

    def complains(self, text: str) -> None:
        self._expected.append(text)

    def open(self, address: str) -> None:
        if self._seen is not None:
            self._seen.view(address)
            return
        opened = watched_page(self._browser, self._daemon.http_address, address=address, expected=self._expected)
        self._seen = self._stack.enter_context(opened)

    def see(self, selector: str, text: str) -> None:
        self.seen.wait_for_text(selector, text)

    def disappears(self, selector: str) -> None:
        self.seen.page.wait_for_selector(selector, state="hidden")

    def figure(self, name: str, value: str) -> None:
        self.seen.wait_for_figure(name, value)

    def click(self, role: str, name: str) -> None:
        self._by_role(role, name).first.click()

    def click_last(self, role: str, name: str) -> None:
        self._by_role(role, name).last.click()

    def _by_role(self, role: Any, name: str) -> Locator:  # noqa: ANN401 - one of many literals
        return self.seen.page.get_by_role(role, name=name, exact=True)

    def follow(self, selector: str) -> None:
        self._found(selector).first.click()

    def tab_to(self, name: str) -> None:
        for _ in range(TABS_MAX):
            if self.seen.page.evaluate(FOCUS) == name:
                return
            self.seen.page.keyboard.press("Tab")
        self.focus(name)

    # Assertions about the page.

    def count(self, selector: str, number: str) -> None:
        assert self._found(selector).count() == int(number)

    def attribute(self, selector: str, name: str, value: str) -> None:
        assert self._found(selector).first.get_attribute(name) == value

    def matches(self, selector: str, pattern: str) -> None:
        assert re.fullmatch(pattern, self._found(selector).last.inner_text())

    def title(self, start: str) -> None:
        assert self.seen.page.title().startswith(start)

    def url(self, end: str) -> None:
        assert self.seen.page.url.endswith(end)

    def focus(self, name: str) -> None:
        assert self.seen.page.evaluate(FOCUS) == name

    def requests(self, end: str, number: str) -> None:
        """Wait for this many requests; there must be no more."""
        while (count := sum(address.endswith(end) for address in self.seen.requests)) < int(number):
            self.seen.page.wait_for_event("request")
        assert count == int(number)

    def fits(self) -> None:
        assert self.seen.sticking_out() == []


def read_scripts() -> Iterator[tuple[str, list[str]]]:
    """The lines of each script, by its title."""
    text = Path(__file__).with_name("page_scripts.txt").read_text("utf-8")
    for title, *lines in (part.split("\n") for part in re.split(r"^(?=[^\s#])", text, flags=re.MULTILINE)[1:]):
        yield title, [line[4:] for line in lines if line and not line.startswith("    #")]


SCRIPTS: Final = dict(read_scripts())


@pytest.mark.parametrize("title", SCRIPTS)
def test_page_shows_what_its_script_says(
    browser: Browser, request: pytest.FixtureRequest, start_daemon: StartDaemon, title: str
) -> None:
    first, *lines = [Template(line).substitute(NAMES) for line in SCRIPTS[title]]
    _, name, *flags = first.split()
    daemon = start_daemon(*flags) if name == "fresh" else request.getfixturevalue(name)
    PageScript(browser, daemon).play(lines)


HERE: Final = Path(__file__).parent
INSTALLED: Final = HERE.parents[1] / ".build" / "axe"
INSTALL_S: Final = 120.0
LISTS: Final = ("package.json", "package-lock.json")

_VIOLATIONS = (HERE / "violations.js").read_text("utf-8")
"""Contrast within a drawing is the only thing that axe may leave undecided: it does not know the background there."""


@pytest.fixture(scope="module")
def source() -> str:
    """The source of axe-core."""
    npm = shutil.which("npm")
    if npm is None:
        skip_unless_required("NODE", "this scan needs npm: the page is not searched for what shuts people out")
    script, lists = INSTALLED / "node_modules/axe-core/axe.min.js", [(HERE / name).read_bytes() for name in LISTS]
    if not script.exists() or [(INSTALLED / name).read_bytes() for name in LISTS] != lists:
        INSTALLED.mkdir(parents=True, exist_ok=True)
        for name, content in zip(LISTS, lists, strict=True):
            (INSTALLED / name).write_bytes(content)
        command = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--prefer-offline"]
        done = subprocess.run(command, cwd=INSTALLED, capture_output=True, text=True, timeout=INSTALL_S, check=False)
        assert done.returncode == 0, f"npm ci in {INSTALLED}:\n{done.stdout}{done.stderr}"
    return script.read_text("utf-8")


def violations(page: Page, source: str) -> list[str]:
    """Each rule that an element breaks or may break: rule, element, reason."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(source)
    found: Any = page.evaluate(_VIOLATIONS)
    return [str(one) for one in found]


VIEWS = (
    "now", "wheel", "waits", "partitions", "sessions", "hour", "webhooks", "ends",
    f"operation?session={SESSION}&id=2", f"session?session={SESSION}", "partition?topic=orders&partition=2",
    "key?key=nightly-3", "lag?group=billing",
)  # fmt: skip
LOADED = (HERE / "loaded.js").read_text("utf-8")
RIGHT_EDGE = """() => Math.max(...[...document.querySelectorAll("main .scroll, main .plots, main .figures")]
  .map((one) => one.getBoundingClientRect().right))"""
LATE_ID = "late-" + "fedcba9876543210" * 2


@pytest.mark.parametrize(
    ("width", "scheme", "state"),
    [(360, "light", "daemon"), (1280, "light", "idle"), (1280, "dark", "idle"), (2560, "dark", "crowded")],
)
def test_every_view_fits_and_axe_finds_nothing(
    browser: Browser,
    source: str,
    request: pytest.FixtureRequest,
    width: int,
    scheme: Literal["light", "dark"],
    state: str,
) -> None:
    """With 0, 1,000 and 200,000 pending, no view is wider than the window or hides a column, a wide window is used, and
    no view breaks a rule of axe.
    """
    daemon: DaemonProcess = request.getfixturevalue(state)
    expected = ("404",)  # the browser reports what does not exist on this daemon
    with watched_page(browser, daemon.http_address, width=width, scheme=scheme, expected=expected) as seen:
        if state != "idle":
            register_one(daemon, f"{LATE_ID}-{width}", 1_000_000, timeout_ms=5)
        for view in VIEWS:
            seen.view(f"#/{view}")
            seen.page.wait_for_function(LOADED, arg=state == "idle")
            assert (view, seen.sticking_out()) == (view, [])
            assert (view, violations(seen.page, source)) == (view, [])
            assert view.startswith("operation") or seen.page.evaluate(RIGHT_EDGE) > 0.9 * width


def test_axe_finds_nothing_in_dialogs(browser: Browser, daemon: DaemonProcess, source: str) -> None:
    with watched_page(browser, daemon.http_address, address=f"#/operation?session={SESSION}&id=2") as seen:
        seen.page.get_by_role("button", name="Cancel this operation …").click()
        assert violations(seen.page, source) == []
        seen.page.get_by_role("button", name="Keep waiting").click()
        seen.page.evaluate("() => document.querySelector('#token').showModal()")
        assert violations(seen.page, source) == []
        seen.page.keyboard.press("Escape")
        seen.page.evaluate("""() => {
          for (const id of ["#banner", "#sign-in"]) document.querySelector(id).hidden = false;
          document.querySelector("#banner-text").textContent = "Not signed in.";
        }""")
        assert violations(seen.page, source) == []
        seen.view("#/waits?q=checkout")
        seen.page.wait_for_selector("#found-sessions tbody th")
        assert violations(seen.page, source) == []


def test_axe_finds_nothing_while_the_daemon_is_gone(browser: Browser, start_daemon: StartDaemon, source: str) -> None:
    daemon = start_daemon()
    with watched_page(browser, daemon.http_address, expected=("net::ERR_",)) as seen:
        daemon.kill()
        seen.page.wait_for_selector('body[data-state="away"]')
        for view in VIEWS:
            seen.view(f"#/{view}")
            assert (view, seen.sticking_out(), violations(seen.page, source)) == (view, [], [])


def test_a_planted_fault_is_found(browser: Browser, idle: DaemonProcess, source: str) -> None:
    with watched_page(browser, idle.http_address) as seen:
        seen.page.evaluate("""() => {
          const pale = Object.assign(document.createElement("p"), {textContent: "hardly to be read"});
          pale.style.color = "#cccccc";
          document.querySelector("main").append(document.createElement("img"), pale);
        }""")
        rules = [found.partition(":")[0] for found in violations(seen.page, source)]
        assert sorted(rules) == ["color-contrast", "image-alt"]


def test_the_header_ends_at_the_scrollbar(browser: Browser, daemon: DaemonProcess) -> None:
    flags = [flag for flag in FLAGS if flag != "--hide-scrollbars"]
    with browser.browser_type.launch(
        executable_path=chromium_path(), args=flags, ignore_default_args=["--hide-scrollbars"]
    ) as other:
        for view in ("#/nonsense", f"#/session?session={SESSION}"):
            with watched_page(other, daemon.http_address, address=view) as seen:
                header = "() => document.querySelector('header').getBoundingClientRect().right"
                assert seen.page.evaluate(header) == seen.page.evaluate("() => document.documentElement.clientWidth")
                assert seen.page.evaluate("() => innerWidth - document.documentElement.clientWidth") > 0
