"""Every view and dialog of the live page at three widths and in both themes: laid out within the window, and scanned
for accessibility problems by axe-core, which is installed from npm at the version of package-lock.json.

If npm is missing, the tests are skipped with a message; with PURGATORY_REQUIRE_NODE=1 they fail instead.
"""

import shutil
import subprocess
from pathlib import Path
from typing import Any, Final, Literal

import pytest
from playwright.sync_api import Browser, Page

from tests.kit.daemon import DaemonProcess
from tests.kit.required import skip_unless_required
from tests.page.page_kit import SESSION, register_one, watched_page
from tests.pipeline.page.browser import FLAGS, chromium_path

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

HERE: Final = Path(__file__).parent
INSTALLED: Final = HERE.parents[1] / ".build" / "axe"
INSTALL_S: Final = 120.0
LISTS: Final = ("package.json", "package-lock.json")

_VIOLATIONS = """async () => {
  const kinds = {elementRef: true, resultTypes: ["violations", "incomplete"]};
  const {violations, incomplete} = await axe.run(document, kinds);
  const said = (found) => found.flatMap((rule) => rule.nodes.map((node) => ({
    text: `${rule.id}: ${node.target.join(" ")}: ${node.failureSummary.replace(/\\s+/g, " ")}`,
    isDrawn: node.element.closest("svg") !== null,
  })));
  const unsure = said(incomplete).filter((one) => !(one.isDrawn && one.text.startsWith("color-contrast:")));
  return [...said(violations), ...unsure].map((one) => one.text);
}"""
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
    "key?key=nightly-3",
)  # fmt: skip
LOADED = """(isIdle) => {
  const main = document.querySelector("main");
  return !main.textContent.includes("Loading …") && (isIdle || main.querySelector("tbody tr:not([hidden])"));
}"""
RIGHT_EDGE = """() => Math.max(...[...document.querySelectorAll("main .scroll, main .plots, main .figures")]
  .map((one) => one.getBoundingClientRect().right))"""
LATE_ID = "late-" + "fedcba9876543210" * 2


@pytest.mark.parametrize(
    ("width", "scheme", "state"),
    [
        (360, "light", "daemon"),
        (1280, "light", "idle"),
        (1280, "dark", "idle"),
        (2560, "dark", "crowded"),
    ],
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
