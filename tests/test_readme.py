"""The README is correct: its Python code runs unchanged against a real daemon."""

import re
import subprocess
import sys
from pathlib import Path

from tests.daemon_process import DaemonProcess

README = Path(__file__).resolve().parent.parent / "README.md"


def test_first_wait_in_python(daemon: DaemonProcess) -> None:
    """The README's program prints the promised output."""
    text = README.read_text(encoding="utf-8")
    [program] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    promised = re.search(r"It prints `([^`]+)`", text)
    assert promised is not None
    assert "127.0.0.1:7440" in program
    program = program.replace("127.0.0.1:7440", daemon.address)
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert (answer.stdout.strip(), answer.stderr) == (promised.group(1), "")


def test_links_lead_somewhere() -> None:
    """Every relative link on our pages leads to an existing file."""
    root = README.parent
    pages = [README, root / "CONTRIBUTING.md", root / "CHANGELOG.md", *sorted((root / "docs").glob("*.md"))]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8"))]
    dead = [f"{page.name}: {link}" for page, link in links if "://" not in link and not (page.parent / link).exists()]
    assert links
    assert dead == []
