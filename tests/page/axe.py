"""axe-core, a checker for accessibility: installed from npm, at the version of package-lock.json.

If npm is missing, the tests are skipped with a message; with PURGATORY_REQUIRE_NODE=1 they fail instead.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import Page

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


def axe_source() -> str:
    """The source of axe-core."""
    npm = shutil.which("npm")
    if npm is None:
        missing = "this scan needs npm: the page is not searched for what shuts people out"
        if os.environ.get("PURGATORY_REQUIRE_NODE") == "1":
            pytest.fail(f"PURGATORY_REQUIRE_NODE=1: {missing}")
        pytest.skip(missing)
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
