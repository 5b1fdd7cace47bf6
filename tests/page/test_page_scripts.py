"""Plays the scripts of page_scripts.txt in a real browser, at a real daemon."""

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from string import Template
from typing import Any, Final
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, Locator

from tests.kit.daemon import DaemonProcess, StartDaemon
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

    # What must be so now.

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
